"""LocalStorage: base paths on this machine's file systems."""

import os
from collections.abc import Callable, Collection
from pathlib import Path

from tpuserve_server.core.models.version_tree import VersionTree
from tpuserve_server.core.terms.errors import FailedPrecondition
from tpuserve_server.core.terms.storage import VersionLocation, index_versions, parse_version


class LocalStorage:
    """Storage that loads versions from their place and copies nothing. Keeps no state."""

    def __init__(
        self,
        missing: Callable[[Path], str | None],
        *,
        version_file: Callable[[Collection[str]], str] = lambda _names: "",
    ) -> None:
        """Use the rules of a version's files: `missing` as in Storage, for the version's directory.

        `version_file` picks, from the names in a directory, one that only a version has, or returns "".
        """
        self._missing = missing
        self._version_file = version_file

    def find_versions(self, base_path: str) -> dict[int, VersionLocation] | None:
        """Return version directories by number, or None if `base_path` is not a directory.

        Raises:
            OSError: the base path cannot be read.
        """
        folder = Path(base_path)
        if not folder.is_dir():
            return None
        with os.scandir(folder) as entries:
            names = index_versions([entry.name for entry in entries if _is_version(entry)])
        if not folder.is_dir():
            # The base path was removed during the scan, so an empty result means nothing.
            return None
        return {number: VersionLocation(str(folder / found[-1]), found[:-1]) for number, found in names.items()}

    def fingerprint(self, location: VersionLocation) -> str:
        """Return a digest of the names, sizes and times of all files, readable or not."""
        return VersionTree.read(Path(location.uri)).fingerprint

    def refusal(self, location: VersionLocation) -> str:
        """Return why the server opens no file of a version. See `VersionTree`."""
        return VersionTree.read(Path(location.uri)).refusal

    def missing(self, location: VersionLocation) -> str | None:
        """Describe what a version lacks. See `Storage.missing`."""
        return self._missing(Path(location.uri))

    def find_version_file(self, base_path: str) -> str:
        """Return a model's file that lies directly in a base path. See `Storage.find_version_file`."""
        return self._version_file(os.listdir(base_path))

    def fetch(self, location: VersionLocation) -> Path:
        """Return the directory itself.

        Raises:
            FailedPrecondition: the directory has a refusal.
        """
        if refusal := self.refusal(location):
            raise FailedPrecondition(refusal)
        return Path(location.uri)

    def release(self, path: Path) -> None:
        """Do nothing, because `fetch` copied nothing."""


def _is_version(entry: os.DirEntry[str]) -> bool:
    """Return whether an entry of a base path is a version directory, or a link that cannot be followed.

    Such a link is a version that fails to load with its reason. An error of one entry must not hide the others.
    """
    if parse_version(entry.name) is None:
        return False
    try:
        return entry.is_dir()
    except OSError:
        return True
