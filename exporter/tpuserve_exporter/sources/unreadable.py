"""Files and directories of a source that the operating system refuses to read."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from tpuserve_exporter.errors import SourceUnreadable


@contextlib.contextmanager
def source_errors(source: Path) -> Iterator[None]:
    """Raise SourceUnreadable for an OSError of the body that names the source, or a file in or beside it."""
    try:
        yield
    except OSError as error:
        if not isinstance(error.filename, str) or not _belongs(Path(error.filename), source):
            raise
        raise unreadable(Path(error.filename), error) from error


def unreadable(path: Path, error: OSError) -> SourceUnreadable:
    """The failure for a path that cannot be read, with what to do where permissions are missing."""
    reason = error.strerror or str(error)
    hint = ". Give the user that exports permission to read it" if isinstance(error, PermissionError) else ""
    return SourceUnreadable(f"cannot read {path}: {reason}{hint}")


def _belongs(path: Path, source: Path) -> bool:
    """A checkpoint's files lie beside its prefix."""
    return path == source or path.is_relative_to(source) or path.parent == source.parent
