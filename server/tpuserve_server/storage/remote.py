"""RemoteStorage: base paths such as gs://bucket/models/m, whose versions are copied into a cache before they load."""

import hashlib
import logging
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tpuserve_formats.manifest import MANIFEST_FILE
from tpuserve_server.core.errors import FailedPrecondition, ServingError, Unavailable
from tpuserve_server.core.storage import VersionLocation, index_versions
from tpuserve_server.storage.cache import VersionCache
from tpuserve_server.storage.download import check_name, download
from tpuserve_server.storage.listings import Listings
from tpuserve_server.storage.object_store import ObjectStore, StoreError
from tpuserve_server.storage.objects import StoredObject
from tpuserve_server.versions.manifest import MAX_MANIFEST_BYTES, Manifest, describe_size
from tpuserve_server.versions.parts import find_version_file, missing_part

logger = logging.getLogger(__name__)

# How long the thread that polls waits for a store at a time.
_PATIENCE_S = 2.0

_UNFINISHED = f"{MANIFEST_FILE} is missing: publishing it was not finished"


@dataclass(frozen=True, slots=True)
class _Version:
    """A version as the last listing had it. Names are relative to it."""

    objects: tuple[StoredObject, ...]

    @property
    def fingerprint(self) -> str:
        digest = hashlib.sha256()
        for stored in self.objects:
            digest.update(f"{stored.name}\0{stored.size_bytes}\0{stored.tag}\n".encode(errors="surrogatepass"))
        return digest.hexdigest()

    @property
    def size_bytes(self) -> int:
        return sum(stored.size_bytes for stored in self.objects)

    @property
    def manifest(self) -> StoredObject | None:
        return next((stored for stored in self.objects if stored.name == str(MANIFEST_FILE)), None)


@dataclass(frozen=True, slots=True)
class _ManifestAt:
    """A version's manifest in its store."""

    uri: str
    store: ObjectStore
    stored: StoredObject

    def __str__(self) -> str:
        return self.uri

    def read(self) -> Manifest | None:
        """None if it is no manifest: its loading says what is wrong with it. Raises StoreError."""
        if self.stored.size_bytes > MAX_MANIFEST_BYTES:
            return None
        content = self.store.read(self.stored, 0, self.stored.size_bytes)
        try:
            return Manifest.parse(content)
        except ServingError:
            return None


class RemoteStorage:
    """Object stores by the scheme of a base path. One listing a poll serves everything that is asked of a version.

    `_stores`, `_versions` (by URI, as last listed), `_version_files` (of base paths without versions) and `_manifests`
    (by URI, beside the tag they were read at) are guarded by `_lock`.
    """

    def __init__(self, cache: VersionCache, *, patience_s: float = _PATIENCE_S) -> None:
        """Nothing is connected yet. `patience_s`: how long `find_versions` and `missing` wait for a store."""
        self._cache = cache
        self._listings: Listings[str, Sequence[StoredObject] | None] = Listings(self._look, patience_s=patience_s)
        self._manifest_reads: Listings[_ManifestAt, Manifest | None] = Listings(_ManifestAt.read, patience_s=patience_s)
        self._lock = threading.Lock()
        self._stores: dict[str, ObjectStore] = {}
        self._versions: dict[str, _Version] = {}
        self._version_files: dict[str, str] = {}
        self._manifests: dict[str, tuple[StoredObject, Manifest | None]] = {}
        self._stop = threading.Event()

    def close(self) -> None:
        """End what is being copied; it fails, and leaves nothing behind."""
        self._stop.set()

    def check_scheme(self, base_path: str) -> None:
        """Whether this server knows the store that a base path lies in; asks the store nothing.

        Raises:
            FailedPrecondition: an extra is not installed.
            InvalidArgument: there is no such scheme.
        """
        self._store(base_path)

    def find_versions(self, base_path: str) -> dict[int, VersionLocation] | None:
        """As Storage has it. One call to the store for a thousand objects; None where there are none at all: a store
        knows no empty folder, and a base path that is wrong, or was emptied by mistake, takes no model away.
        """
        base = base_path.rstrip("/")
        objects = self._listings.get(base)
        if objects is None:
            return None
        by_folder: dict[str, list[StoredObject]] = {}
        for stored in objects:
            folder, slash, name = stored.name.partition("/")
            if slash:
                by_folder.setdefault(folder, []).append(replace(stored, name=name))
        locations = {
            number: VersionLocation(f"{base}/{names[-1]}", names[:-1])
            for number, names in index_versions(by_folder).items()
        }
        found = {f"{base}/{folder}": _Version(tuple(content)) for folder, content in by_folder.items()}
        wanted = {location.uri: found[location.uri] for location in locations.values()}
        file = "" if wanted else find_version_file([stored.name for stored in objects])
        with self._lock:
            self._version_files[base] = file
            self._versions = {uri: known for uri, known in self._versions.items() if not _is_child(uri, base)} | wanted
            self._manifests = {uri: read for uri, read in self._manifests.items() if uri in self._versions}
        return locations

    def fingerprint(self, location: VersionLocation) -> str:
        """As Storage has it, of the last listing."""
        return self._version(location).fingerprint

    def missing(self, location: VersionLocation) -> str | None:
        """As Storage has it. Without a manifest, it looks for the parts that every SavedModel has.

        An object is there at once or not at all, and between two large ones a listing stands still for long.
        """
        version = self._version(location)
        if version.manifest is None:
            unfinished = _UNFINISHED if _is_unfinished(version) else ""
            return unfinished or missing_part([item.name for item in version.objects]) or None
        manifest = self._manifest(location, version.manifest)
        if manifest is None:
            return f"{MANIFEST_FILE} is not a valid manifest"
        sizes = {stored.name: stored.size_bytes for stored in version.objects}
        lacking = (describe_size(name, entry, sizes.get(name)) for name, entry in manifest.files.items())
        return next(filter(None, lacking), "")

    def find_version_file(self, base_path: str) -> str:
        """As Storage has it, of the last listing."""
        with self._lock:
            return self._version_files.get(base_path.rstrip("/"), "")

    def fetch(self, location: VersionLocation) -> Path:
        """As Storage has it: the copy in the cache, made now unless it is there."""
        try:
            version = self._version(location)
        except FileNotFoundError as error:
            raise FailedPrecondition("The version is no longer in its store") from error
        key = hashlib.sha256(f"{location.uri}\n{version.fingerprint}".encode()).hexdigest()[:32]
        name = location.uri.rpartition("/")[2]
        check_name(name)
        return self._cache.take(key, name, version.size_bytes, lambda target: self._fill(location, version, target))

    def holds(self, path: Path) -> bool:
        """Whether `path` came from this storage's `fetch`, and was not released since."""
        return self._cache.holds(path)

    def release(self, path: Path) -> None:
        """As Storage has it: the copy stays in the cache until its place is needed."""
        self._cache.release(path)

    def _fill(self, location: VersionLocation, version: _Version, target: Path) -> Mapping[str, str]:
        logger.info("Copying %s: %d files, %.1f MB", location, len(version.objects), version.size_bytes / 1e6)
        store = self._store(location.uri)
        hashes = download(store, version.objects, target, what=str(location), stop=self._stop)
        try:
            now = _Version(tuple(store.list(location.uri) or ()))
        except StoreError as error:
            logger.warning("%s cannot be listed: %s", location, error)
            raise Unavailable(f"The store failed: {error.kind}") from error
        if now.fingerprint != version.fingerprint:
            raise Unavailable("The version was changed while it was copied")
        manifest = Manifest.read(target)
        if manifest is not None:
            manifest.verify_files(target)
        elif _is_unfinished(version):
            raise FailedPrecondition(_UNFINISHED)
        return hashes

    def _version(self, location: VersionLocation) -> _Version:
        with self._lock:
            version = self._versions.get(location.uri)
        if version is None:
            raise FileNotFoundError(f"{location} is not in the store's last listing")
        return version

    def _manifest(self, location: VersionLocation, stored: StoredObject) -> Manifest | None:
        """The version's manifest, read again only when it was written again; None if it is no manifest."""
        with self._lock:
            known = self._manifests.get(location.uri)
        if known is not None and known[0] == stored:
            return known[1]
        manifest = self._manifest_reads.get(_ManifestAt(location.uri, self._store(location.uri), stored))
        with self._lock:
            self._manifests[location.uri] = (stored, manifest)
        return manifest

    def _look(self, base_path: str) -> Sequence[StoredObject] | None:
        try:
            store = self._store(base_path)
        except ServingError as error:
            raise OSError(error.message) from error
        return store.list(base_path)

    def _store(self, uri: str) -> ObjectStore:
        scheme = uri.partition("://")[0]
        with self._lock:
            store = self._stores.get(scheme)
            if store is None:
                store = self._stores[scheme] = ObjectStore(scheme)
        return store


def _is_child(uri: str, base: str) -> bool:
    return uri.rpartition("/")[0] == base


def _is_unfinished(version: _Version) -> bool:
    """Whether publishing it was begun, by our exporter, and has not ended with the manifest (docs/manifest.md)."""
    folder = f"{MANIFEST_FILE.parent.as_posix()}/"
    return version.manifest is None and any(stored.name.startswith(folder) for stored in version.objects)
