"""Options that need more than one part's settings: files that settings name, directories, settings of other parts.

The parts of `startup/parts.py` are built from them. A part that needs only its own settings gets them unchanged.
"""

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tpuserve_formats.signing.errors import BadKey
from tpuserve_server.core.models.configuration_rules import ReloadRoots
from tpuserve_server.core.models.local_storage import LocalStorage
from tpuserve_server.core.terms.deadline import Clock
from tpuserve_server.core.terms.errors import InvalidArgument
from tpuserve_server.core.terms.storage import FileName, without_secrets
from tpuserve_server.executors.catalogue import model_files
from tpuserve_server.executors.plugin import SafetyOptions
from tpuserve_server.observe.metrics.prometheus import PrometheusMetrics
from tpuserve_server.observe.requests.access_log import AccessLog
from tpuserve_server.observe.requests.request_record import RequestWatcher
from tpuserve_server.observe.tracing.receiver_reply import ExportError
from tpuserve_server.observe.tracing.request_tracing import RequestTracing, open_tracing
from tpuserve_server.protocols.rest import RestOptions
from tpuserve_server.protocols.vertex.paths import VertexPaths
from tpuserve_server.startup.config_files import (
    ConfigError,
    read_batching_parameters,
    read_bytes,
    read_metrics_path,
    read_model_batching_parameters,
    show_file,
)
from tpuserve_server.startup.model_config_file import ModelConfigFile
from tpuserve_server.startup.server_settings import ARTIFACT_SETTING, BASE_ROOT_VARIABLE
from tpuserve_server.startup.settings import Settings
from tpuserve_server.storage.by_scheme import ArtifactStorage, StorageByScheme
from tpuserve_server.storage.cache import VersionCache
from tpuserve_server.storage.remote import RemoteStorage
from tpuserve_server.versions.completeness import ModelFiles
from tpuserve_server.versions.loading import LoadingOptions

if TYPE_CHECKING:
    from tpuserve_server.versions.signatures import RequiredSignatures


def cache_dir(settings: Settings) -> Path:
    """Return the directory of copies of versions from object stores."""
    return settings.storage.storage_cache_dir or user_cache_dir() / "tpuserve"


def user_cache_dir() -> Path:
    """Return the directory of this user's caches."""
    if cache_home := os.environ.get("XDG_CACHE_HOME"):
        return Path(cache_home)
    try:
        return Path.home() / ".cache"
    except RuntimeError:
        # A container's user may have neither HOME nor an entry in /etc/passwd, and most servers need no cache. The
        # directory is not below /tmp, because other users could put their models there.
        return Path("/var/cache")


def loading_options(settings: Settings) -> LoadingOptions:
    """Return the loader's options. Raises ConfigError if the batching parameters do not parse or conflict."""
    source, parameters = settings.batching_source, settings.batching
    if source.batching_parameters_file is not None:
        parameters = read_batching_parameters(source.batching_parameters_file, parameters)
    return LoadingOptions(
        enable_batching=source.enable_batching,
        parameters=parameters,
        read_parameters=read_model_batching_parameters if source.enable_per_model_batching_parameters else None,
        warmup=replace(
            settings.warmup,
            check_method_names=settings.server.enable_signature_method_name_check,
            makes_up_rows=not settings.executors[SafetyOptions].lenient_loads,
        ),
        response_cache_max_bytes=settings.response_cache.max_bytes,
    )


def required_signatures(settings: Settings) -> "RequiredSignatures | None":
    """Return the check of signatures, or None if the operator requires none. Raises ConfigError without usable keys."""
    file = settings.models.require_signed
    return None if file is None else read_signing_keys(file)


def read_signing_keys(file: FileName) -> "RequiredSignatures":
    """Return the check of signatures with the public keys of a file. Raises ConfigError without usable keys."""
    from tpuserve_server.versions.signatures import RequiredSignatures  # Imports cryptography, which takes 3 MB.

    try:
        return RequiredSignatures.parse(read_bytes(file), show_file(file))
    except BadKey as error:
        raise ConfigError(f"--require_signed: {error}") from error


def rest_options(settings: Settings) -> RestOptions:
    """Return the REST application's options. Raises ConfigError if the monitoring configuration does not parse."""
    monitoring = settings.server.monitoring_config_file
    return RestOptions(
        max_body_bytes=settings.listening.max_request_bytes,
        timeout_s=settings.listening.rest_timeout_s,
        check_method_names=settings.server.enable_signature_method_name_check,
        reports_readiness=settings.server.enable_kserve_v1_readiness,
        metrics_path=None if monitoring is None else read_metrics_path(monitoring),
    )


def reload_roots(settings: Settings) -> ReloadRoots:
    """Return the paths that a reload may name."""
    base_root = os.environ.get(BASE_ROOT_VARIABLE)
    return ReloadRoots(settings.reload, base_root=base_root, log_prefix=settings.request_log.path_prefix)


def request_tracing(settings: Settings, clock: Clock, metrics: PrometheusMetrics) -> RequestTracing | None:
    """Return the export of traces, or None without one. Raises ConfigError if its receiver cannot be used."""
    try:
        return open_tracing(settings.tracing, clock, metrics)
    except ExportError as error:
        endpoint = without_secrets(settings.tracing.endpoint or "")
        raise ConfigError(f"Cannot export traces to {endpoint}: {error}") from None


def access_log(settings: Settings) -> tuple[RequestWatcher, ...]:
    """Return the log of requests, or nothing if it is off."""
    return () if settings.access_log.requests == "off" else (AccessLog(settings.access_log),)


def model_storage(settings: Settings, remote: RemoteStorage) -> StorageByScheme:
    """Return the storage of base paths: directories, and object stores through `remote`."""
    files = ModelFiles(model_files())
    local = LocalStorage(files.missing, version_file=files.find_version_file)
    artifact = settings.models.model_artifact_uri
    if artifact is None:
        return StorageByScheme(local, remote)
    return ArtifactStorage(local, remote, artifact, ARTIFACT_SETTING)


def remote_storage(settings: Settings) -> RemoteStorage:
    """Return the storage of versions in object stores, with the cache of their copies."""
    cache = VersionCache(cache_dir(settings), settings.storage.storage_cache_max_bytes)
    return RemoteStorage(cache, ModelFiles(model_files()))


def vertex_paths(settings: Settings) -> VertexPaths | None:
    """Return the paths, or None if no route is set. Reads the model configuration file; blocks.

    The model is the only one at the start, or the one that `model_name` names. It does not change with the
    configuration, so that the guard and the handler of a request always see the same model.

    Raises:
        ConfigError: a route has another meaning, no model is certain, or a file cannot be used.
    """
    listening = settings.listening
    if not listening.has_vertex_routes:
        return None
    metrics_path = rest_options(settings).metrics_path
    model = _vertex_model(settings, listening.predict_route[0])
    try:
        return VertexPaths.of(
            model, listening.health_route, listening.predict_route, [metrics_path] if metrics_path else []
        )
    except InvalidArgument as error:
        raise ConfigError(error.message) from None


def _vertex_model(settings: Settings, setting: str) -> str:
    name, names = settings.models.model_name, _model_names(settings)
    if name in names or settings.listening.vertex_predict_route is None:
        return name
    if len(names) == 1:
        return names[0]
    raise ConfigError(
        f"{setting} serves one model, and the configuration has {len(names)}. Set --model_name to one of them"
    )


def _model_names(settings: Settings) -> Sequence[str]:
    file = settings.models.model_config_file
    if file is None:
        return [settings.models.model_name]
    return [config.name for config in ModelConfigFile(file, poll_wait_s=0).read()]
