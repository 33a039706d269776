"""Options that need more than one part's settings: files that settings name, directories, settings of other parts.

`startup/app.py` calls these functions. A part that needs only its own settings gets them unchanged.
"""

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tpuserve_formats.signing.errors import BadKey
from tpuserve_server.core.models.reload_roots import ReloadRoots
from tpuserve_server.core.terms.deadline import Clock
from tpuserve_server.core.terms.storage import without_secrets
from tpuserve_server.observe.metrics.prometheus import PrometheusMetrics
from tpuserve_server.observe.requests.access_log import AccessLog
from tpuserve_server.observe.requests.observers import RequestWatcher
from tpuserve_server.observe.tracing.export_error import ExportError
from tpuserve_server.observe.tracing.request_tracing import RequestTracing, open_tracing
from tpuserve_server.protocols.rest import RestOptions
from tpuserve_server.startup.batching_parameters import read_batching_parameters, read_model_batching_parameters
from tpuserve_server.startup.model_settings import BASE_ROOT_VARIABLE
from tpuserve_server.startup.monitoring_config import read_metrics_path
from tpuserve_server.startup.settings import Settings
from tpuserve_server.startup.text_format import ConfigError
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
        warmup=replace(settings.warmup, check_method_names=settings.server.enable_signature_method_name_check),
        response_cache_max_bytes=settings.response_cache.max_bytes,
    )


def required_signatures(settings: Settings) -> "RequiredSignatures | None":
    """Return the check of signatures, or None if the operator requires none. Raises ConfigError without usable keys."""
    file = settings.models.require_signed
    if file is None:
        return None
    from tpuserve_server.versions.signatures import RequiredSignatures  # Imports cryptography, which takes 3 MB.

    try:
        return RequiredSignatures.read(file)
    except BadKey as error:
        raise ConfigError(f"--require_signed: {error}") from error


def rest_options(settings: Settings) -> RestOptions:
    """Return the REST application's options. Raises ConfigError if the monitoring configuration does not parse."""
    monitoring = settings.server.monitoring_config_file
    return RestOptions(
        max_body_bytes=settings.listening.max_request_bytes,
        timeout_s=settings.listening.rest_timeout_s,
        allow_cors=settings.listening.rest_api_enable_cors_support,
        check_method_names=settings.server.enable_signature_method_name_check,
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
