"""Tests for gRPC over ASGI, called in this process with a scripted `receive`."""

import asyncio
import gzip
import logging
import zlib
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import pytest

from tests.server.hosts.asgi_client import HEADERS, Exchange, body
from tests.support.open_gate import OPEN_GATE, ClosedGate
from tpuserve_server.access.access import OPEN
from tpuserve_server.core.serving.receiving import ReceivingBudget
from tpuserve_server.core.serving.sending import SendingBudget
from tpuserve_server.core.terms.deadline import SystemClock
from tpuserve_server.core.terms.errors import Code, NotFound
from tpuserve_server.hosts.grpc_calls import GrpcOverAsgi
from tpuserve_server.hosts.grpc_frames import frame
from tpuserve_server.hosts.in_flight import InFlight
from tpuserve_server.protocols.rpc import (
    CallContext,
    GuardedTable,
    RpcTable,
    StreamMethod,
    UnaryMethod,
    admit_every_call,
)

if TYPE_CHECKING:
    from starlette.types import Message

LIMIT = 1000
RECEIVING = ReceivingBudget(1 << 21, 1 << 21, SystemClock())


class Methods:
    """The methods of the table, and a record of their calls."""

    def __init__(self) -> None:
        self.began = asyncio.Event()
        self.cancelled = asyncio.Event()
        self.contexts: list[CallContext] = []

    def table(self) -> GuardedTable:
        table: RpcTable = {
            "/echo.Echo/Unary": UnaryMethod(self.unary, OPEN),
            "/echo.Echo/Held": UnaryMethod(self.held, OPEN),
            "/echo.Echo/Fail": UnaryMethod(self.fail, OPEN),
            "/echo.Echo/Each": StreamMethod(self.each, OPEN),
            "/echo.Echo/Watch": StreamMethod(self.watch, OPEN),
            "/echo.Echo/NoGenerator": StreamMethod(lambda _requests, _context: Three(), OPEN),
        }
        return admit_every_call(table)

    async def unary(self, request: bytes, context: CallContext) -> bytes:
        self.contexts.append(context)
        return request

    async def held(self, _request: bytes, _context: CallContext) -> bytes:
        return await self._wait()

    async def fail(self, request: bytes, _context: CallContext) -> bytes:
        if request:
            raise NotFound(request.decode())
        raise ZeroDivisionError("secret")

    async def each(self, requests: AsyncIterator[bytes], _context: CallContext) -> AsyncIterator[bytes]:
        async for request in requests:
            if request == b"fail":
                raise NotFound("in the stream")
            yield request

    async def watch(self, _requests: AsyncIterator[bytes], _context: CallContext) -> AsyncIterator[bytes]:
        yield b"first"
        await self._wait()

    async def _wait(self) -> bytes:
        self.began.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        return b""


class Three:
    """An asynchronous iterator that is not a generator."""

    def __init__(self) -> None:
        self._numbers = iter(b"123")

    def __aiter__(self) -> "Three":
        return self

    async def __anext__(self) -> bytes:
        for number in self._numbers:
            return bytes([number])
        raise StopAsyncIteration


@pytest.fixture
def methods() -> Methods:
    return Methods()


@pytest.fixture
def in_flight() -> InFlight:
    return InFlight()


@pytest.fixture
def app(methods: Methods, in_flight: InFlight) -> GrpcOverAsgi:
    return GrpcOverAsgi(
        methods.table(),
        max_message_bytes=LIMIT,
        in_flight=in_flight,
        receiving=RECEIVING,
        sending=SendingBudget(1 << 30, 1 << 30, 30, SystemClock()),
        gate=OPEN_GATE,
        # The interval shortens the tests and is not asserted.
        poll_interval_s=0.001,
    )


async def test_unary_answer_is_headers_one_frame_and_trailers(app: GrpcOverAsgi) -> None:
    exchange = await Exchange.unary(b"hello").run(app)
    start, answer, trailers = exchange.sent
    assert start == {
        "type": "http.response.start",
        "status": 200,
        "headers": [(b"content-type", b"application/grpc")],
        "trailers": True,
    }
    assert answer["body"] == frame(b"hello")
    assert trailers["headers"] == [(b"grpc-status", b"0")]


@pytest.mark.parametrize("size", [1, 2, 4, 5, 6, 100])
async def test_frame_in_pieces_is_put_together(app: GrpcOverAsgi, size: int) -> None:
    whole = frame(b"a message in pieces")
    pieces = [whole[start : start + size] for start in range(0, len(whole), size)]
    exchange = await Exchange([*(body(piece, more=True) for piece in pieces), body(b"")]).run(app)
    assert exchange.content == whole


@pytest.mark.parametrize(
    ("messages", "status"),
    [
        pytest.param([body(b"")], Code.UNIMPLEMENTED, id="no message"),
        pytest.param([body(frame(b"a") + frame(b"b"))], Code.UNIMPLEMENTED, id="two messages"),
        pytest.param([body(frame(b"abc")[:-1])], Code.INTERNAL, id="half a message"),
        pytest.param([body(b"\0\0")], Code.INTERNAL, id="half a prefix"),
        pytest.param([body(b"\1\0\0\0\1x")], Code.INTERNAL, id="compressed without an encoding"),
        pytest.param([{"type": "http.disconnect"}], Code.CANCELLED, id="gone while sending"),
    ],
)
async def test_malformed_unary_requests(
    app: GrpcOverAsgi, in_flight: InFlight, messages: "list[Message]", status: Code
) -> None:
    exchange = await Exchange(messages).run(app)
    assert exchange.status[0] == status
    await in_flight.finish()


async def test_too_long_message_is_refused_by_its_prefix_alone(app: GrpcOverAsgi) -> None:
    exchange = await Exchange([body(frame(bytes(LIMIT + 1))[:5], more=True)]).run(app)
    assert exchange.status == (Code.RESOURCE_EXHAUSTED, "Received message larger than max (1001 vs. 1000)")


async def test_too_long_message_in_one_chunk_is_refused(app: GrpcOverAsgi) -> None:
    exchange = await Exchange.unary(bytes(LIMIT + 1)).run(app)
    assert exchange.status[0] == Code.RESOURCE_EXHAUSTED


def compressed(data: bytes) -> "list[Message]":
    return [{**body(b"\1" + frame(data)[1:])}]


@pytest.mark.parametrize(("encoding", "compress"), [(b"gzip", gzip.compress), (b"deflate", zlib.compress)])
async def test_compressed_messages(app: GrpcOverAsgi, encoding: bytes, compress: object) -> None:
    assert callable(compress)
    headers = [*HEADERS, (b"grpc-encoding", encoding)]
    exchange = await Exchange(compressed(compress(b"squeezed")), headers=headers).run(app)
    assert exchange.content == frame(b"squeezed")
    bomb = await Exchange(compressed(compress(bytes(LIMIT + 1))), headers=headers).run(app)
    assert bomb.status[0] == Code.RESOURCE_EXHAUSTED
    cut = await Exchange(compressed(compress(b"squeezed")[:-3]), headers=headers).run(app)
    assert cut.status[0] == Code.INTERNAL
    wrong = await Exchange(compressed(b"not compressed"), headers=headers).run(app)
    assert wrong.status[0] == Code.INTERNAL


@pytest.mark.parametrize("at_first", [True, False])
async def test_overload_refuses_inference_with_a_timeout_and_a_hint(methods: Methods, at_first: bool) -> None:
    predict, other = "/tensorflow.serving.PredictionService/Predict", "/echo.Echo/Unary"
    table = admit_every_call({path: UnaryMethod(methods.unary, OPEN) for path in (predict, other)})
    app = GrpcOverAsgi(
        table,
        max_message_bytes=LIMIT,
        in_flight=InFlight(),
        receiving=RECEIVING,
        sending=SendingBudget(1 << 30, 1 << 30, 30, SystemClock()),
        gate=ClosedGate(at_first=at_first),
    )
    timeout = (b"grpc-timeout", b"5S")
    refused = await Exchange.unary(b"x", timeout, path=predict).run(app)
    assert refused.status[0] == Code.RESOURCE_EXHAUSTED
    assert (b"grpc-retry-pushback-ms", b"250") in refused.sent[0]["headers"]
    assert not methods.contexts
    answered = await Exchange.unary(b"x", timeout, path=other).run(app)
    assert answered.status[0] == Code.OK


async def test_large_compressed_message_is_inflated_too(methods: Methods) -> None:
    app = GrpcOverAsgi(
        methods.table(),
        max_message_bytes=1 << 20,
        in_flight=InFlight(),
        receiving=RECEIVING,
        sending=SendingBudget(1 << 30, 1 << 30, 30, SystemClock()),
        gate=OPEN_GATE,
    )
    message = bytes(range(256)) * 1000
    data = zlib.compress(message, level=0)
    headers = [*HEADERS, (b"grpc-encoding", b"deflate")]
    exchange = await Exchange(compressed(data), headers=headers).run(app)
    assert exchange.content == frame(message)


async def test_unknown_encoding_is_unimplemented_and_says_what_is_known(app: GrpcOverAsgi) -> None:
    exchange = await Exchange.unary(b"", (b"grpc-encoding", b"zstd")).run(app)
    assert exchange.status == (Code.UNIMPLEMENTED, "Compression algorithm 'zstd' is not supported")
    assert (b"grpc-accept-encoding", b"identity,deflate,gzip") in exchange.sent[0]["headers"]


async def test_failure_is_headers_alone(app: GrpcOverAsgi) -> None:
    exchange = await Exchange.unary("no such thing: 100 % ü\n".encode(), path="/echo.Echo/Fail").run(app)
    start, end = exchange.sent
    assert "trailers" not in start
    assert end == {"type": "http.response.body", "body": b""}
    assert exchange.status == (Code.NOT_FOUND, "no such thing: 100 %25 %C3%BC%0A")


async def test_bug_is_logged_and_hidden(app: GrpcOverAsgi, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        exchange = await Exchange.unary(b"", path="/echo.Echo/Fail").run(app)
    assert exchange.status == (Code.INTERNAL, "Internal error")
    assert "secret" in caplog.text


async def test_unknown_path(app: GrpcOverAsgi) -> None:
    exchange = await Exchange.unary(b"", path="/a.B/C").run(app)
    assert exchange.status == (Code.UNIMPLEMENTED, "Unknown method /a.B/C")


async def test_other_methods_and_content_types_are_http_errors(app: GrpcOverAsgi) -> None:
    assert (await Exchange([body(b"")], method="GET").run(app)).http_status == 405
    assert (await Exchange([body(b"")], headers=[]).run(app)).http_status == 415
    for other in (b"application/grpc-web", b"application/json"):
        assert (await Exchange([body(b"")], headers=[(b"content-type", other)]).run(app)).http_status == 415
    for known in (b"application/grpc+proto", b"application/grpc;x=y"):
        exchange = Exchange([body(frame(b"x"))], headers=[(b"content-type", known), (b"te", b"trailers")])
        assert (await exchange.run(app)).status[0] == Code.OK


async def test_a_call_without_trailers_is_an_error(app: GrpcOverAsgi) -> None:
    exchange = Exchange([body(frame(b"x"))], headers=[(b"content-type", b"application/grpc")])
    assert (await exchange.run(app)).status == (
        Code.INTERNAL,
        "The request lacks the header te: trailers, which gRPC requires",
    )


async def test_malformed_timeout_is_internal(app: GrpcOverAsgi) -> None:
    exchange = await Exchange.unary(b"", (b"grpc-timeout", b"1 s")).run(app)
    assert exchange.status == (Code.INTERNAL, "malformed grpc-timeout: '1 s'")


async def test_passed_deadline_never_reaches_the_method(app: GrpcOverAsgi, methods: Methods) -> None:
    exchange = await Exchange.unary(b"", (b"grpc-timeout", b"0n")).run(app)
    assert exchange.status == (Code.DEADLINE_EXCEEDED, "Deadline Exceeded")
    assert methods.contexts == []


async def test_deadline_cancels_the_method(app: GrpcOverAsgi, methods: Methods, in_flight: InFlight) -> None:
    exchange = await Exchange.unary(b"", (b"grpc-timeout", b"20m"), path="/echo.Echo/Held").run(app)
    assert exchange.status == (Code.DEADLINE_EXCEEDED, "Deadline Exceeded")
    assert methods.cancelled.is_set()
    await in_flight.finish()


@pytest.mark.parametrize("talkative", [True, False])
@pytest.mark.parametrize("path", ["/echo.Echo/Held", "/echo.Echo/Watch"])
async def test_lost_caller_cancels_the_method(app: GrpcOverAsgi, methods: Methods, path: str, talkative: bool) -> None:
    exchange = Exchange.unary(b"", path=path, talkative=talkative)
    running = asyncio.create_task(exchange.run(app))
    await methods.began.wait()
    exchange.leave()
    await running
    assert methods.cancelled.is_set()
    assert exchange.status[0] == Code.CANCELLED


@pytest.mark.parametrize("path", ["/echo.Echo/Held", "/echo.Echo/Watch"])
async def test_cancellation_from_outside_stays_one(app: GrpcOverAsgi, methods: Methods, path: str) -> None:
    running = asyncio.create_task(Exchange.unary(b"", path=path).run(app))
    await methods.began.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_stream_delivers_each_message_then_trailers(app: GrpcOverAsgi) -> None:
    chunks = [body(frame(b"a") + frame(b"b")[:3], more=True), body(frame(b"b")[3:], more=True), body(frame(b"c"))]
    exchange = await Exchange(chunks, path="/echo.Echo/Each").run(app)
    assert exchange.content == frame(b"a") + frame(b"b") + frame(b"c")
    assert [message.get("more_body") for message in exchange.sent] == [None, True, True, True, None, None]
    assert exchange.status == (Code.OK, "")


async def test_empty_stream_is_ok(app: GrpcOverAsgi) -> None:
    exchange = await Exchange([body(b"")], path="/echo.Echo/Each").run(app)
    assert (exchange.content, exchange.status) == (b"", (Code.OK, ""))


async def test_stream_of_a_plain_iterator(app: GrpcOverAsgi) -> None:
    exchange = await Exchange([body(b"")], path="/echo.Echo/NoGenerator").run(app)
    assert exchange.content == frame(b"1") + frame(b"2") + frame(b"3")


@pytest.mark.parametrize("before", [b"", frame(b"a")])
async def test_stream_failure_goes_where_the_response_is(app: GrpcOverAsgi, before: bytes) -> None:
    exchange = await Exchange([body(before + frame(b"fail"))], path="/echo.Echo/Each").run(app)
    assert exchange.content == before
    assert exchange.status == (Code.NOT_FOUND, "in the stream")
    assert (exchange.sent[-1]["type"] == "http.response.trailers") == bool(before)


async def test_deadline_ends_a_stream_in_its_trailers(app: GrpcOverAsgi) -> None:
    exchange = await Exchange.unary(b"", (b"grpc-timeout", b"20m"), path="/echo.Echo/Watch").run(app)
    assert exchange.content == frame(b"first")
    assert exchange.status == (Code.DEADLINE_EXCEEDED, "Deadline Exceeded")


async def test_end_of_the_server_ends_a_stream(app: GrpcOverAsgi, methods: Methods, in_flight: InFlight) -> None:
    exchange = Exchange.unary(b"", path="/echo.Echo/Watch")
    running = asyncio.create_task(exchange.run(app))
    await methods.began.wait()
    await in_flight.finish()
    await running
    assert exchange.status == (Code.UNAVAILABLE, "The server is shutting down")


@pytest.mark.parametrize("path", ["/echo.Echo/Unary", "/echo.Echo/Each"])
@pytest.mark.parametrize("sends", [0, 1])
async def test_answer_to_nobody_is_no_error(
    app: GrpcOverAsgi, path: str, sends: int, caplog: pytest.LogCaptureFixture
) -> None:
    exchange = await Exchange.unary(b"x", path=path, send_error=OSError(), sends=sends).run(app)
    assert [message["type"] for message in exchange.sent] == ["http.response.start"][:sends]
    assert caplog.text == ""


async def test_server_future_of_a_send_is_never_cancelled(app: GrpcOverAsgi, methods: Methods) -> None:
    """Check that a send's future is not cancelled.

    The server completes it later, and may fail if it is cancelled.
    """
    sends: list[asyncio.Future[None]] = []
    exchange = Exchange.unary(b"", (b"grpc-timeout", b"20m"), path="/echo.Echo/Watch")

    def send(message: "Message") -> asyncio.Future[None]:
        sent = asyncio.get_running_loop().create_future()
        if message.get("more_body"):
            sends.append(sent)
        else:
            sent.set_result(None)
        return sent

    scope = {
        "type": "http",
        "method": "POST",
        "path": exchange.path,
        "headers": exchange.headers,
        "extensions": {"http.response.trailers": {}},
    }
    await app(scope, exchange.receive, send)
    assert [sent.cancelled() for sent in sends] == [False]
