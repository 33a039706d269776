"""Loop time of a gRPC Predict: CPU of the event loop's thread, with the ASGI application in this process.

There is no Envoy and no socket, and the device answers at once. The parts are differences between applications that do
ever more of the work.
"""

import asyncio
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import uvloop
from rich.table import Table

from benchmarks.harness.echo_asgi import app as echo
from benchmarks.harness.load_tools import framed
from benchmarks.harness.measurement import FRAME_HEADER_BYTES, WrongAnswer
from benchmarks.harness.mlp_model import INPUT, OUTPUT, example
from benchmarks.harness.targets import GRPC_PATH
from benchmarks.overhead.instant_model import ID, answer, instant_registry
from tpuserve_client.exchange import PredictCall
from tpuserve_client.grpc_wire import GrpcWire
from tpuserve_client.model import ModelSpec
from tpuserve_formats.messages.official import PredictResponse
from tpuserve_formats.tensor_proto import decode_tensor
from tpuserve_server.core.budgets.receiving import ReceivingBudget
from tpuserve_server.core.deadline import SystemClock
from tpuserve_server.core.garbage import settle_garbage_collector
from tpuserve_server.core.overload_gate import OverloadGate
from tpuserve_server.core.registry import ModelRegistry
from tpuserve_server.core.service import InferenceService
from tpuserve_server.frontends.guarded import admit_every_call
from tpuserve_server.frontends.request_meter import RequestMeter
from tpuserve_server.frontends.rpc import CallContext, RpcTable, UnaryMethod
from tpuserve_server.frontends.table import rpc_table
from tpuserve_server.hosts.disconnects import DisconnectWatch
from tpuserve_server.hosts.grpc.asgi import GrpcOverAsgi
from tpuserve_server.hosts.in_flight import InFlight
from tpuserve_server.identity.access import PREDICT
from tpuserve_server.metrics.prometheus import PrometheusMetrics
from tpuserve_server.telemetry.observers import Observers
from tpuserve_server.telemetry.slow_requests import SlowRequests

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message

IN_FLIGHT: Final = 32
ROUNDS, QUICK_ROUNDS, REQUESTS = 15, 5, 3000
_BUDGET_BYTES: Final = 64 << 20
# As Envoy passes them on.
_HEADERS: Final = [
    (b":method", b"POST"),
    (b":scheme", b"http"),
    (b":path", GRPC_PATH.encode()),
    (b":authority", b"server:8500"),
    (b"te", b"trailers"),
    (b"content-type", b"application/grpc"),
    (b"user-agent", b"grpc-python/1.80.0 grpc-c/50.0.0 (linux; chttp2)"),
    (b"grpc-accept-encoding", b"identity, deflate, gzip"),
]


@dataclass(frozen=True, slots=True)
class LoopPart:
    """A part of a request: CPU of the event loop's thread in microseconds, and its share of the whole."""

    name: str
    cpu_us: float
    share: float


@dataclass(frozen=True, slots=True)
class LoopTime:
    """CPU of a request in microseconds: the event loop's thread by part, and all device threads."""

    parts: tuple[LoopPart, ...]
    loop_us: float
    device_us: float


def measure_loop(rounds: int, requests: int = REQUESTS) -> LoopTime:
    """Measure the applications in turn, `requests` each in every round, and return the medians over the rounds.

    Raises WrongAnswer if the server does not answer with the model's output.
    """
    settle_garbage_collector()
    metrics = PrometheusMetrics()
    clock = SystemClock()
    with instant_registry(metrics) as registry:
        service = InferenceService(registry, clock)
        meter = RequestMeter(service, metrics, clock, "grpc", Observers((SlowRequests(),)))
        table = rpc_table(service, metrics, clock, meter=meter)
        server = _host(table, registry, metrics)
        _check(server)
        apps: dict[str, ASGIApp] = {
            "event loop": echo,
            "host": _host({GRPC_PATH: UnaryMethod(_echo, PREDICT)}, registry, metrics),
            "front-end, wire and core": server,
        }
        times: dict[str, list[tuple[float, float]]] = {name: [] for name in apps}
        for app in apps.values():
            _run(app, requests)
        for _ in range(rounds):
            for name, app in apps.items():
                times[name].append(_run(app, requests))
    return _attributed({name: _medians(found) for name, found in times.items()})


def loop_table(found: LoopTime) -> Table:
    """Return a row for each part."""
    table = Table(
        title=f"Loop time of a gRPC Predict, {IN_FLIGHT} in flight, in one process without Envoy",
        title_justify="left",
        caption="CPU of the event loop's thread for each request, by the parts of the server. The device thread joins "
        "and splits batches for a device that answers at once.",
        caption_justify="left",
    )
    table.add_column("part")
    for heading in ("us", "share"):
        table.add_column(heading, justify="right")
    for part in found.parts:
        table.add_row(part.name, f"{part.cpu_us:.1f}", f"{part.share:.0%}")
    table.add_row("loop time", f"{found.loop_us:.1f}", "")
    table.add_row("device thread", f"{found.device_us:.1f}", "")
    return table


def _attributed(medians: Mapping[str, tuple[float, float]]) -> LoopTime:
    whole_us, device_us = list(medians.values())[-1]
    parts, before_us = [], 0.0
    for name, (loop_us, _) in medians.items():
        parts.append(LoopPart(name, loop_us - before_us, (loop_us - before_us) / whole_us))
        before_us = loop_us
    return LoopTime(tuple(parts), whole_us, device_us)


def _medians(found: Sequence[tuple[float, float]]) -> tuple[float, float]:
    loop_us, device_us = zip(*found, strict=True)
    return statistics.median(loop_us), statistics.median(device_us)


def _host(table: RpcTable, registry: ModelRegistry, metrics: PrometheusMetrics) -> GrpcOverAsgi:
    clock = SystemClock()
    return GrpcOverAsgi(
        admit_every_call(table),
        max_message_bytes=_BUDGET_BYTES,
        in_flight=InFlight(),
        watch=DisconnectWatch(),
        receiving=ReceivingBudget(_BUDGET_BYTES, _BUDGET_BYTES, clock),
        gate=OverloadGate(lambda: registry.serving, metrics, clock),
    )


async def _echo(message: bytes, _context: CallContext) -> bytes:
    return message


def request_body() -> bytes:
    """Return a frame with a PredictRequest of one row."""
    return framed(GrpcWire().predict(PredictCall(ModelSpec(ID.name), {INPUT: example()})).body)


def _run(app: "ASGIApp", requests: int) -> tuple[float, float]:
    """Return the CPU of the loop's thread and of all others for each request, in microseconds."""
    return uvloop.run(_Load(app, requests).run())


class _Load:
    """Requests of which IN_FLIGHT are in flight at a time. As in Envoy's embedding, each has a separate task.

    With `keeps_answers`, `answers` gets the bodies of the responses.
    """

    def __init__(self, app: "ASGIApp", requests: int, *, keeps_answers: bool = False) -> None:
        self._app = app
        self._left = requests
        self._pending = 0
        self._keeps_answers = keeps_answers
        self.answers: list[bytes] = []
        self._body = request_body()

    async def run(self) -> tuple[float, float]:
        self._loop = asyncio.get_running_loop()
        self._received: asyncio.Future[Message] = self._loop.create_future()
        self._received.set_result({"type": "http.request", "body": self._body, "more_body": False})
        self._sent: asyncio.Future[None] = self._loop.create_future()
        self._sent.set_result(None)
        self._done: asyncio.Future[None] = self._loop.create_future()
        requests = self._left
        thread_s, process_s = time.thread_time(), time.process_time()
        for _ in range(min(IN_FLIGHT, requests)):
            self._begin()
        await self._done
        thread_s, process_s = time.thread_time() - thread_s, time.process_time() - process_s
        return 1e6 * thread_s / requests, 1e6 * (process_s - thread_s) / requests

    def _begin(self) -> None:
        self._left -= 1
        self._pending += 1
        scope = {
            "type": "http",
            "method": "POST",
            "path": GRPC_PATH,
            "headers": _HEADERS,
            "client": ("127.0.0.1", 50000),
            "extensions": {"http.response.trailers": {}},
        }
        asyncio.ensure_future(self._app(scope, self._receive, self._send)).add_done_callback(self._ended)

    def _receive(self) -> "asyncio.Future[Message]":
        return self._received

    def _send(self, message: "Message") -> "asyncio.Future[None]":
        if self._keeps_answers and message["type"] == "http.response.body":
            self.answers.append(message["body"])
        return self._sent

    def _ended(self, task: "asyncio.Future[None]") -> None:
        task.result()
        self._pending -= 1
        if self._left:
            self._begin()
        elif not self._pending:
            self._done.set_result(None)


def _check(app: "ASGIApp") -> None:
    """Raise WrongAnswer if the application does not answer with the model's output."""
    load = _Load(app, IN_FLIGHT, keeps_answers=True)
    uvloop.run(load.run())
    expected = answer(example())
    for got in load.answers:
        response = PredictResponse.FromString(got[FRAME_HEADER_BYTES:])
        if not (decode_tensor(response.outputs[OUTPUT]) == expected).all():
            raise WrongAnswer(f"expected {expected}, got {response}")
