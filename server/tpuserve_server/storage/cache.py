"""VersionCache: complete copies of versions on the local disk, up to a maximum size."""

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
from typing import TypeAlias

from tpuserve_server.core.terms.errors import FailedPrecondition, ResourceExhausted, Unavailable, file_error
from tpuserve_server.versions.manifest import sha256_of

logger = logging.getLogger(__name__)

# Writes a version into an empty directory, and returns the sha256 of each file by its name relative to the directory.
Fill: TypeAlias = Callable[[Path], Mapping[str, str]]

_PARTIAL = ".partial"
_FLAG = "--storage_cache_max_bytes"


@dataclass(frozen=True, slots=True)
class _Entry:
    """Copy on disk, complete or in progress. `used_s` is the Unix time of its last use."""

    path: Path
    size_bytes: int
    used_s: float
    sha256: Mapping[str, str]

    @classmethod
    def read(cls, path: Path) -> "_Entry":
        """Read the entry's record. An entry with an unreadable record has size 0 and was never used."""
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
    """Directory of copies that several threads, and several servers on one machine, may share.

    An entry is `KEY/copy/NAME/…` with a record of its size and hashes. It is filled under another name, and renamed
    when it is complete.

    The locks are file locks. A server holds `lock` while it lists, creates or removes entries. Each entry also has a
    lock `in-use`. Users of the copy hold it shared, so that no server evicts the entry; the thread that fills the entry
    holds it exclusively. A process that dies releases its locks. The next server that makes a copy removes its
    unfinished entries.

    `_changed` guards `_in_use` and `_filling`.
    """

    def __init__(self, directory: Path, max_bytes: int) -> None:
        """Configure the cache. The first `take` creates the directory."""
        self._directory = directory
        self._max_bytes = max_bytes
        self._changed = threading.Condition()
        self._in_use: dict[Path, list[int]] = {}
        self._filling: set[str] = set()

    def take(self, key: str, name: str, size_bytes: int, fill: Fill) -> Path:
        """Return the directory `name` of the entry `key`. A missing or damaged entry is filled first. Slow.

        The copy stays until `release`. If several threads take a missing entry, one fills it and the others wait.

        Raises:
            ResourceExhausted: the copy does not fit next to the copies in use.
            FailedPrecondition: the copy is larger than the cache, or the directory of the cache cannot be used.
            Unavailable: the cache cannot be used now.
            ServingError: an error of `fill`. The unfinished copy is removed.
        """
        with self._exclusive(key), _disk_errors(self._directory):
            return self._take_copy(key, name) or self._make_copy(key, name, size_bytes, fill)

    def holds(self, path: Path) -> bool:
        """Return whether `path` is taken and not released."""
        with self._changed:
            return path in self._in_use

    def release(self, path: Path) -> None:
        """Release a path from `take`. The copy stays until its space is needed."""
        with self._changed:
            descriptors = self._in_use[path]
            os.close(descriptors.pop())
            if not descriptors:
                del self._in_use[path]

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
        logger.warning("A copy in the storage cache is damaged. The server copies it again: %s", entry.path)
        with self._locked():
            if not _remove(entry.path):
                raise Unavailable("The copy in the storage cache is damaged and in use")
        return None

    def _make_copy(self, key: str, name: str, size_bytes: int, fill: Fill) -> Path:
        with self._locked():
            self._make_room(size_bytes)
            partial = Path(tempfile.mkdtemp(prefix=f"{key}.", suffix=_PARTIAL, dir=self._directory))
            descriptor = _lock(partial, fcntl.LOCK_EX)
            _Entry(partial, size_bytes, 0.0, {}).write()
        if descriptor is None:
            raise Unavailable("The storage cache cannot be locked")
        try:
            copy = _Entry(partial, size_bytes, 0.0, {}).copy_path(name)
            copy.mkdir(parents=True)
            _Entry(partial, size_bytes, 0.0, fill(copy)).write()
            with self._locked():
                entry = self._publish(partial, key)
                # The change from exclusive to shared has two steps. The cache's lock prevents an eviction between them.
                fcntl.flock(descriptor, fcntl.LOCK_SH)
        except BaseException:
            os.close(descriptor)
            shutil.rmtree(partial, ignore_errors=True)
            raise
        return self._hold(entry / "copy" / name, descriptor)

    def _publish(self, partial: Path, key: str) -> Path:
        """Give the complete copy its name. An older copy of another server is removed, or stays if it is in use."""
        entry = self._directory / key
        if entry.exists() and not _remove(entry):
            # The other copy is in use. This copy keeps its temporary name, and is removed after its release.
            return partial
        return partial.rename(entry)

    def _make_room(self, size_bytes: int) -> None:
        if size_bytes > self._max_bytes:
            raise FailedPrecondition(
                f"The version has {size_bytes} bytes, more than the limit of the storage cache: {self._max_bytes} "
                f"({_FLAG})"
            )
        entries = sorted(
            (_Entry.read(path) for path in self._directory.iterdir() if path.is_dir()),
            # Leftovers of dead processes go first.
            key=lambda entry: (not entry.path.name.endswith(_PARTIAL), entry.used_s),
        )
        used_bytes = sum(entry.size_bytes for entry in entries)
        for entry in entries:
            if used_bytes + size_bytes > self._max_bytes or entry.path.name.endswith(_PARTIAL):
                used_bytes -= entry.size_bytes if _remove(entry.path) else 0
        if used_bytes + size_bytes > self._max_bytes:
            raise ResourceExhausted(
                f"The version has {size_bytes} bytes, and {used_bytes} of the storage cache's {self._max_bytes} are "
                f"used by versions that are in use ({_FLAG})"
            )

    def _hold(self, path: Path, descriptor: int) -> Path:
        with self._changed:
            self._in_use.setdefault(path, []).append(descriptor)
        return path

    @contextlib.contextmanager
    def _exclusive(self, key: str) -> Iterator[None]:
        """Admit one thread of this process at a time for each entry."""
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
        """Admit one thread of all servers at a time."""
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        with (self._directory / "lock").open("wb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


def _lock(entry: Path, kind: int) -> int | None:
    """Return a descriptor that locks the entry until it is closed, or None if another lock conflicts."""
    descriptor = os.open(entry / "in-use", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def _remove(entry: Path) -> bool:
    """Remove an unused entry, and return whether it is gone. The caller holds the cache's lock."""
    descriptor = _lock(entry, fcntl.LOCK_EX)
    if descriptor is None:
        return False
    shutil.rmtree(entry, ignore_errors=True)
    os.close(descriptor)
    return not entry.exists()


def _is_undamaged(entry: _Entry, name: str) -> bool:
    """Return whether all files have their recorded hashes. Reads them all, because a power failure can damage them."""
    try:
        return all(sha256_of(entry.copy_path(name) / file) == digest for file, digest in entry.sha256.items())
    except OSError:
        return False


@contextlib.contextmanager
def _disk_errors(directory: Path) -> Iterator[None]:
    """Replace an OSError by an error without the path, which only the log may show."""
    try:
        yield
    except OSError as error:
        logger.error("The storage cache in %s cannot be used: %s", directory, error)
        raise file_error("The storage cache cannot be used", error) from error
