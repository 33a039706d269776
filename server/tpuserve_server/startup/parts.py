"""The parts of a server, each built from settings and from parts below it. `startup/app.py` shows their order."""

import os
import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Self

from tpuserve_server.access.caller import CallerModels, for_server
from tpuserve_server.core.batching.device_share import DeviceShare
from tpuserve_server.core.batching.run_threads import RunThreads
from tpuserve_server.core.batching.services import DeviceServices
from tpuserve_server.core.batching.watchdog import Watchdog
from tpuserve_server.core.models.change_record import ChangeRecord
from tpuserve_server.core.models.configuration_rules import ConfigurationRules
from tpuserve_server.core.models.configured_models import ConfiguredModels
from tpuserve_server.core.models.ensemble_source import EnsembleSource
from tpuserve_server.core.models.journal import Journal
from tpuserve_server.core.models.manager import VersionManager
from tpuserve_server.core.models.model_memory import ModelMemory
from tpuserve_server.core.models.registry import ModelRegistry
from tpuserve_server.core.models.residency import Residency
from tpuserve_server.core.models.source import Source
from tpuserve_server.core.serving.budgets import Budgets
from tpuserve_server.core.serving.service import InferenceService, OverloadGate
from tpuserve_server.core.system.memory import HostMemory
from tpuserve_server.core.terms.deadline import Clock, WaitingClock
from tpuserve_server.core.terms.server_state import Traffic
from tpuserve_server.core.terms.validation import ShapeRules
from tpuserve_server.ensembles.runner import EnsembleLoader
from tpuserve_server.executors.choice import ChosenTracer, ExecutorChoice
from tpuserve_server.hosts.certificates import CertificateWatch
from tpuserve_server.hosts.limits import find_connection_limit
from tpuserve_server.observe.logs.configuration import dropped_events
from tpuserve_server.observe.metrics.live_measurements import LiveMeasurements, version_statistics
from tpuserve_server.observe.metrics.load_report import LoadReports
from tpuserve_server.observe.metrics.prometheus import PrometheusMetrics
from tpuserve_server.observe.metrics.server_measurements import ServerParts
from tpuserve_server.observe.request_log.request_logs import RequestLogs
from tpuserve_server.observe.request_log.writer import LogWriter
from tpuserve_server.observe.requests.loop_watch import LoopWatch
from tpuserve_server.observe.requests.request_record import Observers
from tpuserve_server.observe.requests.slow_requests import SlowRequests
from tpuserve_server.observe.tracing.request_tracing import RequestTracing
from tpuserve_server.protocols.console.console import Console
from tpuserve_server.protocols.console.sources import Addresses, ConsoleSources, ServerFacts
from tpuserve_server.protocols.control import Control
from tpuserve_server.protocols.exchanges import Exchanges
from tpuserve_server.protocols.grpc_methods import INFERENCE_NAMES
from tpuserve_server.protocols.guard import Guard, Rule, combined_rule
from tpuserve_server.protocols.http.cross_origin import CrossOrigin
from tpuserve_server.protocols.oip.administration import Administration
from tpuserve_server.protocols.oip.shared_memory import SharedMemoryRegions
from tpuserve_server.protocols.request_meter import RequestMeter
from tpuserve_server.protocols.rest import rest_app
from tpuserve_server.protocols.rpc import GuardedTable
from tpuserve_server.protocols.table import rpc_table
from tpuserve_server.protocols.vertex.routes import VertexRoutes
from tpuserve_server.startup.build_facts import build_info, changed_flags, installed_packages
from tpuserve_server.startup.model_config_file import ModelConfigFile, StartModels, model_config_file, read_start_models
from tpuserve_server.startup.options import (
    access_log,
    loading_options,
    model_storage,
    reload_roots,
    remote_storage,
    request_tracing,
    required_signatures,
    rest_options,
    vertex_paths,
)
from tpuserve_server.startup.settings import Settings
from tpuserve_server.storage.by_scheme import ArtifactStorage, StorageByScheme
from tpuserve_server.storage.remote import RemoteStorage
from tpuserve_server.versions.loading import LoadingOptions, VersionLoader

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from tpuserve_server.access.files import CredentialFiles


@dataclass(frozen=True, slots=True)
class Observation:
    """Metrics, logs and traces of requests. `slow` keeps slow requests for the console."""

    metrics: PrometheusMetrics
    log_writer: LogWriter
    logs: RequestLogs
    tracing: RequestTracing | None
    slow: SlowRequests
    observers: Observers
    loop_watch: LoopWatch

    @classmethod
    def build(cls, settings: Settings, clock: Clock) -> Self:
        """Build the parts. Raises ConfigError if the receiver of traces cannot be used."""
        metrics = PrometheusMetrics(with_triton=settings.metrics.triton)
        slow = SlowRequests(INFERENCE_NAMES)
        log_writer = LogWriter(settings.rotation, clock, metrics)
        logs = RequestLogs(settings.request_log, log_writer)
        tracing = request_tracing(settings, clock, metrics)
        observers = Observers((slow, *access_log(settings)), tracing)
        return cls(metrics, log_writer, logs, tracing, slow, observers, LoopWatch(metrics.demand.sample))


@dataclass(frozen=True, slots=True)
class Loading:
    """Storage, and the loader of versions onto devices."""

    remote: RemoteStorage
    storage: StorageByScheme | ArtifactStorage
    options: LoadingOptions
    watchdog: Watchdog
    tracer: ChosenTracer | None
    versions: VersionLoader
    memory: ModelMemory
    device: DeviceShare

    @classmethod
    def build(
        cls,
        settings: Settings,
        clock: WaitingClock,
        metrics: PrometheusMetrics,
        executor: ExecutorChoice,
        journal: Journal | None,
        host_memory: HostMemory,
    ) -> Self:
        """Build the parts. Raises ConfigError if the parameters of batching or the keys of signatures are unusable."""
        remote = remote_storage(settings)
        storage, options = model_storage(settings, remote), loading_options(settings)
        slots = settings.server.device_slots
        watchdog = Watchdog(clock, settings.watchdog)
        tracer = ChosenTracer(executor.tracer) if settings.server.enable_profiler else None
        device = DeviceShare(slots or os.cpu_count() or 1, only_weighted=not slots, clock=clock)
        memory = ModelMemory(clock, settings.residency.model_memory_bytes)
        host_memory.relieve_with(memory.relieve)
        versions = VersionLoader(
            storage,
            executor,
            options,
            DeviceServices(clock, metrics, device, watchdog, tracer, RunThreads(clock)),
            settings.loading.timeout_s,
            required_signatures(settings),
            journal,
            memory,
        )
        return cls(remote, storage, options, watchdog, tracer, versions, memory, device)


@dataclass(frozen=True, slots=True)
class Models:
    """The models, from their sources to the service that answers for them. `start` are those of the start."""

    config_file: ModelConfigFile | None
    start: StartModels
    registry: ModelRegistry
    service: InferenceService
    manager: VersionManager
    source: Source
    ensembles: EnsembleSource
    configured: ConfiguredModels
    residency: Residency

    @classmethod
    def build(
        cls,
        settings: Settings,
        clock: WaitingClock,
        observation: Observation,
        loading: Loading,
        access: CallerModels | None,
        record: ChangeRecord | None,
    ) -> Self:
        """Build the parts. Raises ConfigError if the model configuration file cannot be used."""
        config_file = model_config_file(settings.models, record)
        start = read_start_models(settings.models, config_file, record)
        registry = ModelRegistry(start.names, observation.metrics)
        shapes = ShapeRules(settings.server.lenient_shapes)
        residency = Residency(registry, clock, settings.residency, loading.memory)
        service = InferenceService(registry, clock, loading.watchdog, access, shapes, residency)
        loader = EnsembleLoader(loading.versions, for_server(service.acquire))
        manager = VersionManager(registry, loader, clock, settings.loading)
        poll_wait_s = settings.models.file_system_poll_wait_seconds
        source = Source(
            loading.storage,
            manager.aspire,
            poll_wait_s=poll_wait_s,
            clock=clock,
            on_pending=registry.expect,
            prepare=loading.remote.prepare,
        )
        ensembles = EnsembleSource(registry, manager.aspire, registry.expect)
        configured = ConfiguredModels(
            registry,
            manager,
            source,
            ensembles,
            loading.storage,
            clock,
            ConfigurationRules(
                reload_roots(settings),
                settings.models.allow_version_labels_for_unavailable_models,
                settings.models.allow_reload_without_models,
                (loading.storage.check, observation.logs.check, loading.options.check),
            ),
            record,
            settings.residency.load_policy,
        )
        configured.observe(observation.logs.configure)
        return cls(config_file, start, registry, service, manager, source, ensembles, configured, residency)


@dataclass(frozen=True, slots=True)
class Edge:
    """Parts that the protocols and the host share."""

    budgets: Budgets
    traffic: Traffic
    load_reports: LoadReports
    overload_gate: OverloadGate
    control: Control
    addresses: Addresses
    certificates: CertificateWatch

    @classmethod
    def build(
        cls, settings: Settings, clock: Clock, metrics: PrometheusMetrics, models: Models, device: DeviceShare
    ) -> Self:
        """Build the parts. `metrics` read their state from now on."""
        max_bytes, write_timeout_s = settings.listening.max_request_bytes, settings.host.write_timeout_s
        budgets = Budgets.of(settings.budgets, max_bytes, clock, write_timeout_s)
        traffic, certificates = Traffic(), CertificateWatch()
        gate = OverloadGate(models.registry.serving, traffic, clock)
        most = find_connection_limit(settings.host)
        metrics.server.server_built(
            ServerParts(
                models.service,
                models.residency,
                budgets,
                build_info(),
                dropped_events,
                traffic,
                most,
                certificates.find,
                device,
            )
        )
        reports = LoadReports(metrics, clock)
        return cls(budgets, traffic, reports, gate, Control(settings.control), Addresses(), certificates)


@dataclass(frozen=True, slots=True)
class FrontEnds:
    """The protocols behind their guard."""

    rpc: GuardedTable
    rest: "ASGIApp"
    # Those of `rest`, if nothing stands between it and its clients.
    rest_exchanges: Exchanges | None

    @classmethod
    def build(
        cls,
        settings: Settings,
        clock: Clock,
        credentials: "CredentialFiles | None",
        observation: Observation,
        tracer: ChosenTracer | None,
        models: Models,
        edge: Edge,
        rule: Rule | None,
    ) -> Self:
        """Build the protocols. Raises ConfigError if a route of Vertex AI or the monitoring file cannot be used.

        `rule` is one more rule for every request, which a request meets after the check of its client.
        """
        metrics, service, budgets = observation.metrics, models.service, edge.budgets
        rpc_meter = RequestMeter(service, metrics, clock, "grpc", observation.observers)
        rest_meter = RequestMeter(service, metrics, clock, "rest", observation.observers)
        administration = _administration(settings, clock, metrics, models)
        rpc = rpc_table(
            service,
            metrics,
            clock,
            models=models.configured,
            administration=administration,
            logs=observation.logs,
            serialize_as_content=settings.server.enable_serialization_as_tensor_content,
            tracer=tracer,
            check_method_names=settings.server.enable_signature_method_name_check,
            max_request_bytes=settings.listening.max_request_bytes,
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
            logs=observation.logs,
            administration=administration,
            budgets=budgets,
            control=edge.control,
            meter=rest_meter,
            console=_console(settings, clock, credentials, observation, service, edge),
        )
        authenticator = None if credentials is None else credentials.authenticator
        guard = Guard(combined_rule(authenticator, rule), rpc_meter, rest_meter)
        guarded, vertex = guard.wrap_rest(rest), vertex_paths(settings)
        needs = credentials is not None
        routes = guarded if vertex is None else VertexRoutes(guarded, vertex, service, needs_credentials=needs)
        app = CrossOrigin(routes) if settings.listening.rest_api_enable_cors_support else routes
        return cls(guard.wrap_table(edge.control.wrap_table(rpc)), app, rest.exchanges if app is rest else None)


def _administration(settings: Settings, clock: Clock, metrics: PrometheusMetrics, models: Models) -> Administration:
    regions = SharedMemoryRegions(settings.shared_memory, settings.listening.max_request_bytes)
    statistics = partial(version_statistics, metrics)
    name = settings.metadata.server_name
    return Administration(models.service, clock, statistics, regions, models.configured, name)


def _console(
    settings: Settings,
    clock: Clock,
    credentials: "CredentialFiles | None",
    observation: Observation,
    service: InferenceService,
    edge: Edge,
) -> Console | None:
    if not settings.console.enable_console:
        return None
    sources = ConsoleSources(
        service,
        LiveMeasurements(observation.metrics, clock),
        observation.slow,
        observation.metrics.server.in_flight,
        edge.budgets,
        ServerFacts(build_info(), time.time(), clock.monotonic_s(), installed_packages(), changed_flags(settings)),
        edge.addresses,
        edge.certificates.find,
        clock,
        credentials,
    )
    return Console(sources, edge.control)
