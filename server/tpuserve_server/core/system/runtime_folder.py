"""The private directories of a running server, and the removal of those that killed servers left behind.

A process that SIGKILL ends cannot remove its directories, which may contain a TLS key. The next start of this user
does. A lock marks a directory in use: every process that uses it holds the lock until its end, however it ends.
"""

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

_PREFIX = "tpuserve-"
_LOCK = "lock"
# Every system has this directory, and its path is short enough for the path of a UNIX socket in it.
_SHORT = "/tmp"


@dataclass(frozen=True, slots=True)
class RuntimeFolder:
    """A directory that only this user can enter. Pass `lock`, a file descriptor, to each process that uses it."""

    path: Path
    lock: int

    @classmethod
    def create(cls, *, max_path_bytes: int | None = None) -> Self:
        """Create the directory in the system's temporary one, or in /tmp if its path would be longer than the limit."""
        path = tempfile.mkdtemp(prefix=_PREFIX)
        if max_path_bytes is not None and len(os.fsencode(path)) > max_path_bytes:
            os.rmdir(path)
            path = tempfile.mkdtemp(prefix=_PREFIX, dir=_SHORT)
        # The file gets its name once it is locked. A server that starts now ignores a directory without it.
        unnamed = os.path.join(path, f"{_LOCK}.new")
        lock = os.open(unnamed, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)
        os.rename(unnamed, os.path.join(path, _LOCK))
        return cls(Path(path), lock)

    def remove(self) -> None:
        """Remove the directory with its content."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self.lock)


@contextlib.contextmanager
def runtime_folder(*, max_path_bytes: int | None = None) -> Iterator[RuntimeFolder]:
    """Yield a new directory, and remove it at the end. `max_path_bytes` as in `RuntimeFolder.create`."""
    folder = RuntimeFolder.create(max_path_bytes=max_path_bytes)
    try:
        yield folder
    finally:
        folder.remove()


def remove_stale_folders() -> list[Path]:
    """Remove the directories of this user's servers that have ended without removing them. Return their paths."""
    return [path for parent in {tempfile.gettempdir(), _SHORT} for path in _folders(parent) if _remove_stale(path)]


def folders_in_use() -> list[Path]:
    """Return the directories of this user's servers that run."""
    return [path for parent in {tempfile.gettempdir(), _SHORT} for path in _folders(parent) if _is_in_use(path)]


def _is_in_use(path: Path) -> bool:
    with _lock(path, fcntl.LOCK_SH) as is_taken:
        return is_taken is False


def _folders(parent: str) -> Iterator[Path]:
    """Yield this user's directories with the prefix. A link, or the directory of another user, is not ours."""
    with contextlib.suppress(OSError), os.scandir(parent) as entries:
        for entry in entries:
            if entry.name.startswith(_PREFIX) and entry.is_dir(follow_symlinks=False):
                with contextlib.suppress(FileNotFoundError):
                    if entry.stat(follow_symlinks=False).st_uid == os.geteuid():
                        yield Path(entry.path)


def _remove_stale(path: Path) -> bool:
    with _lock(path, fcntl.LOCK_EX) as is_taken:
        if is_taken:
            shutil.rmtree(path, ignore_errors=True)
        return bool(is_taken)


@contextlib.contextmanager
def _lock(path: Path, operation: int) -> Iterator[bool | None]:
    """Try to lock a directory without waiting, and yield whether that succeeds. None: the directory has no lock.

    It is then another program's directory, or one that another server creates or removes now.
    """
    try:
        lock = os.open(path / _LOCK, os.O_RDWR | os.O_NOFOLLOW)
    except OSError:
        yield None
        return
    is_taken = True
    try:
        try:
            fcntl.flock(lock, operation | fcntl.LOCK_NB)
        except OSError:
            is_taken = False
        yield is_taken
    finally:
        os.close(lock)
