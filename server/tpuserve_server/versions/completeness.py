"""Check for missing files of a version: by its manifest, otherwise by the files that every model has."""

import re
from collections.abc import Collection
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from tpuserve_formats.manifest import MANIFEST_FILE
from tpuserve_server.core.models.local_storage import VersionTree
from tpuserve_server.core.terms.storage import show_name
from tpuserve_server.versions.manifest import missing_file

# TensorFlow's checkpoints: https://www.tensorflow.org/guide/checkpoint#checkpoint_files
_SHARD = re.compile(r"(?P<stem>.+)\.data-[0-9]{5}-of-(?P<count>[0-9]{5})")


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """Names of the executors' model files. Every version has one of them, whatever tool wrote it.

    An incomplete copy of a version lacks files. Messages name the first file in `names`.
    """

    names: tuple[str, ...]

    def missing(self, version_path: Path) -> str | None:
        """Describe a file that a version lacks, as `Storage.missing` does."""
        lacks = missing_file(version_path)
        if lacks is not None:
            return lacks
        lacks = self.missing_part(VersionTree.read(version_path).names)
        if lacks and (folder := next((name for name in self.names if (version_path / name).is_dir()), "")):
            return f"{folder} is a directory, not a file"
        return lacks or None

    def missing_part(self, names: Collection[str]) -> str:
        """Describe a model's file that a version without a manifest lacks; empty for none.

        `names` are the relative names of its files, with slashes.
        """
        present = set(names)
        if not present:
            return "its directory is empty"
        if present.isdisjoint(self.names):
            return f"{self.names[0]} is missing"
        checkpoints = {(match["stem"], int(match["count"])) for match in map(_SHARD.fullmatch, present) if match}
        for stem, count in sorted(checkpoints):
            shards = (f"{stem}.data-{index:05}-of-{count:05}" for index in range(count))
            if absent := next((part for part in chain([f"{stem}.index"], shards) if part not in present), ""):
                return f"{show_name(absent)} is missing"
        return ""

    def find_version_file(self, names: Collection[str]) -> str:
        """Return the file name that marks a directory as a version, not a base path; empty for none."""
        return next((name for name in (*self.names, MANIFEST_FILE.as_posix()) if name in names), "")
