"""DirectoryListings: one listing for many base paths in the same directory of a store."""

import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Final

from tpuserve_server.core.terms.errors import ServingError
from tpuserve_server.storage.listings import Listings, StoreUnavailable
from tpuserve_server.storage.object_store import StoredObject, store_of

# Fewest base paths in one directory that are listed together.
_FEWEST: Final = 4
# Base paths for each page of a listing. The source lists as many base paths at the same time, so that a listing of the
# directory takes no longer than listings of its base paths.
_BASE_PATHS_OF_PAGE: Final = 32
_PAGE: Final = 1000
# Number of directories that are listed at the same time, and the maximum time in seconds to wait for each.
_PARALLEL: Final = 8
_PATIENCE_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class Prepared:
    """The objects below a base path, or None if there are none."""

    objects: Sequence[StoredObject] | None


@dataclass(frozen=True, slots=True)
class _Directory:
    """Directory, and the largest number of objects for which its listing is worthwhile."""

    uri: str
    most_objects: int

    def __str__(self) -> str:
        return self.uri

    def list(self) -> Mapping[str, list[StoredObject]] | None:
        """Return the objects of each base path by its name, or None if there are too many. Raises StoreError."""
        objects = store_of(self.uri).list(self.uri, self.most_objects) or []
        return None if len(objects) > self.most_objects else group_by_folder(objects)


class DirectoryListings:
    """Listings of directories, each kept for one query of each of its base paths. Thread-safe.

    A directory with too many other objects is not listed again before it has twice as many base paths. `_crowded` holds
    the number of them. `_lock` guards the fields.
    """

    def __init__(self) -> None:
        self._listings: Listings[_Directory, Mapping[str, list[StoredObject]] | None] = Listings(
            _Directory.list, patience_s=_PATIENCE_S
        )
        self._lock = threading.Lock()
        self._prepared: dict[str, Prepared] = {}
        self._crowded: dict[str, int] = {}

    def prepare(self, base_paths: Sequence[str]) -> None:
        """List each directory that has several of the base paths. Blocks. A failure has no effect."""
        by_directory: dict[str, list[str]] = {}
        for base_path in base_paths:
            by_directory.setdefault(base_path.rpartition("/")[0], []).append(base_path)
        with self._lock:
            worthwhile = [
                (uri, bases)
                for uri, bases in by_directory.items()
                if len(bases) >= max(_FEWEST, 2 * self._crowded.get(uri, 0)) and not uri.endswith("/")
            ]
        if worthwhile:
            with ThreadPoolExecutor(_PARALLEL, thread_name_prefix="storage-directories") as pool:
                list(pool.map(self._prepare, *zip(*worthwhile, strict=True)))

    def take(self, base_path: str) -> Prepared | None:
        """Return and forget the objects of a base path, or return None if they are not prepared."""
        with self._lock:
            return self._prepared.pop(base_path, None)

    def _prepare(self, uri: str, base_paths: Sequence[str]) -> None:
        pages = max(len(base_paths) // _BASE_PATHS_OF_PAGE, 1)
        try:
            if not store_of(uri).lists_pages:
                return
            found = self._listings.get(_Directory(uri, pages * _PAGE))
        except (StoreUnavailable, ServingError):
            # The query of each base path reports the reason.
            return
        with self._lock:
            if found is None:
                self._crowded[uri] = len(base_paths)
            else:
                self._prepared.update((path, Prepared(found.get(path.rpartition("/")[2]))) for path in base_paths)


def group_by_folder(objects: Sequence[StoredObject]) -> dict[str, list[StoredObject]]:
    """Return the objects by the first directory of their names, with names relative to it."""
    found: dict[str, list[StoredObject]] = {}
    for stored in objects:
        folder, slash, name = stored.name.partition("/")
        if slash:
            found.setdefault(folder, []).append(replace(stored, name=name))
    return found
