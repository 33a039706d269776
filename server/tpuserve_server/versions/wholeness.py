"""Whether a version's folder is whole, and what it lacks: by its manifest, else by the files that every model has."""

from pathlib import Path

from tpuserve_server.versions import manifest
from tpuserve_server.versions.parts import missing_part


def is_whole(version_path: Path) -> bool | None:
    """False when something is known to be missing; None when nothing is, but no manifest says that all is there."""
    missing = manifest.missing_file(version_path)
    if missing is None:
        return False if missing_part(_names(version_path)) else None
    return not missing


def missing(version_path: Path) -> str:
    """What it lacks, without the folder's name; empty for nothing that is known."""
    lacks = manifest.missing_file(version_path)
    return missing_part(_names(version_path)) if lacks is None else lacks


def _names(version_path: Path) -> list[str]:
    return [file.relative_to(version_path).as_posix() for file in version_path.rglob("*") if not file.is_dir()]
