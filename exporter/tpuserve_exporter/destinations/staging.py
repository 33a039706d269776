"""Hidden directories to write versions in, the numbers of versions, and errors of a full or read-only disk.

An export holds a lock on its directory. The system releases the lock when the process ends in any way. A directory
with a free lock is therefore abandoned, also if containers with separate process numbers share a disk.
"""

import contextlib
import errno
import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from tpuserve_exporter.errors import PublishFailed
from tpuserve_exporter.options.export_options import VersionChoice

# Servers read only directories with numbers as names.
PREFIX = ".tpuserve-export-"
_LOCK = "lock"


@contextlib.contextmanager
def staging_directory(parent: Path) -> Iterator[Path]:
    """Yield a path in a hidden directory of `parent` to write a version to. Remove the directory afterwards.

    Raises PublishFailed if the directory cannot be made.
    """
    remove_abandoned(parent)
    try:
        hidden = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
    except OSError as error:
        raise PublishFailed(f"cannot write to {parent}: {error.strerror}") from error
    with contextlib.ExitStack() as cleanup:
        cleanup.callback(shutil.rmtree, hidden, ignore_errors=True)
        with contextlib.suppress(OSError):  # without lock support, no export removes the directory
            cleanup.enter_context(_locked(hidden))
        yield hidden / "version"


def remove_abandoned(parent: Path) -> None:
    """Remove the directories of ended exports in `parent`. Directories in use or of other users stay."""
    with contextlib.suppress(OSError):  # a later write reports an unreadable `parent`
        for hidden in parent.glob(f"{PREFIX}*"):
            with contextlib.suppress(OSError), (hidden / _LOCK).open("rb") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(hidden, ignore_errors=True)


@contextlib.contextmanager
def _locked(hidden: Path) -> Iterator[None]:
    """Hold the lock. The file gets its name only after locking, because a free lock means abandoned."""
    made = hidden / "taking"
    with made.open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        os.rename(made, hidden / _LOCK)
        yield


def choose_number(choice: VersionChoice, taken: list[int], now_s: float) -> int:
    """Return the number to publish as. A timestamp that is not above all taken numbers becomes the highest plus one."""
    if isinstance(choice, int):
        return choice
    following = max(taken, default=0) + 1
    return following if choice == "next" else max(int(now_s), following)


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
