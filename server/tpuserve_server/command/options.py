"""What each part of the server is told, from the settings: one function for each options object.

Files that settings name are read here, by whoever builds the server.
"""

import math
import os
from pathlib import Path

from tpuserve_formats.messages.official import ConfigProto
from tpuserve_server.command.settings import Settings
from tpuserve_server.config.batching_parameters import read_batching_parameters, read_model_batching_parameters
from tpuserve_server.config.monitoring_config import read_metrics_path
from tpuserve_server.config.text_format import read
from tpuserve_server.core.manager import LoadOptions
from tpuserve_server.executors.pjrt.options import PjrtOptions
from tpuserve_server.executors.tensorflow.session_config import TensorFlowOptions
from tpuserve_server.frontends.rest import RestOptions
from tpuserve_server.request_log.request_logs import RequestLogOptions
from tpuserve_server.request_log.rotation import Rotation
from tpuserve_server.versions.loading import LoadingOptions
from tpuserve_server.versions.warmup import WarmupOptions


def cache_dir(settings: Settings) -> Path:
    """Where versions from object stores are kept."""
    return settings.storage_cache_dir or _user_cache_dir() / "tpuserve"


def _user_cache_dir() -> Path:
    if said := os.environ.get("XDG_CACHE_HOME"):
        return Path(said)
    try:
        return Path.home() / ".cache"
    except RuntimeError:
        # A container's user may have neither HOME nor an entry in /etc/passwd, and most servers need no cache.
        # Not below /tmp, where others could put models of theirs.
        return Path("/var/cache")


def pjrt_options(settings: Settings) -> PjrtOptions:
    """The executor's of device programs."""
    return PjrtOptions(
        device=settings.device,
        mesh=settings.mesh,
        compilation_cache_dir=settings.compilation_cache_dir or _user_cache_dir() / "tpuserve-compiled",
    )


def tensorflow_options(settings: Settings) -> TensorFlowOptions:
    """The TensorFlow executor's; raises ConfigError when the session's file does not parse."""
    file = settings.tensorflow_session_config_file
    return TensorFlowOptions(
        tags=settings.saved_model_tags,
        intra_op_parallelism=settings.tensorflow_session_parallelism or settings.tensorflow_intra_op_parallelism,
        inter_op_parallelism=settings.tensorflow_session_parallelism or settings.tensorflow_inter_op_parallelism,
        bfloat16_kernels=settings.bfloat16_kernels,
        mixed_precision=settings.mixed_precision,
        session_config=read(file, ConfigProto()) if file else None,
    )


def load_options(settings: Settings) -> LoadOptions:
    """The manager's."""
    return LoadOptions(
        threads=settings.num_load_threads,
        max_retries=settings.max_num_load_retries,
        retry_interval_s=settings.load_retry_interval_micros / 1e6,
    )


def loading_options(settings: Settings) -> LoadingOptions:
    """The loader's; raises ConfigError when the batching parameters do not parse or fit."""
    parameters = settings.batching_flags
    if settings.batching_parameters_file is not None:
        parameters = read_batching_parameters(settings.batching_parameters_file, parameters)
    return LoadingOptions(
        enable_batching=settings.enable_batching,
        parameters=parameters,
        read_parameters=read_model_batching_parameters if settings.enable_per_model_batching_parameters else None,
        warmup=WarmupOptions(
            enabled=settings.enable_model_warmup,
            # 0 is TensorFlow Serving's way to say nothing.
            iterations=settings.num_request_iterations_for_warmup or 1,
            check_method_names=settings.enable_signature_method_name_check,
        ),
    )


def request_log_options(settings: Settings) -> RequestLogOptions:
    """The request log's, for models that have no logging configuration of their own."""
    return RequestLogOptions(
        path_prefix=settings.request_log_path_prefix,
        sampling_rate=settings.request_log_sampling_rate,
        format=settings.request_log_format,
    )


def rotation(settings: Settings) -> Rotation:
    """The request log's files."""
    return Rotation(settings.request_log_max_bytes, settings.request_log_max_files)


def rest_options(settings: Settings) -> RestOptions:
    """The REST application's; raises ConfigError when the monitoring configuration does not parse."""
    monitoring = settings.monitoring_config_file
    return RestOptions(
        max_body_bytes=settings.max_request_bytes,
        timeout_s=settings.rest_api_timeout_in_ms / 1000 if settings.rest_api_timeout_in_ms > 0 else math.inf,
        allow_cors=settings.rest_api_enable_cors_support,
        check_method_names=settings.enable_signature_method_name_check,
        metrics_path=None if monitoring is None else read_metrics_path(monitoring),
    )
