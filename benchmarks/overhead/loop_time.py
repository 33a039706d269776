"""Loop time of a request: CPU of the event loop's thread, with the ASGI application in this process.

There is no socket, and the device answers at once. The parts are differences between applications that do
ever more of the work.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
from rich.table import Table

from benchmarks.harness.echo_asgi import app as echo
from benchmarks.harness.load_tools import FRAME_HEADER_BYTES
from benchmarks.harness.measurement import WrongAnswer
from benchmarks.harness.mlp_model import example
from benchmarks.harness.turns import in_turn
from benchmarks.overhead.instant_model import answer, instant_registry
from benchmarks.overhead.loop_load import IN_FLIGHT, Request, replies, run
from benchmarks.peers.wire import INFER_BINARY, INFER_GRPC, INFER_REST, PREDICT_GRPC, PREDICT_REST, Wire
from tpuserve_server.access.access import PREDICT
from tpuserve_server.core.models.registry import ModelRegistry
from tpuserve_server.core.serving.receiving import ReceivingBudget
from tpuserve_server.core.serving.sending import SendingBudget
from tpuserve_server.core.serving.service import InferenceService, OverloadGate
from tpuserve_server.core.system.memory import settle_garbage_collector
from tpuserve_server.core.terms.deadline import SystemClock
from tpuserve_server.core.terms.server_state import Traffic
from tpuserve_server.hosts.grpc_calls import GrpcOverAsgi
from tpuserve_server.hosts.in_flight import InFlight
from tpuserve_server.hosts.rest_calls import RestCalls
from tpuserve_server.observe.metrics.prometheus import PrometheusMetrics
from tpuserve_server.observe.requests.request_record import Observers
from tpuserve_server.observe.requests.slow_requests import SlowRequests
from tpuserve_server.protocols.grpc_methods import INFERENCE_NAMES
from tpuserve_server.protocols.request_meter import RequestMeter
from tpuserve_server.protocols.rest import RestOptions, rest_app
from tpuserve_server.protocols.rpc import CallContext, RpcTable, UnaryMethod, admit_every_call
from tpuserve_server.protocols.table import rpc_table

if TYPE_CHECKING:
    from starlette.types import ASGIApp

ROUNDS, QUICK_ROUNDS, REQUESTS = 15, 5, 3000
WIRES: Final = (PREDICT_GRPC, INFER_GRPC, INFER_BINARY, PREDICT_REST, INFER_REST)
_BUDGET_BYTES: Final = 64 << 20


@dataclass(frozen=True, slots=True)
class LoopPart:
    """A part of a request: CPU of the event loop's thread in microseconds, and its share of the whole."""

    name: str
    cpu_us: float
    share: float


@dataclass(frozen=True, slots=True)
class LoopTime:
    """CPU of a request in microseconds: the event loop's thread by part, and all device threads."""

    wire: str
    parts: tuple[LoopPart, ...]
    loop_us: float
    device_us: float


def measure_loop(rounds: int, requests: int = REQUESTS) -> tuple[LoopTime, ...]:
    """Measure the applications in turn, `requests` each in every round, and return the medians over the rounds.

    Raises WrongAnswer if the server does not answer with the model's output.
    """
    settle_garbage_collector()
    metrics = PrometheusMetrics()
    with instant_registry(metrics) as registry:
        service = InferenceService(registry, SystemClock())
        found = [_Turns(wire, service, registry, metrics, requests) for wire in WIRES]
        for number in range(rounds):
            for turns in in_turn(found, number):
                turns.take(number)
    return tuple(turns.result() for turns in found)


class _Turns:
    """The applications of one wire, each with more of the work than the one before it, and their times."""

    def __init__(
        self, wire: Wire, service: InferenceService, registry: ModelRegistry, metrics: PrometheusMetrics, requests: int
    ) -> None:
        self._title = wire.title
        self._request = Request(wire)
        self._requests = requests
        make = _grpc_apps if wire.protocol == "grpc" else _rest_apps
        host, server = make(wire, service, registry, metrics)
        self._apps: dict[str, ASGIApp] = {"event loop": echo, "host": host, "front-end, wire and core": server}
        self._times: dict[str, list[tuple[float, float]]] = {name: [] for name in self._apps}
        _check(server, wire, self._request)
        for app in self._apps.values():
            run(app, self._request, requests)

    def take(self, number: int) -> None:
        for name in in_turn(tuple(self._apps), number):
            self._times[name].append(run(self._apps[name], self._request, self._requests))

    def result(self) -> LoopTime:
        return _attributed(self._title, {name: _medians(found) for name, found in self._times.items()})


def loop_table(found: Sequence[LoopTime]) -> Table:
    """Return a row for each wire."""
    table = Table(
        title=f"Loop time of a request in us, {IN_FLIGHT} in flight, in one process without sockets",
        title_justify="left",
        caption="CPU of the event loop's thread for each request, by the parts of the server, with each part's share. "
        "The device thread joins and splits batches for a device that answers at once.",
        caption_justify="left",
    )
    table.add_column("request")
    for heading in (*(part.name for part in found[0].parts), "loop time", "device thread"):
        table.add_column(heading, justify="right")
    for each in found:
        parts = [f"{part.cpu_us:.1f} ({part.share:.0%})" for part in each.parts]
        table.add_row(each.wire, *parts, f"{each.loop_us:.1f}", f"{each.device_us:.1f}")
    return table


def _attributed(wire: str, medians: Mapping[str, tuple[float, float]]) -> LoopTime:
    whole_us, device_us = list(medians.values())[-1]
    parts, before_us = [], 0.0
    for name, (loop_us, _) in medians.items():
        parts.append(LoopPart(name, loop_us - before_us, (loop_us - before_us) / whole_us))
        before_us = loop_us
    return LoopTime(wire, tuple(parts), whole_us, device_us)


def _medians(found: Sequence[tuple[float, float]]) -> tuple[float, float]:
    loop_us, device_us = zip(*found, strict=True)
    return statistics.median(loop_us), statistics.median(device_us)


def _grpc_apps(
    wire: Wire, service: InferenceService, registry: ModelRegistry, metrics: PrometheusMetrics
) -> "tuple[ASGIApp, ASGIApp]":
    clock = SystemClock()
    meter = RequestMeter(service, metrics, clock, "grpc", Observers((SlowRequests(INFERENCE_NAMES),)))
    table = rpc_table(service, metrics, clock, meter=meter)
    echoed: RpcTable = {wire.path: UnaryMethod(_echo, PREDICT)}
    return _grpc_host(echoed, registry, metrics), _grpc_host(table, registry, metrics)


def _grpc_host(table: RpcTable, registry: ModelRegistry, metrics: PrometheusMetrics) -> GrpcOverAsgi:
    clock = SystemClock()
    return GrpcOverAsgi(
        admit_every_call(table),
        max_message_bytes=_BUDGET_BYTES,
        in_flight=InFlight(),
        receiving=ReceivingBudget(_BUDGET_BYTES, _BUDGET_BYTES, clock),
        sending=SendingBudget(1 << 30, 1 << 30, 30, SystemClock()),
        gate=OverloadGate(registry.serving, Traffic(), clock),
    )


async def _echo(message: bytes, _context: CallContext) -> bytes:
    return message


def _rest_apps(
    _wire: Wire, service: InferenceService, registry: ModelRegistry, metrics: PrometheusMetrics
) -> "tuple[ASGIApp, ASGIApp]":
    clock = SystemClock()
    observers = Observers((SlowRequests(INFERENCE_NAMES),))
    app = rest_app(service, metrics, clock, lambda: ([b""], ""), RestOptions(), observers=observers)
    gate = OverloadGate(registry.serving, Traffic(), clock)
    return RestCalls(echo, InFlight(), gate), RestCalls(app, InFlight(), gate)


def _check(app: "ASGIApp", wire: Wire, request: Request) -> None:
    """Raise WrongAnswer if the application does not answer with the model's output."""
    expected = answer(example())
    for reply in replies(app, request):
        message = reply._replace(body=reply.body[FRAME_HEADER_BYTES:]) if wire.protocol == "grpc" else reply
        found = wire.decode(message)
        if not np.allclose(found, expected, atol=1e-5):
            raise WrongAnswer(f"expected {expected}, got {found}")
