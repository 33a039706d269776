"""Hidden directories to write versions in, and cleaning up those of exports that were killed.

An export holds a lock on its directory for as long as it lives; the system lets go of it, however the process ends. A
directory whose lock is free is nobody's, also where containers with process numbers of their own share a disk.
"""

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tpuserve_exporter.errors import PublishFailed

# Servers read numbers only.
PREFIX = ".tpuserve-export-"
_LOCK = "lock"


@contextlib.contextmanager
def staging_directory(parent: Path) -> Iterator[Path]:
    """A path, in a hidden directory of `parent`, to write a version to. Whatever is left of it afterwards is removed.

    Raises PublishFailed where it cannot be made.
    """
    remove_abandoned(parent)
    try:
        hidden = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
    except OSError as error:
        raise PublishFailed(f"cannot write to {parent}: {error.strerror}") from error
    with contextlib.ExitStack() as cleanup:
        cleanup.callback(shutil.rmtree, hidden, ignore_errors=True)
        with contextlib.suppress(OSError):  # a file system without locks: nobody will think it abandoned
            cleanup.enter_context(_held(hidden))
        yield hidden / "version"


def remove_abandoned(parent: Path) -> None:
    """Remove what exports that are no more have left in `parent`; what is in use, or another's to remove, stays."""
    with contextlib.suppress(OSError):  # `parent` itself may not be readable: whoever writes to it says so
        for hidden in parent.glob(f"{PREFIX}*"):
            with contextlib.suppress(OSError), (hidden / _LOCK).open("rb") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(hidden, ignore_errors=True)


@contextlib.contextmanager
def _held(hidden: Path) -> Iterator[None]:
    """The lock appears under its name once it is held: until then it would look abandoned."""
    made = hidden / "taking"
    with made.open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        os.rename(made, hidden / _LOCK)
        yield
