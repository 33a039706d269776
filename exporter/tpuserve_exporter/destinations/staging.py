"""Creates hidden directories to write versions in, and removes those of exports that were killed.

An export holds a lock on its directory. The system releases the lock when the process ends in any way. A directory
with a free lock is therefore abandoned, also if containers with separate process numbers share a disk.
"""

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tpuserve_exporter.errors import PublishFailed

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
