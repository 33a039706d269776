"""Object graph of the server: its parts, their dependencies, and the order in which they start and stop."""

import asyncio
import logging
import os
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from tpuserve_server.check.models import ModelCheck
from tpuserve_server.command.banner import print_banner
from tpuserve_server.command.model_settings import ARTIFACT_SETTING, BASE_ROOT_VARIABLE
from tpuserve_server.command.options import (
    cache_dir,
    loading_options,
    pjrt_options,
    rest_options,
    tensorflow_options,
    tflite_options,
)
from tpuserve_server.command.settings import Settings
from tpuserve_server.command.start_report import report_start
from tpuserve_server.command.vertex import vertex_paths
from tpuserve_server.config.model_config_file import ModelConfigFile
from tpuserve_server.core.budgets.budgets import Budgets
from tpuserve_server.core.budgets.receiving import ReceivingBudget
from tpuserve_server.core.change_event import wait_until
from tpuserve_server.core.configured_models import ConfiguredModels
from tpuserve_server.core.deadline import Clock, SystemClock
from tpuserve_server.core.device_metrics import DeviceMetrics
from tpuserve_server.core.device_share import DeviceShare
from tpuserve_server.core.errors import ServingError
from tpuserve_server.core.host_memory import HostMemory
from tpuserve_server.core.journal import Journal
from tpuserve_server.core.local_storage import LocalStorage
from tpuserve_server.core.manager import VersionManager
from tpuserve_server.core.model_config import ModelConfig
from tpuserve_server.core.overload_gate import OverloadGate
from tpuserve_server.core.registry import ModelRegistry
from tpuserve_server.core.reload_roots import ReloadRoots
from tpuserve_server.core.replacement import Replacement
from tpuserve_server.core.service import InferenceService
from tpuserve_server.core.source import Source
from tpuserve_server.core.transition import describe_failures
from tpuserve_server.core.watchdog import Watchdog
from tpuserve_server.ensembles.loader import EnsembleLoader
from tpuserve_server.ensembles.source import EnsembleSource
from tpuserve_server.executors.choice import ExecutorChoice
from tpuserve_server.executors.chosen_tracer import ChosenTracer
from tpuserve_server.executors.journaled import JournaledExecutor
from tpuserve_server.executors.pjrt.candidate import DevicePrograms
from tpuserve_server.executors.tensorflow.on_demand import TensorFlowOnDemand
from tpuserve_server.executors.tflite.candidate import PreferredTflite
from tpuserve_server.frontends.control import Control
from tpuserve_server.frontends.guard import ALLOW_ALL, Guard, Rule
from tpuserve_server.frontends.oip.administration import Administration
from tpuserve_server.frontends.oip.shared_memory import SharedMemoryRegions
from tpuserve_server.frontends.rest import rest_app
from tpuserve_server.frontends.rpc import RpcTable
from tpuserve_server.frontends.table import rpc_table
from tpuserve_server.frontends.vertex.routes import VertexRoutes
from tpuserve_server.hosts.application import Listening
from tpuserve_server.hosts.errors import HostError
from tpuserve_server.metrics.prometheus import PrometheusMetrics
from tpuserve_server.metrics.version_statistics import version_statistics
from tpuserve_server.request_log.request_logs import RequestLogs
from tpuserve_server.request_log.writer import LogWriter
from tpuserve_server.storage.artifact import ArtifactStorage
from tpuserve_server.storage.by_scheme import StorageByScheme
from tpuserve_server.storage.cache import VersionCache
from tpuserve_server.storage.remote import RemoteStorage
from tpuserve_server.versions.completeness import missing
from tpuserve_server.versions.loading import VersionLoader
from tpuserve_server.versions.parts import find_version_file

if TYPE_CHECKING:
    from starlette.types import ASGIApp

logger = logging.getLogger(__name__)


class Server:
    """Application that a host carries. All its parts run in the process that calls `start`."""

    def __init__(
        self,
        service: InferenceService,
        configs: Sequence[ModelConfig],
        models: ConfiguredModels,
        manager: VersionManager,
        source: Source,
        ensembles: EnsembleSource,
        remote: RemoteStorage,
        config_file: ModelConfigFile | None,
        rpc: RpcTable,
        rest: "ASGIApp",
        host_note: str,
        log_writer: LogWriter,
        control_note: str,
        receiving: ReceivingBudget,
        watchdog: Watchdog,
        overload_gate: OverloadGate,
    ) -> None:
        """Wire the parts without starting them."""
        self.rpc = rpc
        self.rest = rest
        self.receiving = receiving
        self.overload_gate = overload_gate
        self._service = service
        self._configs = configs
        self._models = models
        self._manager = manager
        self._source = source
        self._ensembles = ensembles
        self._remote = remote
        self._config_file = config_file
        self._host_note = host_note
        self._log_writer = log_writer
        self._control_note = control_note
        self._watchdog = watchdog

    async def start(self) -> None:
        """Start to watch for models and load them. Returns at once; `ready` waits for the models."""
        try:
            self._models.start(self._configs)
        except ServingError as error:
            raise HostError(error.message) from None
        self._log_writer.start()
        self._watchdog.start()
        self._source.start()
        self._ensembles.start()
        if self._config_file is not None:
            self._config_file.watch(self._models.begin)

    async def ready(self) -> None:
        """Wait until every model of the start has loaded or failed for good, and at least one serves.

        Return at once without models: a client can only configure some when the ports are open.
        """
        logger.info("Ports open once every model has loaded or failed")
        await wait_until(self._service.subscribe, lambda: self._service.is_ready() or not self._service.models())

    async def failure(self) -> str:
        """Wait until every model of the start has failed for good, and return upstream's message."""
        await wait_until(self._service.subscribe, lambda: bool(self._service.start_failures()))
        return describe_failures(self._service.start_failures(), "servable(s)")

    async def replacement(self) -> Replacement:
        """Wait until another process should take the place of this one, and return the reason."""
        await wait_until(self._watchdog.subscribe, lambda: self._watchdog.replacement() is not None)
        replacement = self._watchdog.replacement()
        # The run that hung may have ended in this moment.
        return replacement or await self.replacement()

    def announce(self, listening: Listening) -> None:
        """Log the control rule, print the banner now or when every model is ready, and send reports of the start."""
        logger.info(self._control_note)
        print_banner(self._service, listening, self._host_note)
        report_start(self._service, listening)

    def reload(self) -> None:
        """Poll the model configuration file soon. Flags that configure the only model cannot change."""
        if self._config_file is None:
            logger.info("Nothing to read again: flags configure the model")
        else:
            self._config_file.poll_soon()

    def drain(self) -> None:
        """Report that the server is not ready. The server still answers requests."""
        self._service.drain()

    async def stop(self) -> None:
        """Stop watching and unload every model. Call this after the last request."""
        if self._config_file is not None:
            await asyncio.to_thread(self._config_file.stop_watching)
        await asyncio.to_thread(self._ensembles.stop)
        await asyncio.to_thread(self._source.stop)
        # Stop the copies first: `manager.stop` waits for the loading threads, and a copy may take long.
        self._remote.close()
        await asyncio.to_thread(self._manager.stop)
        await asyncio.to_thread(self._watchdog.stop)
        await asyncio.to_thread(self._log_writer.stop)


def build(settings: Settings, host_note: str, rule: Rule = ALLOW_ALL, journal: Journal | None = None) -> Server:
    """Build the whole server from validated settings, without loading a model.

    `host_note` names the host and the reason for its selection. `rule` checks every request before its message is
    decoded. `journal` records loads and runs, if another process starts the server again after its end.
    """
    clock = SystemClock()
    metrics = PrometheusMetrics()
    config_file = _config_file(settings)
    configs = [_single_model(settings)] if config_file is None else config_file.read()
    registry = ModelRegistry([config.name for config in configs], metrics)
    remote = _remote_storage(settings)
    storage = _storage(settings, remote)
    slots = settings.server.device_slots
    device = DeviceShare(slots or os.cpu_count() or 1, only_weighted=not slots)
    executor = _executor(settings, metrics.devices, clock)
    loading = loading_options(settings)
    watchdog = Watchdog(clock, settings.watchdog)
    service = InferenceService(registry, clock, watchdog)
    recorded = executor if journal is None else JournaledExecutor(executor, journal)
    versions = VersionLoader(storage, recorded, loading, clock, metrics, device, settings.loading.timeout_s, watchdog)
    loader = EnsembleLoader(versions, service.acquire)
    manager = VersionManager(registry, loader, clock, settings.loading)
    poll_wait_s = settings.models.file_system_poll_wait_seconds
    source = Source(storage, manager.aspire, poll_wait_s=poll_wait_s, on_pending=registry.expect)
    ensembles = EnsembleSource(registry, manager.aspire, registry.expect)
    log_writer = LogWriter(settings.rotation, clock, metrics)
    logs = RequestLogs(settings.request_log, log_writer)
    models = ConfiguredModels(
        registry,
        manager,
        source,
        ensembles,
        storage,
        clock,
        _reload_roots(settings),
        allow_labels_for_unavailable=settings.models.allow_version_labels_for_unavailable_models,
        allow_no_models=settings.models.allow_reload_without_models,
        checks=(storage.check, logs.check, loading.check),
    )
    models.observe(logs.configure)
    regions = SharedMemoryRegions(settings.shared_memory, settings.listening.max_request_bytes)
    statistics = partial(version_statistics, metrics)
    administration = Administration(service, clock, statistics, regions, models, settings.metadata.server_name)
    budgets = Budgets.of(settings.budgets, settings.listening.max_request_bytes, clock)
    control = Control(settings.control)
    rpc = rpc_table(
        service,
        metrics,
        clock,
        models=models,
        administration=administration,
        logs=logs,
        serialize_as_content=settings.server.enable_serialization_as_tensor_content,
        tracer=ChosenTracer(executor.tracer) if settings.server.enable_profiler else None,
        check_method_names=settings.server.enable_signature_method_name_check,
        max_request_bytes=settings.listening.max_request_bytes,
        decoded=budgets.decoded,
    )
    rest = rest_app(
        service,
        metrics,
        clock,
        metrics.render,
        rest_options(settings),
        logs=logs,
        administration=administration,
        budgets=budgets,
        control=control,
    )
    guard = Guard(rule)
    guarded_rest = guard.wrap_rest(rest)
    vertex = vertex_paths(settings)
    return Server(
        service,
        configs,
        models,
        manager,
        source,
        ensembles,
        remote,
        config_file,
        guard.wrap_table(control.wrap_table(rpc)),
        guarded_rest if vertex is None else VertexRoutes(guarded_rest, vertex, service),
        host_note,
        log_writer,
        control.description,
        budgets.receiving,
        watchdog,
        OverloadGate(lambda: registry.serving, metrics, clock),
    )


def build_model_check(settings: Settings) -> ModelCheck:
    """Build the check of the configured models for `--check_config`, with the checks of a start."""
    loading = loading_options(settings)
    storage = _storage(settings, _remote_storage(settings))
    logs = RequestLogs(settings.request_log, LogWriter(settings.rotation, SystemClock(), PrometheusMetrics()))
    return ModelCheck(storage, (storage.check, logs.check, loading.check), loading.read_parameters)


def read_models(settings: Settings) -> Sequence[ModelConfig]:
    """Read the models to start with. Raises ConfigError for an unusable file."""
    config_file = _config_file(settings)
    return [_single_model(settings)] if config_file is None else config_file.read()


def _local_storage() -> LocalStorage:
    return LocalStorage(missing, version_file=find_version_file)


def _storage(settings: Settings, remote: RemoteStorage) -> StorageByScheme | ArtifactStorage:
    storage, artifact = StorageByScheme(_local_storage(), remote), settings.models.model_artifact_uri
    return storage if artifact is None else ArtifactStorage(storage, artifact, ARTIFACT_SETTING)


def _remote_storage(settings: Settings) -> RemoteStorage:
    return RemoteStorage(VersionCache(cache_dir(settings), settings.storage.storage_cache_max_bytes))


def _config_file(settings: Settings) -> ModelConfigFile | None:
    models = settings.models
    if models.model_config_file is None:
        return None
    return ModelConfigFile(models.model_config_file, poll_wait_s=models.model_config_file_poll_wait_seconds)


def _single_model(settings: Settings) -> ModelConfig:
    models = settings.models
    return ModelConfig(models.model_name, models.model_base_path or models.model_artifact_uri or "")


def _reload_roots(settings: Settings) -> ReloadRoots:
    base_root = os.environ.get(BASE_ROOT_VARIABLE)
    return ReloadRoots(settings.reload, base_root=base_root, log_prefix=settings.request_log.path_prefix)


def _executor(settings: Settings, metrics: DeviceMetrics, clock: Clock) -> ExecutorChoice:
    """Build the executors, in order of preference. Each imports its runtime for the first version that it takes."""
    memory = HostMemory()
    saved_model = TensorFlowOnDemand(tensorflow_options(settings), memory)
    candidates = (
        PreferredTflite(tflite_options(settings), memory),
        DevicePrograms.of(pjrt_options(settings), saved_model, metrics, clock),
        saved_model,
    )
    return ExecutorChoice(candidates, metrics)
