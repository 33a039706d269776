"""Check for missing files of a version: by its manifest, otherwise by the files that every model has."""

from pathlib import Path

from tpuserve_server.versions.manifest import missing_file
from tpuserve_server.versions.parts import missing_part


def missing(version_path: Path) -> str | None:
    """Describe a file that a version lacks, as `Storage.missing` does."""
    lacks = missing_file(version_path)
    if lacks is not None:
        return lacks
    files = (file for file in version_path.rglob("*") if not file.is_dir())
    return missing_part([file.relative_to(version_path).as_posix() for file in files]) or None
