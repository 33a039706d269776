"""Download of a version's objects to the local disk: ranges in parallel, verified with the store's hashes."""

import hashlib
import logging
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from pathlib import Path, PurePosixPath
from typing import Any, Protocol

from tpuserve_server.core.terms.errors import DataLoss, FailedPrecondition, ServingError, Unavailable
from tpuserve_server.storage.object_store import StoredObject, StoreError

logger = logging.getLogger(__name__)

# At most this many ranges of this size are in memory at a time.
_PARALLEL = 8
_RANGE_BYTES = 8 * 2**20
_BLOCK_BYTES = 2**20
_PROGRESS_S = 10.0


class DamagedCopy(DataLoss):
    """The copy is not the store's object. The object may be intact, so another copy may be too."""

    may_pass = True


class Store(Protocol):
    """Methods of a store that a download needs; see ObjectStore."""

    def read(self, stored: StoredObject, start: int, end: int) -> bytes: ...

    def has_md5(self, stored: StoredObject) -> bool: ...


def download(
    store: Store, objects: Sequence[StoredObject], target: Path, *, what: str, stop: threading.Event
) -> dict[str, str]:
    """Copy `objects` into the empty directory `target`, and return the sha256 of each by name.

    Blocks; `stop` ends the download soon.

    Raises:
        FailedPrecondition: a name leads out of the directory, or is both a file and a directory.
        DamagedCopy: the copied data does not match the store's size or hash.
        Unavailable: the store failed, or `stop` was set.
    """
    try:
        for stored in objects:
            _create(target, stored)
    except (FileExistsError, NotADirectoryError, IsADirectoryError) as error:
        raise FailedPrecondition("An object has the same name as a directory") from error
    with ThreadPoolExecutor(_PARALLEL, thread_name_prefix="copy") as pool:
        ranges = [
            pool.submit(_copy_range, store, stored, target, start, stop)
            for stored in objects
            for start in range(0, stored.size_bytes, _RANGE_BYTES)
        ]
        _follow(ranges, sum(stored.size_bytes for stored in objects), what, pool)
        hashes = [pool.submit(_verify, store, stored, target, stop) for stored in objects]
        _follow(hashes, 0, what, pool)
        return {stored.name: future.result() for stored, future in zip(objects, hashes, strict=True)}


def check_name(name: str) -> None:
    """Refuse an object's name that would lead out of the target directory, or to another name.

    Raises:
        FailedPrecondition: the name has an empty part, or a part such as `..`.
    """
    if "\0" in name or any(part in ("", ".", "..") for part in name.split("/")):
        raise FailedPrecondition(f"The object's name {name!r} is outside the version directory")


def _create(target: Path, stored: StoredObject) -> None:
    check_name(stored.name)
    path = target / PurePosixPath(stored.name)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("xb") as file:
        file.truncate(stored.size_bytes)


def _copy_range(store: Store, stored: StoredObject, target: Path, start: int, stop: threading.Event) -> int:
    if stop.is_set():
        raise Unavailable("The server is stopping")
    end = min(start + _RANGE_BYTES, stored.size_bytes)
    try:
        content = store.read(stored, start, end)
    except StoreError as error:
        raise _unavailable(stored, error) from error
    if len(content) != end - start:
        raise DamagedCopy(f"{stored.name} became shorter while the server copied it")
    with (target / stored.name).open("r+b") as file:
        file.seek(start)
        file.write(content)
    return len(content)


def _follow(futures: Sequence[Future[Any]], total_bytes: int, what: str, pool: ThreadPoolExecutor) -> None:
    """Wait for all futures and log the progress of a copy. The first failure cancels the rest."""
    waiting: set[Future[Any]] = set(futures)
    copied = 0
    while waiting:
        done, waiting = wait(waiting, timeout=_PROGRESS_S, return_when=FIRST_EXCEPTION)
        for future in done:
            if (error := future.exception()) is not None:
                pool.shutdown(wait=True, cancel_futures=True)
                # Raise a copy, because the future's error would keep its frames alive.
                raise error.copy() if isinstance(error, ServingError) else error
        if waiting and total_bytes:
            copied += sum(future.result() for future in done)
            logger.info("Copying %s: %.1f of %.1f MB", what, copied / 1e6, total_bytes / 1e6)


def _verify(store: Store, stored: StoredObject, target: Path, stop: threading.Event) -> str:
    """Check the copy's MD5 and CRC32C against the store's, and return its sha256."""
    sha256, md5 = hashlib.sha256(), hashlib.md5(usedforsecurity=False)
    crc32c = _crc32c(stored)
    for block in _blocks(target / stored.name):
        if stop.is_set():
            raise Unavailable("The server is stopping")
        sha256.update(block)
        if stored.md5 is not None:
            md5.update(block)
        if crc32c is not None:
            crc32c.update(block)
    if crc32c is not None and crc32c.digest() != stored.crc32c:
        raise DamagedCopy(f"{stored.name} is corrupt: its CRC32C is not the store's")
    if stored.md5 is not None and md5.digest() != stored.md5 and _has_md5(store, stored):
        raise DamagedCopy(f"{stored.name} is corrupt: its MD5 is {md5.hexdigest()}, the store has {stored.md5.hex()}")
    return sha256.hexdigest()


def _has_md5(store: Store, stored: StoredObject) -> bool:
    try:
        return store.has_md5(stored)
    except StoreError as error:
        raise _unavailable(stored, error) from error


def _unavailable(stored: StoredObject, error: StoreError) -> Unavailable:
    logger.warning("Cannot copy %s: %s", stored.key, error)
    return Unavailable(f"Cannot copy {stored.name} from its store: {error.kind}")


def _crc32c(stored: StoredObject) -> Any:  # noqa: ANN401 - google_crc32c has no types
    """Return a CRC32C checksum, or None if it is not needed or not available."""
    if stored.crc32c is None:
        return None
    try:
        # A dependency of gcsfs. Only GCS reports CRC32C.
        import google_crc32c
    except ImportError:
        return None
    return google_crc32c.Checksum()


def _blocks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            yield block
