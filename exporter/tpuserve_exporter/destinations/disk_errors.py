"""What a disk that is full, or may not be written, comes to: said with how much was needed, whoever ran into it."""

import contextlib
import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from tpuserve_exporter.errors import PublishFailed

_FULL = {
    errno.ENOSPC: "no space is left there",
    errno.EDQUOT: "the quota is used up",
    errno.EFBIG: "a file may not be that large (ulimit -f)",
}


@contextlib.contextmanager
def disk_errors(staged: Path, place: str, needed_bytes: Callable[[], int]) -> Iterator[None]:
    """While the body writes to `staged`, turn errors of the disk into PublishFailed, also where a library wrapped them.

    `place` is what users call where it lies; `needed_bytes` estimates the version's size.
    """
    try:
        yield
    except Exception as error:
        if (full := _find_full(error)) is not None:
            written = _size(staged)
            needed = max(needed_bytes(), written)
            raise PublishFailed(
                f"cannot write to {place}: {full}. The version takes at least {_in_words(needed)}, and "
                f"{_in_words(written)} of it could be written"
            ) from error
        if isinstance(error, OSError) and str(error.filename or "").startswith(str(staged)):
            raise PublishFailed(f"cannot write to {place}: {error.strerror}") from error
        raise


@contextlib.contextmanager
def temporary_disk_errors() -> Iterator[None]:
    """While the body unpacks a source where temporary files go: PublishFailed, where that is full."""
    try:
        yield
    except Exception as error:
        if (full := _find_full(error)) is not None:
            raise PublishFailed(
                f"cannot unpack the source in the temporary directory: {full}. Name another one, TMPDIR=DIRECTORY"
            ) from error
        raise


def _find_full(error: BaseException | None) -> str | None:
    """TensorFlow's errors have the system's words for it in their text, and shutil's in a list."""
    while error is not None:
        for number, said in _FULL.items():
            if (isinstance(error, OSError) and error.errno == number) or os.strerror(number) in str(error):
                return said
        error = error.__cause__ or error.__context__
    return None


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _in_words(size_bytes: int) -> str:
    return f"{size_bytes / 1e6:.1f} MB" if size_bytes >= 1e6 else f"{size_bytes / 1e3:.1f} kB"
