"""The directory of a run, which deletes the previous run's sources and versions."""

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path


class InUse(Exception):
    """Another run uses the directory."""


@contextlib.contextmanager
def hold(folder: Path) -> Iterator[None]:
    """Lock a directory against other runs, and create it if needed. Raises InUse at once if another run uses it."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        try:
            # The kernel releases the lock when the process ends for any reason.
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InUse(f"Another run uses {folder}.") from None
        yield
