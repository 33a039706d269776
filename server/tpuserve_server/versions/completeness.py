"""Check for missing files of a version: by its manifest, otherwise by the files that every model has."""

from pathlib import Path

from tpuserve_server.core.models.version_tree import VersionTree
from tpuserve_server.versions.manifest import missing_file
from tpuserve_server.versions.parts import MODEL_FILES, missing_part


def missing(version_path: Path) -> str | None:
    """Describe a file that a version lacks, as `Storage.missing` does."""
    lacks = missing_file(version_path)
    if lacks is not None:
        return lacks
    names = VersionTree.read(version_path).names
    lacks = missing_part(names)
    if lacks and (folder := next((name for name in MODEL_FILES if (version_path / name).is_dir()), "")):
        return f"{folder} is a directory, not a file"
    return lacks or None
