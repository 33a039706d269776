"""VersionCache: copies of versions on the local disk, whole or not there at all, and never more than a bound."""

import contextlib
import fcntl
import json
import logging
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from tpuserve_server.core.errors import FailedPrecondition, ResourceExhausted
from tpuserve_server.versions.file_hash import sha256_of

logger = logging.getLogger(__name__)

# Writes a version into an empty folder; the sha256 of each file by its name below that folder.
Fill: TypeAlias = Callable[[Path], Mapping[str, str]]

_PARTIAL = ".partial"
_FLAG = "--storage_cache_max_bytes"


@dataclass(frozen=True, slots=True)
class _Entry:
    """A copy on disk, or one that is being made. `used_s` is when it was last taken."""

    path: Path
    size_bytes: int
    used_s: float
    sha256: Mapping[str, str]

    @classmethod
    def read(cls, path: Path) -> "_Entry":
        """What the entry says of itself; one that says nothing intelligible has no size and was never used."""
        try:
            record = path / "entry.json"
            said = json.loads(record.read_bytes())
            return cls(path, int(said["size_bytes"]), record.stat().st_mtime, dict(said["sha256"]))
        except (OSError, ValueError, KeyError, TypeError):
            return cls(path, 0, 0.0, {})

    def write(self) -> None:
        (self.path / "entry.json").write_text(json.dumps({"size_bytes": self.size_bytes, "sha256": {**self.sha256}}))

    def copy_path(self, name: str) -> Path:
        return self.path / "copy" / name


class VersionCache:
    """A folder of copies that several threads, and several servers on one machine, may share.

    An entry is `KEY/copy/NAME/…` beside a record of its size and hashes. It is filled under another name and renamed
    when it is whole. Locks are files': `lock` is held while entries are looked through, made and removed; an entry's
    own `in-use` is held, shared, by who has taken it, so that nobody evicts it, and exclusively by who fills it. A
    process that dies lets go of its locks, and what it was filling is cleared away by the next that looks.

    `_taken` and `_filling` are guarded by `_changed`.
    """

    def __init__(self, directory: Path, max_bytes: int) -> None:
        """Nothing is touched before the first `take`."""
        self._directory = directory
        self._max_bytes = max_bytes
        self._changed = threading.Condition()
        self._taken: dict[Path, list[int]] = {}
        self._filling: set[str] = set()

    def take(self, key: str, name: str, size_bytes: int, fill: Fill) -> Path:
        """The folder `name` of the entry `key`, filled now unless it is there and undamaged; slow.

        It stays until `release`. Of threads that want one entry, one fills it and the others wait for it.

        Raises:
            ResourceExhausted: it does not fit beside the copies in use.
            FailedPrecondition: the folder of the cache cannot be used.
            ServingError: whatever `fill` raised; nothing of it stays behind.
        """
        with self._alone(key), _disk_errors(self._directory):
            return self._take_copy(key, name) or self._make_copy(key, name, size_bytes, fill)

    def holds(self, path: Path) -> bool:
        """Whether `path` was taken and not released since."""
        with self._changed:
            return path in self._taken

    def release(self, path: Path) -> None:
        """What `take` returned is no longer needed. The copy stays until its place is."""
        with self._changed:
            held = self._taken[path]
            os.close(held.pop())
            if not held:
                del self._taken[path]

    def _take_copy(self, key: str, name: str) -> Path | None:
        with self._locked():
            entry = _Entry.read(self._directory / key)
            if not entry.sha256:
                return None
            descriptor = _lock(entry.path, fcntl.LOCK_SH)
        if descriptor is None:
            return None
        if _is_undamaged(entry, name):
            os.utime(entry.path / "entry.json")
            return self._hold(entry.copy_path(name), descriptor)
        os.close(descriptor)
        logger.warning("A copy in the storage cache is damaged, and is made anew: %s", entry.path)
        with self._locked():
            if not _remove(entry.path):
                raise FailedPrecondition("The copy in the storage cache is damaged, and in use")
        return None

    def _make_copy(self, key: str, name: str, size_bytes: int, fill: Fill) -> Path:
        with self._locked():
            self._make_room(size_bytes)
            partial = Path(tempfile.mkdtemp(prefix=f"{key}.", suffix=_PARTIAL, dir=self._directory))
            descriptor = _lock(partial, fcntl.LOCK_EX)
            _Entry(partial, size_bytes, 0.0, {}).write()
        if descriptor is None:
            raise FailedPrecondition("The storage cache cannot be locked")
        try:
            copy = _Entry(partial, size_bytes, 0.0, {}).copy_path(name)
            copy.mkdir(parents=True)
            _Entry(partial, size_bytes, 0.0, fill(copy)).write()
            with self._locked():
                entry = self._publish(partial, key)
                # From exclusive to shared is two steps: nobody may evict the entry between them.
                fcntl.flock(descriptor, fcntl.LOCK_SH)
        except BaseException:
            os.close(descriptor)
            shutil.rmtree(partial, ignore_errors=True)
            raise
        return self._hold(entry / "copy" / name, descriptor)

    def _publish(self, partial: Path, key: str) -> Path:
        """Give the whole copy its name. A copy that another server has made in the meantime makes way, or stays."""
        entry = self._directory / key
        if entry.exists() and not _remove(entry):
            # In use there: this one serves under the name it has, and is cleared away when it is released.
            return partial
        return partial.rename(entry)

    def _make_room(self, size_bytes: int) -> None:
        if size_bytes > self._max_bytes:
            raise ResourceExhausted(
                f"The version has {size_bytes} bytes, more than the storage cache may hold: {self._max_bytes} ({_FLAG})"
            )
        entries = sorted(
            (_Entry.read(path) for path in self._directory.iterdir() if path.is_dir()),
            # What a dead process left behind goes first.
            key=lambda entry: (not entry.path.name.endswith(_PARTIAL), entry.used_s),
        )
        held = sum(entry.size_bytes for entry in entries)
        for entry in entries:
            if held + size_bytes > self._max_bytes or entry.path.name.endswith(_PARTIAL):
                held -= entry.size_bytes if _remove(entry.path) else 0
        if held + size_bytes > self._max_bytes:
            raise ResourceExhausted(
                f"The version has {size_bytes} bytes, and {held} of the storage cache's {self._max_bytes} are taken by "
                f"versions that are in use ({_FLAG})"
            )

    def _hold(self, path: Path, descriptor: int) -> Path:
        with self._changed:
            self._taken.setdefault(path, []).append(descriptor)
        return path

    @contextlib.contextmanager
    def _alone(self, key: str) -> Iterator[None]:
        """One thread of this process at a time for each entry."""
        with self._changed:
            self._changed.wait_for(lambda: key not in self._filling)
            self._filling.add(key)
        try:
            yield
        finally:
            with self._changed:
                self._filling.remove(key)
                self._changed.notify_all()

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """One of all servers and threads at a time."""
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        with (self._directory / "lock").open("wb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


def _lock(entry: Path, kind: int) -> int | None:
    """A descriptor that holds the entry until it is closed; None if others hold it against that."""
    descriptor = os.open(entry / "in-use", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def _remove(entry: Path) -> bool:
    """Remove an entry that nobody holds; False if somebody does. With the cache locked."""
    descriptor = _lock(entry, fcntl.LOCK_EX)
    if descriptor is None:
        return False
    shutil.rmtree(entry, ignore_errors=True)
    os.close(descriptor)
    return not entry.exists()


def _is_undamaged(entry: _Entry, name: str) -> bool:
    """Whether every file is as it was when it was copied: a machine may have lost its power since. Reads them all."""
    try:
        return all(sha256_of(entry.copy_path(name) / file) == digest for file, digest in entry.sha256.items())
    except OSError:
        return False


@contextlib.contextmanager
def _disk_errors(directory: Path) -> Iterator[None]:
    """An OSError names a path, which is for the log alone."""
    try:
        yield
    except OSError as error:
        logger.error("The storage cache in %s cannot be used: %s", directory, error)
        raise FailedPrecondition(f"The storage cache cannot be used: {_reason(error)}") from error


def _reason(error: OSError) -> Any:  # noqa: ANN401 - strerror is typed so
    return error.strerror or type(error).__name__
