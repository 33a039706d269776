"""Tests that calls of a lane need no task, and end like those that have one."""

import asyncio
import gc
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.server.hosts.asgi_client import HEADERS, Exchange
from tests.support.lane_house import LaneHouse
from tests.support.lane_messages import PREDICT, message
from tests.support.open_gate import OPEN_GATE
from tpuserve_formats.messages.official import PredictResponse
from tpuserve_server.core.batching.task import Task
from tpuserve_server.core.serving.receiving import ReceivingBudget
from tpuserve_server.core.serving.sending import SendingBudget
from tpuserve_server.core.terms.deadline import SystemClock
from tpuserve_server.core.terms.errors import Code
from tpuserve_server.hosts.grpc_calls import GrpcOverAsgi
from tpuserve_server.hosts.grpc_frames import frame
from tpuserve_server.hosts.in_flight import InFlight
from tpuserve_server.hosts.quick_calls import QuickCall, allow_quick_calls
from tpuserve_server.hosts.quick_rpc import QuickRpc
from tpuserve_server.protocols.rpc import CallContext, RpcTable, UnaryMethod, admit_every_call
from tpuserve_server.wire.predict_proto import decode_tensor

BODY = message(1.0, 2.0)
MOST_BYTES = 1 << 20


class Host:
    """A host whose model has answered the message often enough that the lane takes it."""

    def __init__(self) -> None:
        self.house = LaneHouse()
        self.servable = self.house.serve(1)
        self.in_flight = InFlight()
        self.loop = asyncio.get_running_loop()
        allow_quick_calls(self.loop)
        self.serve(self.house.table)

    def serve(self, table: RpcTable) -> None:
        """Answer calls with the methods of a table."""
        budget = SystemClock()
        self.app = GrpcOverAsgi(
            admit_every_call(table),
            max_message_bytes=MOST_BYTES,
            in_flight=self.in_flight,
            receiving=ReceivingBudget(MOST_BYTES, MOST_BYTES, budget),
            sending=SendingBudget(1 << 30, 1 << 30, 30, budget),
            gate=OPEN_GATE,
            loop=self.loop,
        )

    def begin(self, *headers: tuple[bytes, bytes], body: bytes = BODY) -> tuple[Exchange, Any]:
        """Return a call that has begun, and what the application returned for it, as the server gets it."""
        exchange = Exchange.unary(body, *headers, path=PREDICT)
        scope = {
            "type": "http", "http_version": "2", "extensions": {"http.response.trailers": {}}, "method": "POST",
            "path": PREDICT, "query_string": b"", "headers": [*HEADERS, *headers],
        }  # fmt: skip
        answering = self.app(scope, exchange.receive, exchange.send)
        return exchange, self.loop.create_task(answering)  # type: ignore[arg-type]

    async def enter(self) -> None:
        """Wait until the model runs a batch, which the test has stopped at the gate."""
        assert await asyncio.to_thread(self.servable.entered.acquire, timeout=10)


@pytest.fixture
async def host() -> AsyncIterator[Host]:
    host = Host()
    for _ in range(3):
        _, task = host.begin()
        await task
    while host.servable.entered.acquire(blocking=False):
        pass
    yield host
    host.servable.gate.set()
    await host.house.stop()


def codes(host: Host) -> list[Code]:
    return [finished.code for finished in host.house.metrics.finished]


async def test_call_of_a_lane_is_answered_without_a_task(host: Host) -> None:
    exchange, call = host.begin()
    assert type(call) is QuickRpc
    assert not call.done()
    await call
    assert exchange.status == (0, "")
    response = PredictResponse.FromString(exchange.content[5:])
    assert np.array_equal(decode_tensor("y", response.outputs["y"]), [[2.0, 2.0], [4.0, 4.0]])
    assert codes(host)[-1] is Code.OK
    assert host.in_flight.count == 0
    assert host.house.meter.in_flight == 0


async def test_other_calls_have_a_task(host: Host) -> None:
    for headers, body in (((), message(1.0, 2.0, 3.0, 4.0)), (((b"grpc-encoding", b"identity"),), BODY)):
        exchange, task = host.begin(*headers, body=body)
        assert type(task) is asyncio.Task
        await task
        assert exchange.status == (0, "")


async def test_call_that_its_lane_has_left_is_not_offered_again(host: Host) -> None:
    async def offer(_body: bytes, _context: CallContext) -> bytes:
        raise AssertionError

    method = host.house.table[PREDICT]
    assert isinstance(method, UnaryMethod)
    host.serve({PREDICT: replace(method, handle=offer)})
    exchange, task = host.begin(body=message(1.0, 2.0, 3.0))
    assert type(task) is asyncio.Task
    await task
    assert exchange.status == (0, "")
    assert codes(host)[-1] is Code.OK


async def test_error_of_the_model_is_a_status(host: Host) -> None:
    negative = message(-1.0, 2.0)
    exchange, call = host.begin(body=negative)
    assert type(call) is QuickRpc
    await call
    assert exchange.status == (int(Code.INVALID_ARGUMENT), "x must not be negative")
    assert codes(host)[-1] is Code.INVALID_ARGUMENT


async def test_cancelled_call_leaves_the_queue_without_a_response(host: Host) -> None:
    host.servable.gate.clear()
    running, first = host.begin()
    await host.enter()
    waiting, call = host.begin()
    assert call.cancel()
    assert not call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert waiting.sent == []
    assert codes(host)[-1] is Code.CANCELLED
    assert host.in_flight.count == 1
    host.servable.gate.set()
    await first
    assert running.status == (0, "")
    assert len(host.servable.batches) == 4  # that of the cancelled call never ran


async def test_call_that_is_cancelled_while_it_runs_ends_at_once(host: Host) -> None:
    host.servable.gate.clear()
    exchange, call = host.begin()
    await host.enter()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    host.servable.gate.set()
    other, following = host.begin()
    await following
    assert exchange.sent == []
    assert other.status == (0, "")


async def test_deadline_ends_a_call(host: Host) -> None:
    host.servable.gate.clear()
    exchange, call = host.begin((b"grpc-timeout", b"20m"))
    await call
    assert exchange.status == (int(Code.DEADLINE_EXCEEDED), "Deadline Exceeded")
    assert codes(host)[-1] is Code.DEADLINE_EXCEEDED


async def test_call_after_its_deadline_reaches_no_model(host: Host) -> None:
    exchange, call = host.begin((b"grpc-timeout", b"0n"))
    await call
    assert exchange.status == (int(Code.DEADLINE_EXCEEDED), "Deadline Exceeded")
    assert len(host.servable.batches) == 3


async def test_end_of_the_server_answers_a_call(host: Host) -> None:
    host.servable.gate.clear()
    exchange, call = host.begin()
    await host.enter()
    host.in_flight.cut()
    await call
    assert exchange.status == (int(Code.UNAVAILABLE), "The server is shutting down")
    await host.in_flight.finish()


async def test_response_to_a_client_that_has_gone_is_dropped(host: Host) -> None:
    exchange = Exchange.unary(BODY, path=PREDICT, send_error=OSError("gone"), sends=1)
    await exchange.run(host.app)
    assert len(exchange.sent) == 1
    assert host.in_flight.count == 0


async def test_large_response_is_sent_in_a_task(host: Host) -> None:
    large = np.zeros((2, 300_000), np.float32)
    host.servable.outputs = {"y": large, "x": large}
    exchange, call = host.begin()
    assert type(call) is QuickRpc
    await call
    assert exchange.status == (0, "")
    response = PredictResponse.FromString(exchange.content[5:])
    assert decode_tensor("y", response.outputs["y"]).shape == (2, 300_000)
    assert exchange.content[:5] == frame(exchange.content[5:])[:5]
    assert codes(host)[-1] is Code.OK


async def test_cached_response_needs_no_run(host: Host) -> None:
    host.house.serve(2, is_cached=True)
    for _ in range(2):
        exchange, call = host.begin()
        await call
        assert exchange.status == (0, "")
    assert len(host.house.servables[2].batches) == 1


async def test_answered_call_leaves_nothing_to_the_garbage_collector(host: Host) -> None:
    gc.collect()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        for _ in range(20):
            _, call = host.begin()
            await call
        gc.collect()
        left = [each for each in gc.garbage if isinstance(each, QuickCall | Task)]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
    assert left == []
