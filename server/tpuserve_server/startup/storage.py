"""The storage of models from the operator's settings."""

from tpuserve_server.core.models.local_storage import LocalStorage
from tpuserve_server.executors.catalogue import model_files
from tpuserve_server.startup.model_settings import ARTIFACT_SETTING
from tpuserve_server.startup.options import cache_dir
from tpuserve_server.startup.settings import Settings
from tpuserve_server.storage.artifact import ArtifactStorage
from tpuserve_server.storage.by_scheme import StorageByScheme
from tpuserve_server.storage.cache import VersionCache
from tpuserve_server.storage.remote import RemoteStorage
from tpuserve_server.versions.completeness import ModelFiles


def model_storage(settings: Settings, remote: RemoteStorage) -> StorageByScheme | ArtifactStorage:
    """Return the storage of base paths: directories, and object stores through `remote`."""
    files = ModelFiles(model_files())
    storage = StorageByScheme(LocalStorage(files.missing, version_file=files.find_version_file), remote)
    artifact = settings.models.model_artifact_uri
    return storage if artifact is None else ArtifactStorage(storage, artifact, ARTIFACT_SETTING)


def remote_storage(settings: Settings) -> RemoteStorage:
    """Return the storage of versions in object stores, with the cache of their copies."""
    cache = VersionCache(cache_dir(settings), settings.storage.storage_cache_max_bytes)
    return RemoteStorage(cache, ModelFiles(model_files()))
