"""The folder of a run, which removes the sources and versions of the run before."""

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path


class InUse(Exception):
    """Another run has the folder."""


@contextlib.contextmanager
def hold(folder: Path) -> Iterator[None]:
    """Keep other runs out of a folder, which is made if need be. Raises InUse at once if another run has it."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        try:
            # The kernel releases it however the process ends.
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InUse(f"another run uses {folder}") from None
        yield
