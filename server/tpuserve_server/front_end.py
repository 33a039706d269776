"""Object graph of a front-end process: it receives, checks, decodes and encodes, and an engine process has the models.

`app.py` is the object graph of the engine, and of a server of one process.
"""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn

from tpuserve_server.command.credentials import open_credentials
from tpuserve_server.command.front_ends import front_end_processes
from tpuserve_server.command.options import access_log, request_tracing, rest_options
from tpuserve_server.command.packages import build_info
from tpuserve_server.command.settings import Settings
from tpuserve_server.core.budgets.budgets import Budgets
from tpuserve_server.core.budgets.receiving import ReceivingBudget
from tpuserve_server.core.budgets.sending import SendingBudget
from tpuserve_server.core.certificate_status import CertificateStatus
from tpuserve_server.core.deadline import SystemClock
from tpuserve_server.core.overload_gate import OverloadGate
from tpuserve_server.core.registry import ModelRegistry
from tpuserve_server.core.replacement import NO_LINK, Replacement
from tpuserve_server.core.service import InferenceService
from tpuserve_server.core.validation import ShapeRules
from tpuserve_server.frontends.access_rule import combined_rule
from tpuserve_server.frontends.guard import Guard
from tpuserve_server.frontends.guarded import GuardedTable
from tpuserve_server.frontends.request_meter import RequestMeter
from tpuserve_server.frontends.rest import rest_app
from tpuserve_server.frontends.table import rpc_table
from tpuserve_server.hosts.application import Listening
from tpuserve_server.hosts.in_flight import InFlight
from tpuserve_server.identity.caller import CallerModels
from tpuserve_server.identity.files import CredentialFiles
from tpuserve_server.link.connection import Connection
from tpuserve_server.link.front_end import FrontEndLink
from tpuserve_server.link.measuring import ShareSender
from tpuserve_server.logs.configuration import dropped_events
from tpuserve_server.metrics.prometheus import PrometheusMetrics
from tpuserve_server.metrics.server_measurements import ServerParts
from tpuserve_server.telemetry.loop_watch import LoopWatch
from tpuserve_server.telemetry.observers import Observers
from tpuserve_server.telemetry.slow_requests import SlowRequests
from tpuserve_server.telemetry.tracing.request_tracing import RequestTracing
from tpuserve_server.tunnel.client import Tunnel
from tpuserve_server.tunnel.split import EngineOnly, SplitGrpc, SplitRest

if TYPE_CHECKING:
    from starlette.types import ASGIApp


class FrontEnd:
    """Application of a front-end process."""

    def __init__(
        self,
        service: InferenceService,
        link: FrontEndLink,
        tunnel: Tunnel,
        shares: ShareSender,
        engine_only: EngineOnly,
        rpc: GuardedTable,
        rest: "ASGIApp",
        in_flight: InFlight,
        receiving: ReceivingBudget,
        sending: SendingBudget,
        overload_gate: OverloadGate,
        tracing: RequestTracing | None,
        credentials: CredentialFiles | None,
    ) -> None:
        """Wire the parts without starting them."""
        self.rpc = rpc
        self.rest = rest
        self.receiving = receiving
        self.sending = sending
        self.overload_gate = overload_gate
        self._service = service
        self._link = link
        self._tunnel = tunnel
        self._shares = shares
        self._engine_only = engine_only
        self._in_flight = in_flight
        self._tracing = tracing
        self._credentials = credentials
        self._loop_watch = LoopWatch()
        self._lost = asyncio.Event()

    async def start(self) -> None:
        """Connect to the engine, and wait until its models are known."""
        if self._tracing is not None:
            self._tracing.start()
        if self._credentials is not None:
            self._credentials.start()
        self._loop_watch.start()
        await self._link.start({**self._tunnel.handlers(), **self._shares.handlers}, self._lose_link)
        self._shares.start()

    def _lose_link(self) -> None:
        self._tunnel.end()
        self._lost.set()

    async def ready(self) -> None:
        """Return at once: the supervisor starts this process when the ports may open."""

    async def failure(self) -> str:
        """Wait for ever: the engine reports the failure of models."""
        return await _never()

    async def replacement(self) -> Replacement:
        """Wait for the end of the link. If the engine still runs, another process gets a new link to it."""
        await self._lost.wait()
        return Replacement(NO_LINK, "The link to the engine process has ended")

    def split_grpc(self, local: "ASGIApp") -> "ASGIApp":
        """Return the application that answers predictions with `local`, and lets the engine answer all other calls."""
        return SplitGrpc(local, self._tunnel, self.rpc, self._engine_only, self._in_flight)

    def add_metrics(self, source: str, read: Callable[[], str]) -> None:
        """Send the host's own metrics to the engine."""
        self._shares.add_figures(read)

    def announce(self, listening: Listening) -> None:
        """Do nothing: the engine reports the addresses."""

    def show_certificates(self, status: CertificateStatus) -> None:
        """Do nothing: the engine shows the certificates."""

    def reload(self) -> None:
        """Poll the files of credentials soon."""
        if self._credentials is not None:
            self._credentials.poll_soon()

    def drain(self) -> None:
        """Report that the server is not ready. The front-end still answers requests."""
        self._service.drain()

    async def stop(self) -> None:
        """Stop, and send the last measurements. Call this after the last request."""
        if self._credentials is not None:
            await asyncio.to_thread(self._credentials.stop)
        await asyncio.to_thread(self._loop_watch.stop)
        if self._tracing is not None:
            await asyncio.to_thread(self._tracing.stop)
        # The export of the last traces counts, too.
        await self._shares.stop()
        self._link.close()


def build_front_end(settings: Settings, connection: Connection, in_flight: InFlight) -> FrontEnd:
    """Build a front-end from validated settings. `in_flight` counts the calls of its host."""
    clock, metrics = SystemClock(), PrometheusMetrics()
    registry = ModelRegistry((), metrics)
    credentials = open_credentials(settings)
    access = None if credentials is None else CallerModels()
    shapes = ShapeRules(settings.server.lenient_shapes)
    service = InferenceService(registry, clock, access=access, shapes=shapes)
    link, tunnel = FrontEndLink(connection, registry, clock, metrics), Tunnel(connection, in_flight, clock)
    slow = SlowRequests()
    shares = ShareSender(connection, metrics, slow)
    tracing = request_tracing(settings, clock, metrics)
    observers = Observers((slow, *access_log(settings)), tracing)
    max_bytes = settings.listening.max_request_bytes
    processes, write_timeout_s = front_end_processes(settings), settings.host.write_timeout_s
    budgets = Budgets.of(settings.budgets, max_bytes, clock, processes, write_timeout_s)
    metrics.server.server_built(ServerParts(service, budgets, build_info("envoy"), dropped_events, lambda: None))
    rpc_meter = RequestMeter(service, metrics, clock, "grpc", observers)
    rest_meter = RequestMeter(service, metrics, clock, "rest", observers)
    rpc = rpc_table(
        service,
        metrics,
        clock,
        serialize_as_content=settings.server.enable_serialization_as_tensor_content,
        check_method_names=settings.server.enable_signature_method_name_check,
        max_request_bytes=max_bytes,
        decoded=budgets.decoded,
        responses=budgets.response,
        meter=rpc_meter,
    )
    rest = rest_app(service, metrics, clock, metrics.render, rest_options(settings), budgets=budgets, meter=rest_meter)
    authenticator = None if credentials is None else credentials.authenticator
    guard = Guard(combined_rule(authenticator, None), rpc_meter, rest_meter)
    mirror = link.mirror
    engine_only = EngineOnly(lambda: mirror.engine_only, lambda: mirror.is_oip_in_engine)
    return FrontEnd(
        service,
        link,
        tunnel,
        shares,
        engine_only,
        guard.wrap_table(rpc),
        SplitRest(guard.wrap_rest(rest), tunnel, rest.facts_of, engine_only),
        in_flight,
        budgets.receiving,
        budgets.sending,
        # The forecasts of models that only the engine answers are unknown here.
        OverloadGate(lambda: () if mirror.engine_only else registry.serving, metrics, clock),
        tracing,
        credentials,
    )


async def _never() -> NoReturn:
    while True:
        await asyncio.get_running_loop().create_future()
