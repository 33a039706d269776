"""The object graph of the server: what is built from what, and started and stopped in which order."""

import asyncio
import math
import os
from collections.abc import Sequence
from pathlib import Path

from fastapi import FastAPI
from tensorflow.core.protobuf.config_pb2 import ConfigProto

from tpuserve_server.banner import print_banner
from tpuserve_server.config.batching_parameters import read_batching_parameters, read_model_batching_parameters
from tpuserve_server.config.model_config_file import ModelConfigFile
from tpuserve_server.config.monitoring_config import read_metrics_path
from tpuserve_server.config.text_format import read
from tpuserve_server.core.change_event import wait_until
from tpuserve_server.core.configured_models import ConfiguredModels
from tpuserve_server.core.deadline import SystemClock
from tpuserve_server.core.errors import ServingError
from tpuserve_server.core.local_storage import LocalStorage
from tpuserve_server.core.manager import LoadOptions, VersionManager
from tpuserve_server.core.model_config import ModelConfig
from tpuserve_server.core.registry import ModelRegistry
from tpuserve_server.core.servable import Executor
from tpuserve_server.core.service import InferenceService
from tpuserve_server.core.source import Source
from tpuserve_server.core.transition import describe_failures
from tpuserve_server.executors.preferring_tflite import PreferringTflite
from tpuserve_server.executors.session_config import TensorFlowOptions
from tpuserve_server.executors.tensorflow import TensorFlowExecutor
from tpuserve_server.executors.tensorflow_tracer import TensorFlowTracer
from tpuserve_server.frontends.rest import RestOptions, rest_app
from tpuserve_server.frontends.rpc import RpcTable
from tpuserve_server.frontends.table import rpc_table
from tpuserve_server.hosts.application import HostError, Listening
from tpuserve_server.prometheus import PrometheusMetrics
from tpuserve_server.request_log.request_logs import RequestLogOptions, RequestLogs
from tpuserve_server.request_log.rotation import Rotation
from tpuserve_server.request_log.writer import LogWriter
from tpuserve_server.settings import Settings
from tpuserve_server.storage.by_scheme import StorageByScheme
from tpuserve_server.storage.cache import VersionCache
from tpuserve_server.storage.remote import RemoteStorage
from tpuserve_server.versions.loading import LoadingOptions, VersionLoader
from tpuserve_server.versions.manifest import is_whole
from tpuserve_server.versions.warmup import WarmupOptions


class Server:
    """The application that a host carries. Everything runs in the process that calls `start`."""

    def __init__(
        self,
        service: InferenceService,
        configs: Sequence[ModelConfig],
        models: ConfiguredModels,
        manager: VersionManager,
        source: Source,
        remote: RemoteStorage,
        config_file: ModelConfigFile | None,
        rpc: RpcTable,
        rest: FastAPI,
        host_note: str,
        log_writer: LogWriter,
    ) -> None:
        """Wire the parts; nothing runs yet."""
        self.rpc = rpc
        self.rest = rest
        self._service = service
        self._configs = configs
        self._models = models
        self._manager = manager
        self._source = source
        self._remote = remote
        self._config_file = config_file
        self._host_note = host_note
        self._log_writer = log_writer

    async def start(self) -> None:
        """Begin to watch and load; returns at once. Readiness says when the models are up."""
        try:
            self._models.start(self._configs)
        except ServingError as error:
            raise HostError(error.message) from None
        self._log_writer.start()
        self._source.start()
        if self._config_file is not None:
            self._config_file.watch(self._models.begin)

    async def failure(self) -> str:
        """Wait until every model that the server began with has failed for good; upstream's words for that."""
        await wait_until(self._service.subscribe, lambda: bool(self._service.start_failures()))
        return describe_failures(self._service.start_failures(), "servable(s)")

    def announce(self, listening: Listening) -> None:
        """Print the start-up block, now or as soon as every model is up."""
        print_banner(self._service, listening, self._host_note)

    def drain(self) -> None:
        """Say not ready; requests that come are still served."""
        self._service.drain()

    async def stop(self) -> None:
        """After the last request: stop watching, unload everything."""
        if self._config_file is not None:
            await asyncio.to_thread(self._config_file.stop_watching)
        await asyncio.to_thread(self._source.stop)
        # Before the loading threads are waited for: one may be copying for long yet.
        self._remote.close()
        await asyncio.to_thread(self._manager.stop)
        await asyncio.to_thread(self._log_writer.stop)


def build(settings: Settings, host_note: str) -> Server:
    """Build the whole server from validated settings; loads no model yet. `host_note` says who carries it, and why."""
    clock = SystemClock()
    metrics = PrometheusMetrics()
    config_file = _config_file(settings)
    configs = [_single_model(settings)] if config_file is None else config_file.read()
    registry = ModelRegistry([config.name for config in configs], metrics)
    remote = RemoteStorage(VersionCache(_cache_dir(settings), settings.storage_cache_max_bytes))
    storage = StorageByScheme(LocalStorage(is_whole), remote)
    loader = VersionLoader(storage, _executor(settings), _loading_options(settings), clock, metrics)
    manager = VersionManager(registry, loader, clock, _load_options(settings))
    source = Source(storage, manager.aspire, poll_wait_s=settings.file_system_poll_wait_seconds)
    log_writer = LogWriter(_rotation(settings), clock, metrics)
    logs = RequestLogs(_request_log_options(settings), log_writer)
    models = ConfiguredModels(
        registry,
        manager,
        source,
        storage,
        clock,
        allow_labels_for_unavailable=settings.allow_version_labels_for_unavailable_models,
        checks=(logs.check,),
    )
    models.observe(logs.configure)
    service = InferenceService(registry, clock)
    rpc = rpc_table(
        service,
        metrics,
        clock,
        models=models,
        logs=logs,
        serialize_as_content=settings.enable_serialization_as_tensor_content,
        tracer=TensorFlowTracer() if settings.enable_profiler else None,
        check_method_names=settings.enable_signature_method_name_check,
        max_request_bytes=settings.max_request_bytes,
    )
    rest = rest_app(service, metrics, clock, metrics.render, _rest_options(settings), logs=logs)
    return Server(service, configs, models, manager, source, remote, config_file, rpc, rest, host_note, log_writer)


def _config_file(settings: Settings) -> ModelConfigFile | None:
    if settings.model_config_file is None:
        return None
    return ModelConfigFile(settings.model_config_file, poll_wait_s=settings.model_config_file_poll_wait_seconds)


def _single_model(settings: Settings) -> ModelConfig:
    return ModelConfig(settings.model_name, settings.model_base_path or "")


def _cache_dir(settings: Settings) -> Path:
    per_user = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return settings.storage_cache_dir or Path(per_user, "tpuserve")


def _executor(settings: Settings) -> Executor:
    tensorflow = TensorFlowExecutor(_tensorflow_options(settings))
    if not settings.prefer_tflite_model:
        return tensorflow
    cores = os.cpu_count() or 1
    return PreferringTflite(
        tensorflow,
        max_interpreters=settings.num_tflite_pools or cores,
        num_threads=settings.tensorflow_session_parallelism or settings.tensorflow_intra_op_parallelism or cores,
    )


def _tensorflow_options(settings: Settings) -> TensorFlowOptions:
    file = settings.tensorflow_session_config_file
    return TensorFlowOptions(
        tags=settings.saved_model_tags,
        intra_op_parallelism=settings.tensorflow_session_parallelism or settings.tensorflow_intra_op_parallelism,
        inter_op_parallelism=settings.tensorflow_session_parallelism or settings.tensorflow_inter_op_parallelism,
        bfloat16_kernels=settings.bfloat16_kernels,
        mixed_precision=settings.mixed_precision,
        session_config=read(file, ConfigProto()) if file else None,
    )


def _load_options(settings: Settings) -> LoadOptions:
    return LoadOptions(
        threads=settings.num_load_threads,
        max_retries=settings.max_num_load_retries,
        retry_interval_s=settings.load_retry_interval_micros / 1e6,
    )


def _loading_options(settings: Settings) -> LoadingOptions:
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


def _request_log_options(settings: Settings) -> RequestLogOptions:
    return RequestLogOptions(
        path_prefix=settings.request_log_path_prefix,
        sampling_rate=settings.request_log_sampling_rate,
        format=settings.request_log_format,
    )


def _rotation(settings: Settings) -> Rotation:
    return Rotation(settings.request_log_max_bytes, settings.request_log_max_files)


def _rest_options(settings: Settings) -> RestOptions:
    monitoring = settings.monitoring_config_file
    return RestOptions(
        max_body_bytes=settings.max_request_bytes,
        timeout_s=settings.rest_api_timeout_in_ms / 1000 if settings.rest_api_timeout_in_ms > 0 else math.inf,
        allow_cors=settings.rest_api_enable_cors_support,
        check_method_names=settings.enable_signature_method_name_check,
        metrics_path=None if monitoring is None else read_metrics_path(monitoring),
    )
