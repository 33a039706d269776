"""Tests for measurements between the processes of a server, over real sockets in one event loop."""

import asyncio
import contextlib
import socket
import threading
from collections.abc import AsyncIterator, Callable

import httpx
import pytest

from tests.support.fakes import FakeClock
from tests.support.measured import ID, finish
from tpuserve_server.core.batching.batch_run import BatchRun, Departure
from tpuserve_server.core.errors import Code
from tpuserve_server.core.registry import ModelRegistry
from tpuserve_server.core.service import InferenceService
from tpuserve_server.core.task_times import TaskTimes
from tpuserve_server.core.types import State
from tpuserve_server.frontends.rest import RestOptions, rest_app
from tpuserve_server.hosts.envoy.fleet_figures import FigureError, FleetFigures
from tpuserve_server.link.connection import Connection
from tpuserve_server.link.measuring import ASK, ShareReceiver, ShareSender
from tpuserve_server.metrics.prometheus import PrometheusMetrics
from tpuserve_server.telemetry.request_record import RequestRecord
from tpuserve_server.telemetry.slow_requests import SlowRequests
from tpuserve_server.telemetry.trace_context import TraceContext

# No test waits for it: each waits for an answer, or for its absence in NO_TIME_S.
LONG_S, NO_TIME_S = 60.0, 0.01
FIGURES = "# TYPE envoy_x counter\nenvoy_x 5\n"


class Engine:
    """The measuring parts of an engine process."""

    def __init__(self) -> None:
        self.metrics, self.slow, self.figures = PrometheusMetrics(), SlowRequests(), FleetFigures()
        self.receiver = ShareReceiver(self.metrics, self.slow, self.figures)
        self.metrics.version_changed(servable=ID, state=State.AVAILABLE)
        self.ends: list[Connection] = []

    def connect(self) -> Connection:
        """Return the front-end's end of a new connection."""
        own, other = (Connection(end) for end in socket.socketpair())
        handlers, end = self.receiver.open(own)
        own.start(handlers, end)
        self.ends += (own, other)
        return other

    def requests(self) -> int:
        return sum(histogram.total() for _, histogram in self.metrics.requests())


class FrontEnd:
    """The measuring parts of a front-end process. It sends a share when it starts, and when it is asked."""

    def __init__(self, engine: Engine, read: Callable[[], str] = lambda: FIGURES, period_s: float = LONG_S) -> None:
        self.metrics, self.slow = PrometheusMetrics(), SlowRequests()
        self.connection = engine.connect()
        self.sender = ShareSender(self.connection, self.metrics, self.slow, period_s)
        self.sender.add_figures(read)
        self.connection.start(self.sender.handlers, lambda: None)
        self.sender.start()


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    engine = Engine()
    yield engine
    for end in engine.ends:
        end.close()


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110  # The measurements of a process report no changes.
        await asyncio.sleep(0)


async def test_a_collection_has_everything_that_the_front_ends_measured(engine: Engine) -> None:
    front_ends = [FrontEnd(engine) for _ in range(3)]
    for round_ in range(1, 4):
        for front_end in front_ends:
            finish(front_end.metrics)
        await engine.receiver.collect(LONG_S)
        assert engine.requests() == 3 * round_
    assert engine.figures.page() == FIGURES.replace("5", "15")


async def test_a_scrape_after_an_answer_includes_it(engine: Engine) -> None:
    front_end, clock = FrontEnd(engine), FakeClock()
    service = InferenceService(ModelRegistry([], engine.metrics), clock)
    engine.metrics.sources.add("envoy", engine.figures.page)

    async def collect() -> None:
        await engine.receiver.collect(LONG_S)

    app = rest_app(service, engine.metrics, clock, engine.metrics.render, RestOptions(), collect=collect)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
        for number in range(1, 4):
            finish(front_end.metrics)
            page = (await client.get("/metrics")).text
            assert f':tensorflow:serving:request_count{{model_name="m",status="OK"}} {number}\n' in page
            assert page.endswith(FIGURES)


async def test_shares_arrive_without_a_question(engine: Engine) -> None:
    front_end = FrontEnd(engine, period_s=NO_TIME_S)
    for number in range(1, 3):
        finish(front_end.metrics)
        await until(lambda: engine.requests() == number)  # noqa: B023  # awaited within the round
    await front_end.sender.stop()


async def test_the_last_share_survives_the_front_end(engine: Engine) -> None:
    front_end = FrontEnd(engine)
    front_end.metrics.protocol_served(protocol="grpc", in_flight=lambda: 7)
    await engine.receiver.collect(LONG_S)
    assert engine.metrics.server.in_flight() == {"grpc": 7}
    finish(front_end.metrics)
    await front_end.sender.stop()
    front_end.connection.close()
    await until(lambda: not engine.metrics.server.in_flight())
    assert engine.requests() == 1
    assert engine.figures.page() == FIGURES
    await engine.receiver.collect(LONG_S)


async def test_a_front_end_that_ends_is_not_waited_for(engine: Engine) -> None:
    silent, asked = engine.connect(), asyncio.Event()
    silent.start({ASK: lambda _: asked.set()}, lambda: None)
    finish(FrontEnd(engine).metrics)
    collecting = asyncio.create_task(engine.receiver.collect(LONG_S))
    await asked.wait()
    silent.close()
    await collecting
    assert engine.requests() == 1


async def test_a_front_end_that_does_not_answer_is_missing_until_it_does(engine: Engine) -> None:
    gate = threading.Event()

    def read() -> str:
        gate.wait()
        return FIGURES

    stuck, other = FrontEnd(engine, read), FrontEnd(engine)
    for front_end in (stuck, other):
        finish(front_end.metrics)
    await engine.receiver.collect(NO_TIME_S)
    await until(lambda: engine.figures.page() == FIGURES)
    await engine.receiver.collect_shares()
    assert engine.requests() == 2
    gate.set()
    await until(lambda: engine.figures.page() == FIGURES.replace("5", "10"))


async def test_a_host_without_figures_is_an_error_of_the_page(engine: Engine) -> None:
    failures: list[Exception] = [OSError("Envoy's admin interface does not respond: é")]

    def read() -> str:
        if failures:
            raise failures.pop()
        return FIGURES

    FrontEnd(engine, read)
    await engine.receiver.collect(LONG_S)
    with pytest.raises(FigureError, match="does not respond: é"):
        engine.figures.page()
    await engine.receiver.collect(LONG_S)
    assert engine.figures.page() == FIGURES


async def test_slow_requests_of_front_ends_keep_their_stages(engine: Engine) -> None:
    run = BatchRun(Departure.AT_ONCE, 1.5)
    run.requests, run.started_s, run.begun_s, run.ended_s = 4, 1.6, 1.7, 3.0
    record = RequestRecord(
        "grpc", "Predict", "m", 3, "s", Code.OK, 0.0, 1.0, 1.1, 4.0, 1e9, is_cached=False,
        times=(TaskTimes(ID, 1.2, (run,), 3.5),), trace=TraceContext("ab" * 16, "cd" * 8), error="é",
    )  # fmt: skip
    front_end = FrontEnd(engine)
    front_end.slow.watch(record)
    await engine.receiver.collect(LONG_S)
    await engine.receiver.collect(LONG_S)
    [shown] = engine.slow.slowest(5.0)
    assert shown.stages == record.stages
    assert shown._replace(times=()) == record._replace(times=())


async def test_a_collection_that_its_client_leaves_disturbs_no_other(engine: Engine) -> None:
    front_end = FrontEnd(engine)
    leaving = asyncio.create_task(engine.receiver.collect(LONG_S))
    staying = asyncio.create_task(engine.receiver.collect(LONG_S))
    await asyncio.sleep(0)
    finish(front_end.metrics)
    leaving.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await leaving
    await staying
    assert engine.requests() == 1
