"""Object graph of the server: its parts, their dependencies, and the order in which they start and stop."""

import asyncio
import logging
import os
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING

from tpuserve_server.access.caller import CallerModels, for_server
from tpuserve_server.access.files import CredentialFiles
from tpuserve_server.core.batching.device_share import DeviceShare
from tpuserve_server.core.batching.watchdog import Watchdog
from tpuserve_server.core.models.change_record import ChangeRecord
from tpuserve_server.core.models.configured_models import ConfiguredModels
from tpuserve_server.core.models.journal import Journal
from tpuserve_server.core.models.manager import VersionManager
from tpuserve_server.core.models.registry import ModelRegistry
from tpuserve_server.core.models.source import Source
from tpuserve_server.core.models.transition import describe_failures
from tpuserve_server.core.serving.budgets import Budgets
from tpuserve_server.core.serving.overload_gate import OverloadGate
from tpuserve_server.core.serving.receiving import ReceivingBudget
from tpuserve_server.core.serving.sending import SendingBudget
from tpuserve_server.core.serving.service import InferenceService
from tpuserve_server.core.system.changes import wait_until
from tpuserve_server.core.system.memory import HostMemory
from tpuserve_server.core.terms.deadline import Clock, SystemClock
from tpuserve_server.core.terms.errors import ServingError
from tpuserve_server.core.terms.servable import DeviceMetrics
from tpuserve_server.core.terms.server_state import CertificateStatus, Replacement, Traffic
from tpuserve_server.core.terms.validation import ShapeRules
from tpuserve_server.ensembles.loader import EnsembleLoader
from tpuserve_server.ensembles.source import EnsembleSource
from tpuserve_server.executors.choice import ExecutorChoice
from tpuserve_server.executors.chosen_tracer import ChosenTracer
from tpuserve_server.executors.openvino.candidate import TensorFlowOrOpenVino
from tpuserve_server.executors.pjrt.candidate import DevicePrograms
from tpuserve_server.executors.tensorflow.on_demand import TensorFlowOnDemand
from tpuserve_server.executors.tflite.candidate import PreferredTflite
from tpuserve_server.hosts.application import Listening
from tpuserve_server.hosts.certificates import CertificateWatch
from tpuserve_server.hosts.errors import HostError
from tpuserve_server.hosts.limits import find_connection_limit
from tpuserve_server.observe.logs.configuration import dropped_events
from tpuserve_server.observe.metrics.live_measurements import LiveMeasurements
from tpuserve_server.observe.metrics.prometheus import PrometheusMetrics
from tpuserve_server.observe.metrics.server_measurements import ServerParts
from tpuserve_server.observe.metrics.version_statistics import version_statistics
from tpuserve_server.observe.request_log.request_logs import RequestLogs
from tpuserve_server.observe.request_log.writer import LogWriter
from tpuserve_server.observe.requests.loop_watch import LoopWatch
from tpuserve_server.observe.requests.observers import Observers
from tpuserve_server.observe.requests.slow_requests import SlowRequests
from tpuserve_server.observe.tracing.request_tracing import RequestTracing
from tpuserve_server.protocols.access_rule import combined_rule
from tpuserve_server.protocols.console.addresses import Addresses
from tpuserve_server.protocols.console.console import Console
from tpuserve_server.protocols.console.server_facts import ServerFacts
from tpuserve_server.protocols.console.sources import ConsoleSources
from tpuserve_server.protocols.control import Control
from tpuserve_server.protocols.guard import Guard, Rule
from tpuserve_server.protocols.guarded import GuardedTable
from tpuserve_server.protocols.oip.administration import Administration
from tpuserve_server.protocols.oip.shared_memory import SharedMemoryRegions
from tpuserve_server.protocols.request_meter import RequestMeter
from tpuserve_server.protocols.rest import rest_app
from tpuserve_server.protocols.table import rpc_table
from tpuserve_server.protocols.vertex.routes import VertexRoutes
from tpuserve_server.startup.banner import print_banner
from tpuserve_server.startup.changed_flags import changed_flags
from tpuserve_server.startup.credentials import open_credentials
from tpuserve_server.startup.model_config_file import ModelConfigFile
from tpuserve_server.startup.options import (
    access_log,
    loading_options,
    openvino_options,
    pjrt_options,
    reload_roots,
    request_tracing,
    required_signatures,
    rest_options,
    tensorflow_options,
    tflite_options,
)
from tpuserve_server.startup.packages import build_info, installed_packages
from tpuserve_server.startup.settings import Settings
from tpuserve_server.startup.start_models import StartModels, model_config_file, read_start_models
from tpuserve_server.startup.start_report import report_start
from tpuserve_server.startup.storage import model_storage, remote_storage
from tpuserve_server.startup.vertex import vertex_paths
from tpuserve_server.storage.remote import RemoteStorage
from tpuserve_server.versions.loading import VersionLoader

if TYPE_CHECKING:
    from starlette.types import ASGIApp

logger = logging.getLogger(__name__)


class Server:
    """Application that a host carries. All its parts run in the process that calls `start`."""

    def __init__(
        self,
        service: InferenceService,
        start_models: StartModels,
        models: ConfiguredModels,
        manager: VersionManager,
        source: Source,
        ensembles: EnsembleSource,
        remote: RemoteStorage,
        config_file: ModelConfigFile | None,
        rpc: GuardedTable,
        rest: "ASGIApp",
        has_console: bool,
        log_writer: LogWriter,
        control_note: str,
        receiving: ReceivingBudget,
        sending: SendingBudget,
        watchdog: Watchdog,
        overload_gate: OverloadGate,
        traffic: Traffic,
        metrics: PrometheusMetrics,
        tracing: RequestTracing | None,
        addresses: Addresses,
        certificates: CertificateWatch,
        credentials: CredentialFiles | None,
    ) -> None:
        """Wire the parts without starting them."""
        self.rpc = rpc
        self.rest = rest
        self.receiving = receiving
        self.sending = sending
        self.overload_gate = overload_gate
        self.traffic = traffic
        self._service = service
        self._start_models = start_models
        self.models = models
        self.metrics = metrics
        self._manager = manager
        self._source = source
        self._ensembles = ensembles
        self._remote = remote
        self._config_file = config_file
        self._has_console = has_console
        self._log_writer = log_writer
        self._control_note = control_note
        self._watchdog = watchdog
        self._loop_watch = LoopWatch()
        self._tracing = tracing
        self._addresses = addresses
        self._certificates = certificates
        self._credentials = credentials

    async def start(self) -> None:
        """Start to watch for models and load them. Returns at once; `ready` waits for the models."""
        try:
            self.models.start(self._start_models.configs, self._start_models.changes, self._start_models.reloaded)
        except ServingError as error:
            raise HostError(error.message) from None
        # Before the log of requests, so that its last records do not wait for a stuck receiver of traces at the stop.
        if self._tracing is not None:
            self._tracing.start()
        self._log_writer.start()
        if self._credentials is not None:
            self._credentials.start()
        self._watchdog.start()
        self._loop_watch.start()
        self._source.start()
        self._ensembles.start()
        if self._config_file is not None:
            self._config_file.watch(self.models.begin)

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
        """Log the control rule, print the banner now or when every model is ready, and send reports of the start.

        The console shows the addresses from now on.
        """
        self._addresses.announce(**asdict(listening))
        logger.info(self._control_note)
        print_banner(self._service, listening, has_console=self._has_console)
        report_start(self._service, listening)

    def show_certificates(self, status: CertificateStatus) -> None:
        """Show the certificates in metrics and in the status, and warn in the log before they expire."""
        self._certificates.show(status)

    def reload(self) -> None:
        """Poll the files of models and credentials soon. Flags that configure the only model cannot change."""
        if self._credentials is not None:
            self._credentials.poll_soon()
        if self._config_file is None:
            logger.info("Nothing to read again: flags configure the model")
        else:
            self._config_file.poll_soon()

    def drain(self) -> None:
        """Report that the server is not ready. The server still answers requests."""
        self._service.drain()

    async def stop(self) -> None:
        """Stop watching and unload every model. Call this after the last request."""
        self._certificates.stop()
        if self._config_file is not None:
            await asyncio.to_thread(self._config_file.stop_watching)
        if self._credentials is not None:
            await asyncio.to_thread(self._credentials.stop)
        await asyncio.to_thread(self._ensembles.stop)
        await asyncio.to_thread(self._source.stop)
        # Stop the copies first: `manager.stop` waits for the loading threads, and a copy may take long.
        self._remote.close()
        await asyncio.to_thread(self._manager.stop)
        await asyncio.to_thread(self._watchdog.stop)
        await asyncio.to_thread(self._loop_watch.stop)
        await asyncio.to_thread(self._log_writer.stop)
        if self._tracing is not None:
            await asyncio.to_thread(self._tracing.stop)


def build(
    settings: Settings,
    make_rule: Callable[[ConfiguredModels], Rule] | None = None,
    journal: Journal | None = None,
    record: ChangeRecord | None = None,
) -> Server:
    """Build the whole server from validated settings, without loading a model.

    `make_rule` returns another rule for every request, which a request meets after the check of its client. `journal`
    and `record` keep loads, runs and changes of clients for the process after this one, if any.
    """
    clock = SystemClock()
    metrics = PrometheusMetrics()
    config_file = model_config_file(settings.models, record)
    start_models = read_start_models(settings.models, config_file, record)
    registry = ModelRegistry(start_models.names, metrics)
    remote = remote_storage(settings)
    storage = model_storage(settings, remote)
    slots = settings.server.device_slots
    device = DeviceShare(slots or os.cpu_count() or 1, only_weighted=not slots)
    executor = _executor(settings, metrics.devices, clock)
    tracer = ChosenTracer(executor.tracer) if settings.server.enable_profiler else None
    loading = loading_options(settings)
    watchdog = Watchdog(clock, settings.watchdog)
    credentials = open_credentials(settings)
    access = None if credentials is None else CallerModels()
    service = InferenceService(registry, clock, watchdog, access, ShapeRules(settings.server.lenient_shapes))
    required, timeout_s = required_signatures(settings), settings.loading.timeout_s
    versions = VersionLoader(
        storage, executor, loading, clock, metrics, device, timeout_s, watchdog, tracer, required, journal
    )
    loader = EnsembleLoader(versions, for_server(service.acquire))
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
        reload_roots(settings),
        allow_labels_for_unavailable=settings.models.allow_version_labels_for_unavailable_models,
        allow_no_models=settings.models.allow_reload_without_models,
        checks=(storage.check, logs.check, loading.check),
        record=record,
    )
    models.observe(logs.configure)
    regions = SharedMemoryRegions(settings.shared_memory, settings.listening.max_request_bytes)
    statistics = partial(version_statistics, metrics)
    slow = SlowRequests()
    administration = Administration(service, clock, statistics, regions, models, settings.metadata.server_name)
    max_bytes = settings.listening.max_request_bytes
    budgets = Budgets.of(settings.budgets, max_bytes, clock, settings.host.write_timeout_s)
    control = Control(settings.control)
    software, certificates, traffic = build_info(), CertificateWatch(), Traffic()
    most = find_connection_limit(settings.host)
    metrics.server.server_built(
        ServerParts(service, budgets, software, dropped_events, traffic, most, certificates.find)
    )
    tracing = request_tracing(settings, clock, metrics)
    observers = Observers((slow, *access_log(settings)), tracing)
    figures, addresses = LiveMeasurements(metrics, clock), Addresses()
    started = (time.time(), clock.monotonic_s())
    facts = ServerFacts(software, *started, installed_packages(), changed_flags(settings))
    rpc_meter = RequestMeter(service, metrics, clock, "grpc", observers)
    rest_meter = RequestMeter(service, metrics, clock, "rest", observers)
    sources = ConsoleSources(
        service,
        figures,
        slow,
        metrics.server.in_flight,
        budgets,
        facts,
        addresses,
        certificates.find,
        clock,
        credentials,
    )
    rpc = rpc_table(
        service,
        metrics,
        clock,
        models=models,
        administration=administration,
        logs=logs,
        serialize_as_content=settings.server.enable_serialization_as_tensor_content,
        tracer=tracer,
        check_method_names=settings.server.enable_signature_method_name_check,
        max_request_bytes=max_bytes,
        budgets=budgets,
        meter=rpc_meter,
    )
    rest = rest_app(
        service,
        metrics,
        clock,
        metrics.render,
        rest_options(settings),
        render_open_metrics=metrics.render_open_metrics,
        logs=logs,
        administration=administration,
        budgets=budgets,
        control=control,
        meter=rest_meter,
        console=Console(sources, control) if settings.console.enable_console else None,
    )
    authenticator = None if credentials is None else credentials.authenticator
    rule = combined_rule(authenticator, None if make_rule is None else make_rule(models))
    guard = Guard(rule, rpc_meter, rest_meter)
    guarded_rest = guard.wrap_rest(rest)
    vertex, needs = vertex_paths(settings), credentials is not None
    return Server(
        service,
        start_models,
        models,
        manager,
        source,
        ensembles,
        remote,
        config_file,
        guard.wrap_table(control.wrap_table(rpc)),
        guarded_rest if vertex is None else VertexRoutes(guarded_rest, vertex, service, needs_credentials=needs),
        settings.console.enable_console,
        log_writer,
        control.description,
        budgets.receiving,
        budgets.sending,
        watchdog,
        OverloadGate(lambda: registry.serving, traffic, clock),
        traffic,
        metrics,
        tracing,
        addresses,
        certificates,
        credentials,
    )


def _executor(settings: Settings, metrics: DeviceMetrics, clock: Clock) -> ExecutorChoice:
    """Build the executors, in order of preference. Each imports its runtime for the first version that it takes."""
    memory = HostMemory()
    saved_model = TensorFlowOnDemand(tensorflow_options(settings), memory)
    candidates = (
        PreferredTflite(tflite_options(settings), memory),
        DevicePrograms.of(pjrt_options(settings), saved_model, metrics, clock),
        TensorFlowOrOpenVino.of(saved_model, openvino_options(settings), memory),
    )
    return ExecutorChoice(candidates, metrics)
