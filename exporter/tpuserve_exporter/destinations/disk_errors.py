"""Reports a full or read-only disk as PublishFailed, with the space that the version needs."""

import contextlib
import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from tpuserve_exporter.errors import PublishFailed

_FULL = {
    errno.ENOSPC: "no space is left on the disk",
    errno.EDQUOT: "the disk quota is used up",
    errno.EFBIG: "the file is larger than the limit (ulimit -f)",
}


@contextlib.contextmanager
def disk_errors(staged: Path, place: str, needed_bytes: Callable[[], int]) -> Iterator[None]:
    """Turn disk errors into PublishFailed while the body writes to `staged`, also if a library wrapped them.

    `place` is the place's name for users. `needed_bytes` estimates the version's size.
    """
    try:
        yield
    except Exception as error:
        if (full := _find_full(error)) is not None:
            written = _size(staged)
            needed = max(needed_bytes(), written)
            raise PublishFailed(
                f"cannot write to {place}: {full}. The version needs at least {_in_words(needed)}, and "
                f"{_in_words(written)} could be written"
            ) from error
        if isinstance(error, OSError) and str(error.filename or "").startswith(str(staged)):
            raise PublishFailed(f"cannot write to {place}: {error.strerror}") from error
        raise


@contextlib.contextmanager
def temporary_disk_errors() -> Iterator[None]:
    """Raise PublishFailed if the temporary directory is full while the body unpacks a source there."""
    try:
        yield
    except Exception as error:
        if (full := _find_full(error)) is not None:
            raise PublishFailed(
                f"cannot unpack the source in the temporary directory: {full}. Set TMPDIR to another directory"
            ) from error
        raise


def _find_full(error: BaseException | None) -> str | None:
    """Return the message for a full disk, or None. Errors of TensorFlow and shutil have the system's text in theirs."""
    while error is not None:
        for number, reason in _FULL.items():
            if (isinstance(error, OSError) and error.errno == number) or os.strerror(number) in str(error):
                return reason
        error = error.__cause__ or error.__context__
    return None


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _in_words(size_bytes: int) -> str:
    return f"{size_bytes / 1e6:.1f} MB" if size_bytes >= 1e6 else f"{size_bytes / 1e3:.1f} kB"
