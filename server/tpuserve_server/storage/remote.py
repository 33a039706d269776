"""RemoteStorage: base paths such as gs://bucket/models/m, whose versions are copied into a cache before they load."""

import hashlib
import logging
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tpuserve_formats.manifest import MANIFEST_FILE
from tpuserve_server.core.models.local_storage import MAX_DEPTH, MAX_ENTRIES
from tpuserve_server.core.terms.errors import FailedPrecondition, ServingError, Unavailable
from tpuserve_server.core.terms.storage import VersionLocation, index_versions, show_name
from tpuserve_server.storage.cache import VersionCache
from tpuserve_server.storage.directory_listings import DirectoryListings, group_by_folder
from tpuserve_server.storage.download import check_name, download
from tpuserve_server.storage.listings import Listings
from tpuserve_server.storage.object_store import ObjectStore, StoredObject, StoreError, store_of
from tpuserve_server.versions.completeness import ModelFiles
from tpuserve_server.versions.manifest import MAX_MANIFEST_BYTES, Manifest, describe_size

logger = logging.getLogger(__name__)

# Maximum time in seconds that a polling thread waits for one listing.
_PATIENCE_S: Final = 2.0

_UNFINISHED = f"{MANIFEST_FILE} is missing, because the version was not published completely"


@dataclass(frozen=True, slots=True)
class _Version:
    """Version in the last listing. Names are relative to the version."""

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
    def changed_unix_s(self) -> float | None:
        times = [stored.written_unix_s for stored in self.objects if stored.written_unix_s is not None]
        return max(times) if times and len(times) == len(self.objects) else None

    @property
    def refusal(self) -> str:
        if len(self.objects) > MAX_ENTRIES:
            return f"the version has {len(self.objects)} objects; the limit is {MAX_ENTRIES}"
        deep = next((one.name for one in self.objects if one.name.count("/") > MAX_DEPTH), "")
        return f"{show_name(deep)} is nested in more than {MAX_DEPTH} directories" if deep else ""

    @property
    def manifest(self) -> StoredObject | None:
        return next((stored for stored in self.objects if stored.name == str(MANIFEST_FILE)), None)


@dataclass(slots=True)
class _BasePath:
    """Base path as last listed: its versions by URI, and the file that makes it a version itself, or "".

    `manifests` are those that were read, by the URI of the version, with the listed object.
    """

    versions: Mapping[str, _Version]
    version_file: str
    manifests: dict[str, tuple[StoredObject, Manifest | None]]


@dataclass(frozen=True, slots=True)
class _ManifestAt:
    """Location of a version's manifest in its store."""

    uri: str
    store: ObjectStore
    stored: StoredObject

    def __str__(self) -> str:
        return self.uri

    def read(self) -> Manifest | None:
        """Read the manifest, or return None if it is invalid: the load reports the reason. Raises StoreError."""
        if self.stored.size_bytes > MAX_MANIFEST_BYTES:
            return None
        content = self.store.read(self.stored, 0, self.stored.size_bytes)
        try:
            return Manifest.parse(content)
        except ServingError:
            return None


class RemoteStorage:
    """Storage in object stores, by the scheme of a base path. One listing per poll serves all queries about a version.

    `_lock` guards `_base_paths` (by URI).
    """

    def __init__(self, cache: VersionCache, model_files: ModelFiles, *, patience_s: float = _PATIENCE_S) -> None:
        """Create the storage without connecting. `patience_s`: maximum wait of `find_versions` and `missing`."""
        self._cache = cache
        self._model_files = model_files
        self._listings: Listings[str, Sequence[StoredObject] | None] = Listings(
            self._list_objects, patience_s=patience_s
        )
        self._manifest_reads: Listings[_ManifestAt, Manifest | None] = Listings(_ManifestAt.read, patience_s=patience_s)
        self._directories = DirectoryListings()
        self._lock = threading.Lock()
        self._base_paths: dict[str, _BasePath] = {}
        self._stop = threading.Event()

    def close(self) -> None:
        """Stop the copies in progress. They fail and are removed."""
        self._stop.set()

    def check_scheme(self, base_path: str) -> None:
        """Check that this server supports the base path's scheme, without querying the store.

        Raises:
            FailedPrecondition: an extra is not installed.
            InvalidArgument: the scheme is unknown.
        """
        store_of(base_path)

    def prepare(self, base_paths: Sequence[str]) -> None:
        """List base paths in the same directory together, for the next `find_versions` of each. See DirectoryListings.

        Blocks. Raises nothing.
        """
        self._directories.prepare([base_path.rstrip("/") for base_path in base_paths])

    def find_versions(self, base_path: str) -> dict[int, VersionLocation] | None:
        """Implement Storage.find_versions, with one call to the store per thousand objects.

        Returns None if there are no objects, because a store has no empty directories. A base path that is wrong, or
        was emptied by mistake, therefore unloads no model.
        """
        base = base_path.rstrip("/")
        prepared = self._directories.take(base)
        objects = self._listings.get(base) if prepared is None else prepared.objects
        if objects is None:
            return None
        by_folder = group_by_folder(objects)
        locations = {
            number: VersionLocation(f"{base}/{names[-1]}", names[:-1])
            for number, names in index_versions(by_folder).items()
        }
        found = {f"{base}/{folder}": _Version(tuple(content)) for folder, content in by_folder.items()}
        wanted = {location.uri: found[location.uri] for location in locations.values()}
        file = "" if wanted else self._model_files.find_version_file([stored.name for stored in objects])
        if file:
            # The base path is itself a version.
            wanted = {base: _Version(tuple(objects))}
        with self._lock:
            known = self._base_paths.get(base)
            read = {} if known is None else {uri: read for uri, read in known.manifests.items() if uri in wanted}
            self._base_paths[base] = _BasePath(wanted, file, read)
        return locations

    def fingerprint(self, location: VersionLocation) -> str:
        """Implement Storage.fingerprint for the last listing."""
        return self._version(location).fingerprint

    def changed_unix_s(self, location: VersionLocation) -> float | None:
        """Implement Storage.changed_unix_s for the last listing."""
        return self._version(location).changed_unix_s

    def missing(self, location: VersionLocation) -> str | None:
        """Implement Storage.missing. Without a manifest, check for the files that every model has.

        An unchanged listing does not mean that an upload is complete. A store lists an object only when it is complete,
        so a large object appears long after the previous one.
        """
        version = self._version(location)
        if version.manifest is None:
            unfinished = _UNFINISHED if _is_unfinished(version) else ""
            return unfinished or self._model_files.missing_part([item.name for item in version.objects]) or None
        manifest = self._manifest(location, version.manifest)
        if manifest is None:
            return f"{MANIFEST_FILE} is not a valid manifest"
        sizes = {stored.name: stored.size_bytes for stored in version.objects}
        lacking = (describe_size(name, entry, sizes.get(name)) for name, entry in manifest.files.items())
        return next(filter(None, lacking), "")

    def refusal(self, location: VersionLocation) -> str:
        """Implement Storage.refusal for the last listing."""
        return self._version(location).refusal

    def find_version_file(self, base_path: str) -> str:
        """Implement Storage.find_version_file for the last listing."""
        with self._lock:
            known = self._base_paths.get(base_path.rstrip("/"))
        return "" if known is None else known.version_file

    def fetch(self, location: VersionLocation) -> Path:
        """Implement Storage.fetch. The result is the copy in the cache, which is created if it is missing."""
        try:
            version = self._version(location)
        except FileNotFoundError as error:
            raise FailedPrecondition("The version is no longer in its store") from error
        if version.refusal:
            raise FailedPrecondition(version.refusal)
        key = hashlib.sha256(f"{location.uri}\n{version.fingerprint}".encode()).hexdigest()[:32]
        name = location.uri.rpartition("/")[2]
        check_name(name)
        return self._cache.take(key, name, version.size_bytes, lambda target: self._fill(location, version, target))

    def holds(self, path: Path) -> bool:
        """Return whether `path` is from this storage's `fetch`, and not released."""
        return self._cache.holds(path)

    def release(self, path: Path) -> None:
        """Implement Storage.release. The copy stays in the cache until its space is needed."""
        self._cache.release(path)

    def _fill(self, location: VersionLocation, version: _Version, target: Path) -> Mapping[str, str]:
        logger.info("Copying %s: %d files, %.1f MB", location, len(version.objects), version.size_bytes / 1e6)
        store = store_of(location.uri)
        hashes = download(store, version.objects, target, what=str(location), stop=self._stop)
        try:
            now = _Version(tuple(store.list(location.uri) or ()))
        except StoreError as error:
            logger.warning("Cannot list %s: %s", location, error)
            raise Unavailable(f"The store failed: {error.kind}") from error
        if now.fingerprint != version.fingerprint:
            raise Unavailable("The version changed while the server copied it")
        manifest = Manifest.read(target)
        if manifest is not None:
            manifest.verify_files(target)
        elif _is_unfinished(version):
            raise FailedPrecondition(_UNFINISHED)
        return hashes

    def _version(self, location: VersionLocation) -> _Version:
        return self._base_path(location).versions[location.uri]

    def _base_path(self, location: VersionLocation) -> _BasePath:
        """Return the listed base path of a version, which may be the version itself."""
        with self._lock:
            known = (self._base_paths.get(base) for base in (location.uri.rpartition("/")[0], location.uri))
            found = next((base for base in known if base is not None and location.uri in base.versions), None)
        if found is None:
            raise FileNotFoundError(f"{location} is not in the store's last listing")
        return found

    def _manifest(self, location: VersionLocation, stored: StoredObject) -> Manifest | None:
        """Return the version's manifest, or None if it is invalid. Read it again only after a change."""
        base_path = self._base_path(location)
        with self._lock:
            known = base_path.manifests.get(location.uri)
        if known is not None and known[0] == stored:
            return known[1]
        manifest = self._manifest_reads.get(_ManifestAt(location.uri, store_of(location.uri), stored))
        with self._lock:
            base_path.manifests[location.uri] = (stored, manifest)
        return manifest

    def _list_objects(self, base_path: str) -> Sequence[StoredObject] | None:
        try:
            store = store_of(base_path)
        except ServingError as error:
            raise OSError(error.message) from error
        return store.list(base_path)


def _is_unfinished(version: _Version) -> bool:
    """Return whether the exporter has started to publish the version, but not finished (docs/reference/manifest.md)."""
    folder = f"{MANIFEST_FILE.parent.as_posix()}/"
    return version.manifest is None and any(stored.name.startswith(folder) for stored in version.objects)
