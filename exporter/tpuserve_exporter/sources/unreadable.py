"""Reports files and directories of a source that the operating system refuses to read."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from tpuserve_exporter.errors import SourceUnreadable


@contextlib.contextmanager
def source_errors(source: Path) -> Iterator[None]:
    """Turn an OSError of the body into SourceUnreadable if it names the source, or a file in it or next to it."""
    try:
        yield
    except OSError as error:
        if not isinstance(error.filename, str) or not _belongs(Path(error.filename), source):
            raise
        raise unreadable(Path(error.filename), error) from error


def unreadable(path: Path, error: OSError) -> SourceUnreadable:
    """Return the failure for a path that cannot be read, with a hint if permissions are missing."""
    reason = error.strerror or str(error)
    hint = ". Give the exporting user permission to read it" if isinstance(error, PermissionError) else ""
    return SourceUnreadable(f"cannot read {path}: {reason}{hint}")


def _belongs(path: Path, source: Path) -> bool:
    """Return whether `path` is the source, or is in it or next to it, as the files of a checkpoint are."""
    return path == source or path.is_relative_to(source) or path.parent == source.parent
