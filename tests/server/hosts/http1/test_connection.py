"""Tests for the Python host's HTTP/1.1 over real sockets, and over a fake transport where time matters."""

import asyncio
import contextlib
import inspect
import logging
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any

import pytest
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from tpuserve_server.frontends.http.errors import ClientGone
from tpuserve_server.hosts.http1.connection import Http1Protocol
from tpuserve_server.hosts.http1.limits import Http1Limits

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

POST = b"POST /echo HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b"
GET = b"GET /%b HTTP/1.1\r\nhost: x\r\n\r\n"


def config(app: "ASGIApp", **more: Any) -> uvicorn.Config:  # noqa: ANN401  # uvicorn's own
    return uvicorn.Config(
        app,
        interface="asgi3",
        lifespan="off",
        ws="none",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        **more,
    )


@contextlib.asynccontextmanager
async def served(
    app: "ASGIApp", limits: Http1Limits | None = None
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """Yield a connection to a server of `app`."""
    state = ServerState()
    state.default_headers = [(b"date", b"today")]
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Http1Protocol(config(app), state, {}, limits=limits), "127.0.0.1", 0)
    async with server:
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        try:
            yield reader, writer
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()
            for connection in list(state.connections):
                connection.transport.abort()
            while state.tasks:
                await asyncio.wait(state.tasks)


async def read_body(receive: "Receive") -> bytes:
    body, more = b"", True
    while more:
        message = await receive()
        assert message["type"] == "http.request"
        body, more = body + message["body"], message["more_body"]
    return body


async def respond(send: "Send", body: bytes, status: int = 200) -> None:
    await send({"type": "http.response.start", "status": status, "headers": [(b"content-length", b"%d" % len(body))]})
    await send({"type": "http.response.body", "body": body})


async def echo(scope: "Scope", receive: "Receive", send: "Send") -> None:
    await respond(send, await read_body(receive))


async def say_path(scope: "Scope", receive: "Receive", send: "Send") -> None:
    await respond(send, f"{scope['method']} {scope['path']}?{scope['query_string'].decode()}".encode())


def response(body: bytes, *more: bytes) -> bytes:
    lines = [b"HTTP/1.1 200 OK", b"content-length: %d" % len(body), b"date: today", *more]
    return b"\r\n".join([*lines, b"", body])


async def test_connections_are_used_again() -> None:
    async with served(echo) as (reader, writer):
        for body in (b"one", b"", b"x" * 300_000, b"last"):
            writer.write(POST % (len(body), body))
            assert await reader.readexactly(len(response(body))) == response(body)


HELLO = b"GET /hello HTTP/1.1\r\n"
HOST = b"host: x\r\n"
UPLOAD = b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding:%b\r\n\r\n"
CHUNK = b"%b\r\nhello\r\n0\r\n\r\n"


@pytest.mark.parametrize(
    "head",
    [
        HELLO + b"\r\n",
        HELLO + HOST + HOST + b"\r\n",
        HELLO + HOST + b"host: y\r\n\r\n",
        b"GET /hello HTTP/1.0\r\n" + HOST + HOST + b"\r\n",
        *(
            HELLO + b"host: %b\r\n\r\n" % host
            for host in (b"a b", b"a, b", b"a/b", b"u@a", b"a:b", b"a:1:2", b"[::1", b"\xe9")
        ),
        *(UPLOAD % coding + CHUNK % b"5" for coding in (b"gzip, chunked", b"gzip\r\ntransfer-encoding: chunked")),
        *(UPLOAD % coding + CHUNK % b"5" for coding in (b"identity, chunked", b"xchunked, chunked", b", chunked")),
        (UPLOAD % b"chunked").replace(b"1.1", b"1.0") + CHUNK % b"5",
        *(UPLOAD % b"chunked" + CHUNK % size for size in (b"0x5", b" 5", b"5 ;a", b"+5", b"-5", b"", b"f" * 17)),
        *(UPLOAD % b"chunked" + CHUNK % size for size in (b"5;a\nb", b"5;a\rb", b"5;a\0b")),
        HELLO.replace(b"\r", b"") + HOST + b"\r\n",
        HELLO + HOST + b"a: b\n\r\n",
        HELLO + HOST + b"a: b\r\n\n",
        *(
            HELLO + HOST + field + b"\r\n\r\n"
            for field in (b"a: b\rc", b"a: b\r", b"a: \0", b"a: \1", b"a: \x7f", b"a: b\r\n c")
        ),
        *(
            HELLO + HOST + field + b"\r\n\r\n"
            for field in (b"a : b", b"a\t: b", b": b", b"a", b"a\0: b", b"a\x80: b", b"a b: c")
        ),
        *(
            b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: %b\r\n\r\nhello" % length
            for length in (
                b"+5",
                b"0x5",
                b"5, 5",
                b"5\r\ncontent-length: 5",
                b"0\r\ncontent-length: 5",
                b"",
                b"5_0",
                b"5 0",
            )
        ),
        b"GET /hello HTTP/2.0\r\n" + HOST + b"\r\n",
        b"GET /hello HTTP/0.9\r\n" + HOST + b"\r\n",
        b"GET /hello\r\n\r\n",
        b"GET /hello#there HTTP/1.1\r\n" + HOST + b"\r\n",
        HELLO + HOST + HOST + b"connection: upgrade\r\nupgrade: h2c\r\n\r\n",
        (UPLOAD % b"gzip, chunked").replace(b"\r\n\r\n", b"\r\nconnection: upgrade\r\nupgrade: h2c\r\n\r\n")
        + CHUNK % b"5",
    ],
)
async def test_request_that_breaks_a_rule_of_its_head_is_refused(head: bytes) -> None:
    async with served(say_path) as (reader, writer):
        writer.write(head + GET % b"smuggled")
        answer = await reader.read()
        assert answer.startswith(b"HTTP/1.1 400 Bad Request\r\n")
        assert b"smuggled" not in answer


@pytest.mark.parametrize(
    "head",
    [
        b"GET http://x/hello HTTP/1.1\r\n" + HOST + b"\r\n",
        *(
            HELLO + b"host:%b\r\n\r\n" % host
            for host in (b"[::1]:80", b" [fe80::1%25eth0]", b" \t x:8501 \t ", b"", b"a_b", b"x.:")
        ),
        b"GET /hello HTTP/1.0\r\n" + HOST + b"connection: keep-alive\r\n\r\n",
        b"\r\n" + HELLO + HOST + b"\r\n",
        HELLO + HOST + b"a:\r\nb: \x80\r\nc_d:\t e \r\n\r\n",
    ],
)
async def test_odd_head_that_keeps_the_rules_is_answered(head: bytes) -> None:
    async with served(say_path) as (reader, writer):
        writer.write(head)
        assert (await reader.readuntil(b"GET /hello?")).startswith(b"HTTP/1.1 200 OK\r\n")


@pytest.mark.parametrize("coding", [b"chunked", b" ChUnKeD", b"\tchunked  "])
@pytest.mark.parametrize("size", [b"5", b"005", b"5;a", b'5;a="b c"', b"5;a=1;b"])
async def test_odd_chunks_that_keep_the_rules_are_put_together(coding: bytes, size: bytes) -> None:
    async with served(echo) as (reader, writer):
        writer.write(UPLOAD % coding + CHUNK % size)
        assert await reader.readexactly(len(response(b"hello"))) == response(b"hello")


async def test_pipelined_requests_are_answered_in_their_order() -> None:
    async with served(say_path) as (reader, writer):
        writer.write(b"".join(GET % b"%d?a=%%20" % number for number in range(5)))
        expected = b"".join(response(b"GET /%d?a=%%20" % number) for number in range(5))
        assert await reader.readexactly(len(expected)) == expected


async def test_client_that_the_application_gives_up_loses_its_connection(caplog: pytest.LogCaptureFixture) -> None:
    async def app(scope: "Scope", receive: "Receive", send: "Send") -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        # More than the system takes, so that bytes wait in the transport.
        await send({"type": "http.response.body", "body": b"x" * (64 << 20), "more_body": True})
        raise ClientGone

    async with served(app) as (reader, writer):
        writer.write(GET % b"")
        with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
            await reader.readexactly(64 << 20)
    assert not caplog.records


async def test_body_in_chunks_is_put_together() -> None:
    async with served(echo) as (reader, writer):
        writer.write(UPLOAD % b"chunked" + b"3\r\nabc\r\n2\r\nde\r\n1\r\nf\r\n0\r\n\r\n")
        assert await reader.readexactly(len(response(b"abcdef"))) == response(b"abcdef")


async def test_large_pieces_stay_apart_and_small_ones_come_together() -> None:
    sizes: list[int] = []

    async def app(scope: "Scope", receive: "Receive", send: "Send") -> None:
        body, more = b"", True
        while more:
            message = await receive()
            sizes.append(len(message["body"]))
            body, more = body + message["body"], message["more_body"]
        await respond(send, body)

    pieces = [bytes([65 + number]) * size for number, size in enumerate((10, 20, 4800, 30, 40, 50, 4500, 4400, 1))]
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in [*pieces, b""])
    async with served(app) as (reader, writer):
        # One write, all of whose pieces arrive before the application runs.
        writer.write(b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n" + chunks)
        expected = response(b"".join(pieces))
        assert await reader.readexactly(len(expected)) == expected
    assert sizes == [30, 4800, 120, 4500, 4400, 1]


async def test_a_trailer_is_no_header() -> None:
    async def app(scope: "Scope", receive: "Receive", send: "Send") -> None:
        while (await receive())["more_body"]:
            pass
        await respond(send, b",".join(name for name, _ in scope["headers"]))

    async with served(app) as (reader, writer):
        head = b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\nx-a: 1\r\n\r\n"
        writer.write(head + b"1\r\nx\r\n0\r\nx-api-key: secret\r\n\r\n")
        expected = response(b"host,transfer-encoding,x-a")
        assert await reader.readexactly(len(expected)) == expected


async def test_body_that_comes_slowly_is_handed_on_as_it_comes() -> None:
    got: asyncio.Queue[bytes] = asyncio.Queue()

    async def app(scope: "Scope", receive: "Receive", send: "Send") -> None:
        message = await receive()
        while message["more_body"]:
            got.put_nowait(message["body"])
            message = await receive()
        await respond(send, b"done")

    async with served(app) as (reader, writer):
        writer.write(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 4\r\n\r\n")
        for piece in (b"a", b"b", b"c"):
            writer.write(piece)
            while await got.get() != piece:
                pass
        writer.write(b"d")
        assert await reader.readexactly(len(response(b"done"))) == response(b"done")


async def test_client_that_asks_for_leave_to_send_its_body_gets_it() -> None:
    async with served(echo) as (reader, writer):
        writer.write(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\nexpect: 100-continue\r\n\r\n")
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(b"ok")
        assert await reader.readexactly(len(response(b"ok"))) == response(b"ok")


async def test_client_whose_body_is_malformed_gets_no_leave_to_send_it(caplog: pytest.LogCaptureFixture) -> None:
    began, go_on = asyncio.Event(), asyncio.Event()

    async def app(scope: "Scope", receive: "Receive", send: "Send") -> None:
        began.set()
        await go_on.wait()
        assert (await receive())["type"] == "http.disconnect"

    async with served(app) as (reader, writer):
        writer.write(b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\nexpect: 100-continue\r\n\r\n")
        await began.wait()
        writer.write(b"no size\r\n")
        assert b" 400 " in await reader.readline()
        go_on.set()
        assert b"100 Continue" not in await reader.read()
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


@pytest.mark.parametrize("head", [b"GET / HTTP/1.0\r\n", b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n"])
async def test_connection_is_closed_for_who_asks(head: bytes) -> None:
    async with served(say_path) as (reader, writer):
        writer.write(head + b"\r\n")
        assert await reader.read() == response(b"GET /?", b"connection: close")


async def test_application_may_close_the_connection() -> None:
    async def app(scope: "Scope", receive: "Receive", send: "Send") -> None:
        headers = [(b"connection", b"close"), (b"content-length", b"0")]
        await send({"type": "http.response.start", "status": 204, "headers": headers})
        await send({"type": "http.response.body"})

    async with served(app) as (reader, writer):
        writer.write(GET % b"")
        assert await reader.read() == (
            b"HTTP/1.1 204 No Content\r\nconnection: close\r\ncontent-length: 0\r\ndate: today\r\n\r\n"
        )


async def test_body_of_unknown_length_is_sent_in_chunks() -> None:
    async def app(scope: "Scope", receive: "Receive", send: "Send") -> None:
        await send({"type": "http.response.start", "status": 200})
        for piece in (b"first", b"", b"x" * 100_000):
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body"})

    async with served(app) as (reader, writer):
        writer.write(GET % b"")
        expected = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ndate: today\r\n\r\n"
        expected += b"5\r\nfirst\r\n186a0\r\n" + b"x" * 100_000 + b"\r\n0\r\n\r\n"
        assert await reader.readexactly(len(expected)) == expected


async def test_answer_to_head_has_a_length_and_no_body() -> None:
    async with served(say_path) as (reader, writer):
        writer.write(b"HEAD / HTTP/1.1\r\nhost: x\r\n\r\n" + GET % b"next")
        head = response(b"HEAD /?").removesuffix(b"HEAD /?")
        assert await reader.readexactly(len(head)) == head
        assert await reader.readexactly(len(response(b"GET /next?"))) == response(b"GET /next?")


async def test_client_that_reads_slowly_holds_its_sender() -> None:
    sent = 0
    piece = b"x" * 1_000_000

    async def app(scope: "Scope", receive: "Receive", send: "Send") -> None:
        nonlocal sent
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"100000000")]})
        for number in range(100):
            await send({"type": "http.response.body", "body": piece, "more_body": number < 99})
            sent += len(piece)

    async with served(app) as (reader, writer):
        writer.write(GET % b"")
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 OK")
        assert sent < 50_000_000
        assert len(await reader.readexactly(100_000_000)) == 100_000_000
    assert sent == 100_000_000


@pytest.mark.parametrize("pipelined", [b"", GET % b"next"])
async def test_application_hears_that_its_client_left(pipelined: bytes) -> None:
    heard: asyncio.Queue[Message] = asyncio.Queue()
    begun = asyncio.Event()

    async def app(scope: "Scope", receive: "Receive", send: "Send") -> None:
        await read_body(receive)
        begun.set()
        heard.put_nowait(await receive())
        await respond(send, b"to nobody")

    async with served(app) as (_, writer):
        writer.write(GET % b"" + pipelined)
        await begun.wait()
        writer.close()
        assert await heard.get() == {"type": "http.disconnect"}


async def test_who_waits_for_a_client_to_leave_is_told_once_the_response_is_complete() -> None:
    heard: asyncio.Queue[Message] = asyncio.Queue()

    async def app(scope: "Scope", receive: "Receive", send: "Send") -> None:
        await read_body(receive)
        watch = asyncio.ensure_future(receive())
        await asyncio.sleep(0)
        await respond(send, b"done")
        heard.put_nowait(await watch)

    async with served(app) as (reader, writer):
        writer.write(GET % b"")
        assert await reader.readexactly(len(response(b"done"))) == response(b"done")
        assert await heard.get() == {"type": "http.disconnect"}


async def fail(scope: "Scope", receive: "Receive", send: "Send") -> None:
    raise ValueError("a secret")


async def say_nothing(scope: "Scope", receive: "Receive", send: "Send") -> None:
    pass


@pytest.mark.parametrize("app", [fail, say_nothing])
async def test_failed_application_is_an_internal_error_that_tells_nothing(app: "ASGIApp") -> None:
    async with served(app) as (reader, writer):
        writer.write(GET % b"")
        answer = await reader.read()
        assert answer.startswith(b"HTTP/1.1 500 Internal Server Error\r\n")
        assert answer.endswith(b'\r\nconnection: close\r\ndate: today\r\n\r\n{"error":"Internal error"}')


def sends(*messages: "Message") -> "ASGIApp":
    async def app(scope: "Scope", receive: "Receive", send: "Send") -> None:
        for message in messages:
            await send(message)

    return app


def start(*headers: tuple[bytes, bytes]) -> "Message":
    return {"type": "http.response.start", "status": 200, "headers": list(headers)}


TWO = (b"content-length", b"2")


@pytest.mark.parametrize(
    "app",
    [
        pytest.param(sends(start(TWO)), id="no body"),
        pytest.param(sends(start(TWO), {"type": "http.response.body", "body": b"x"}), id="short body"),
        pytest.param(sends(start(TWO), {"type": "http.response.body", "body": b"xxx"}), id="long body"),
        pytest.param(sends(start(TWO), start(TWO)), id="begun twice"),
    ],
)
async def test_response_that_is_not_whole_breaks_off(app: "ASGIApp") -> None:
    async with served(app) as (reader, writer):
        writer.write(GET % b"")
        assert await reader.read() == b""


@pytest.mark.parametrize("header", [(b"a\r\nb", b"c"), (b"a", b"b\r\nc: d"), (b"", b"a")])
async def test_headers_cannot_be_smuggled_into_a_response(header: tuple[bytes, bytes]) -> None:
    async with served(sends(start(TWO, header), {"type": "http.response.body", "body": b"ok"})) as (reader, writer):
        writer.write(GET % b"")
        assert (await reader.read()).startswith(b"HTTP/1.1 500 ")


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"no request\r\n\r\n", b"400 Bad Request"),
        (b"CONNECT x:1 HTTP/1.1\r\nhost: x\r\n\r\n", b"400 Bad Request"),
        (b"GET /\xff HTTP/1.1\r\nhost: x\r\n\r\n", b"400 Bad Request"),
        (b"GET / HTTP/1.1\r\nhost: x\r\na: %b\r\n" % (b"x" * 61_440), b"431 Request Header Fields Too Large"),
    ],
)
async def test_what_is_refused_before_the_application_is_refused_in_json(request_: bytes, status: bytes) -> None:
    async with served(echo) as (reader, writer):
        writer.write(request_)
        answer = await reader.read()
        assert answer.startswith(b"HTTP/1.1 " + status + b"\r\ncontent-type: application/json\r\n")
        assert b'{"error": "' in answer


async def test_request_that_offers_another_protocol_is_answered_in_this_one() -> None:
    async with served(echo) as (reader, writer):
        writer.write(
            b"POST / HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: h2c\r\ncontent-length: 2\r\n\r\nok"
        )
        assert await reader.readexactly(len(response(b"ok"))) == response(b"ok")


async def test_paths_longer_than_are_kept_are_read_as_others_are() -> None:
    async with served(say_path) as (reader, writer):
        for path in (b"x" * 600, b"%20"):
            writer.write(GET % path)
            expected = response(b"GET /%b?" % path.replace(b"%20", b" "))
            assert await reader.readexactly(len(expected)) == expected


class Transport(asyncio.Transport):
    """A transport that records writes and its closing."""

    def __init__(self) -> None:
        super().__init__({"sockname": ("127.0.0.1", 1), "peername": ("127.0.0.1", 2)})
        self.written = b""
        self.closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed

    def get_write_buffer_size(self) -> int:
        return 0

    def can_write_eof(self) -> bool:
        return False

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


class Timers:
    """An event loop's clock, which stands still, and at most one timer."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.create_task = loop.create_task
        self.create_future = loop.create_future
        self.now_s = 0.0
        self.due: tuple[float, Callable[[], None]] | None = None

    def time(self) -> float:
        return self.now_s

    def call_later(self, delay_s: float, call: Callable[[], None]) -> "Timers":
        assert self.due is None
        self.due = (self.now_s + delay_s, call)
        return self

    def cancel(self) -> None:
        self.due = None

    def fire(self) -> None:
        assert self.due is not None
        (self.now_s, call), self.due = self.due, None
        call()


async def request(protocol: Http1Protocol) -> None:
    protocol.data_received(GET % b"")
    await asyncio.wait(protocol.tasks)


async def test_idle_connection_is_closed_by_one_timer_that_is_late_by_what_came_meanwhile() -> None:
    timers, transport = Timers(asyncio.get_running_loop()), Transport()
    protocol = Http1Protocol(config(say_path, timeout_keep_alive=10), ServerState(), {}, timers)  # type: ignore[arg-type]
    protocol.connection_made(transport)
    await request(protocol)
    timers.now_s = 7.0
    await request(protocol)
    timers.fire()
    assert (timers.now_s, transport.closed) == (10.0, False)
    timers.fire()
    assert (timers.now_s, transport.closed) == (17.0, True)


async def test_busy_connection_is_not_closed_by_the_timer_of_idle_ones() -> None:
    timers, transport = Timers(asyncio.get_running_loop()), Transport()
    protocol = Http1Protocol(config(echo, timeout_keep_alive=10), ServerState(), {}, timers)  # type: ignore[arg-type]
    protocol.connection_made(transport)
    await request(protocol)
    protocol.data_received(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\n\r\n")
    timers.fire()
    assert not transport.closed
    protocol.data_received(b"x")
    await asyncio.wait(protocol.tasks)
    timers.fire()
    assert transport.closed


async def test_lost_connection_leaves_no_timer() -> None:
    timers, transport = Timers(asyncio.get_running_loop()), Transport()
    protocol = Http1Protocol(config(echo), ServerState(), {}, timers)  # type: ignore[arg-type]
    protocol.connection_made(transport)
    await request(protocol)
    protocol.connection_lost(None)
    assert timers.due is None


async def test_shutdown_closes_what_is_idle_and_lets_answers_end() -> None:
    idle, busy = Transport(), Transport()
    state = ServerState()
    for transport in (idle, busy):
        Http1Protocol(config(echo), state, {}).connection_made(transport)
    protocol = next(each for each in state.connections if each.transport is busy)
    protocol.data_received(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\n\r\n")
    for connection in state.connections:
        connection.shutdown()
    assert (idle.closed, busy.closed) == (True, False)
    protocol.data_received(b"x")
    await asyncio.wait(state.tasks)
    assert busy.closed
    assert b"\r\nconnection: close\r\n" in busy.written
    for connection in list(state.connections):
        connection.connection_lost(None)


async def test_a_short_response_is_one_write() -> None:
    writes: list[bytes] = []
    transport = Transport()
    transport.write = lambda data: writes.append(bytes(data))  # type: ignore[method-assign]
    protocol = Http1Protocol(config(say_path), ServerState(), {})
    protocol.connection_made(transport)
    await request(protocol)
    assert writes == [b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nGET /?"]
    protocol.connection_lost(None)


@pytest.mark.parametrize(
    ("limits", "body", "status"),
    [
        pytest.param(Http1Limits(body_start_s=0.05), b"", b"408 Request Timeout", id="no body"),
        pytest.param(Http1Limits(body_start_s=0.05, request_s=0.1), b"x", b"408 Request Timeout", id="half a body"),
        pytest.param(Http1Limits(head_s=0.05), None, b"408 Request Timeout", id="half a head"),
    ],
)
async def test_request_that_is_late_is_refused_and_its_application_ends(
    limits: Http1Limits, body: bytes | None, status: bytes
) -> None:
    ended: asyncio.Queue[Message] = asyncio.Queue()

    async def app(scope: "Scope", receive: "Receive", send: "Send") -> None:
        while (message := await receive())["type"] == "http.request":
            pass
        ended.put_nowait(message)

    async with served(app, limits) as (reader, writer):
        head = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n"
        writer.write(head if body is None else head + b"\r\n" + body)
        assert (await reader.read()).startswith(b"HTTP/1.1 " + status + b"\r\n")
        if body is not None:
            assert await ended.get() == {"type": "http.disconnect"}


async def test_late_body_after_the_response_began_ends_the_connection() -> None:
    async def app(scope: "Scope", receive: "Receive", send: "Send") -> None:
        await send(start(TWO))
        await send({"type": "http.response.body", "body": b"x", "more_body": True})
        await read_body(receive)

    async with served(app, Http1Limits(body_start_s=0.05)) as (reader, writer):
        writer.write(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n")
        assert await reader.read() == b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ndate: today\r\n\r\nx"


async def test_body_is_not_late_while_the_server_does_not_read() -> None:
    timers, transport = Timers(asyncio.get_running_loop()), Transport()
    protocol = Http1Protocol(config(echo), ServerState(), {}, timers)  # type: ignore[arg-type]
    protocol.connection_made(transport)
    protocol.data_received(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 100000\r\n\r\n" + b"x" * 80_000)
    timers.fire()
    assert not transport.closed
    protocol.connection_lost(None)
    await asyncio.wait(protocol.tasks)


async def test_client_that_takes_no_bytes_of_its_response_loses_its_connection() -> None:
    gone = asyncio.Event()

    async def app(scope: "Scope", receive: "Receive", send: "Send") -> None:
        await read_body(receive)
        await respond(send, b"x" * 50_000_000)
        await receive()
        gone.set()

    async with served(app, Http1Limits(unsent_s=0.05)) as (reader, writer):
        reader.feed_eof()
        writer.transport.pause_reading()  # type: ignore[attr-defined]  # a read transport, too
        writer.write(GET % b"")
        await gone.wait()


async def test_connections_over_the_limit_are_closed_and_others_go_on() -> None:
    async with served(echo, Http1Limits(connections=1)) as (reader, writer):
        writer.write(GET % b"")
        assert await reader.readexactly(len(response(b""))) == response(b"")
        more, other = await asyncio.open_connection(*writer.get_extra_info("peername"))
        assert await more.read() == b""
        other.close()
        writer.write(GET % b"")
        assert await reader.readexactly(len(response(b""))) == response(b"")


async def test_requests_after_a_large_body_wait_for_its_response() -> None:
    begun, gate = asyncio.Event(), asyncio.Event()

    async def app(scope: "Scope", receive: "Receive", send: "Send") -> None:
        body = await read_body(receive)
        begun.set()
        await gate.wait()
        await respond(send, b"%d" % len(body))

    async with served(app) as (reader, writer):
        writer.write(POST % (200_000, b"x" * 200_000) + GET % b"" * 3_000)
        await begun.wait()
        gate.set()
        expected = response(b"200000") + response(b"0") * 3_000
        assert await reader.readexactly(len(expected)) == expected


@pytest.mark.parametrize("size", [1, 7, 1000, 16_384, 100_000])
async def test_requests_are_the_same_in_pieces_of_any_size(size: int) -> None:
    requests = (
        GET % b""
        + POST % (70_000, b"x" * 70_000)
        + GET % b"" * 3
        + b"POST / HTTP/1.1\r\nhost: x\r\na: %b\r\n" % (b"y" * 40_000)
    )
    requests += b"transfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nx: y\r\n\r\n" + POST % (2, b"ok") + b"bad\r\n\r\n"
    async with served(echo) as (reader, writer):

        async def write() -> None:
            for at in range(0, len(requests), size):
                writer.write(requests[at : at + size])
                await writer.drain()

        writing = asyncio.create_task(write())
        bodies = [b"", b"x" * 70_000, b"", b"", b"", b"abc", b"ok"]
        received = await reader.read(-1)
        assert received.startswith(b"".join(map(response, bodies)) + b"HTTP/1.1 400 ")
        with contextlib.suppress(ConnectionError):
            await writing


def test_uvicorn_still_has_the_class_that_this_one_is_made_on() -> None:
    """Check uvicorn's methods. On failure, review uvicorn's changes before the names here: http1.py overrides most."""
    methods = {name for name, value in vars(HttpToolsProtocol).items() if inspect.isfunction(value)}
    assert methods == {
        "__init__",
        "_get_upgrade",
        "_should_upgrade",
        "_should_upgrade_to_ws",
        "_start_asgi_task",
        "_unset_keepalive_if_required",
        "_unsupported_upgrade_warning",
        "connection_lost",
        "connection_made",
        "data_received",
        "eof_received",
        "handle_websocket_upgrade",
        "on_body",
        "on_header",
        "on_headers_complete",
        "on_message_begin",
        "on_message_complete",
        "on_response_complete",
        "on_url",
        "pause_writing",
        "resume_writing",
        "send_400_response",
        "shutdown",
        "timeout_keep_alive_handler",
    }
    assert list(inspect.signature(HttpToolsProtocol).parameters) == ["config", "server_state", "app_state", "_loop"]


NO_REQUEST = b"no request\r\n\r\n"


async def test_what_comes_after_a_refusal_is_discarded_up_to_a_limit() -> None:
    async with served(echo) as (reader, writer):
        writer.write(NO_REQUEST)
        assert (await reader.read()).startswith(b"HTTP/1.1 400 Bad Request\r\n")
        with contextlib.suppress(ConnectionError):
            # The server closes its side after a mebibyte.
            for _ in range(64):
                writer.write(b"x" * 65_536)
                await writer.drain()


async def test_what_comes_after_a_refusal_waits_while_an_older_request_is_answered() -> None:
    may_end = asyncio.Event()

    async def app(scope: "Scope", receive: "Receive", send: "Send") -> None:
        await may_end.wait()
        await respond(send, b"older")

    transport = Transport()
    protocol = Http1Protocol(config(app), ServerState(), {})
    protocol.connection_made(transport)
    protocol.data_received(GET % b"")
    protocol.data_received(NO_REQUEST)
    protocol.data_received(b"more")
    assert protocol.flow.read_paused
    assert transport.written == b""
    may_end.set()
    await asyncio.wait(protocol.tasks)
    older, refusal = transport.written.split(b"older")
    assert older.startswith(b"HTTP/1.1 200 OK")
    assert refusal.startswith(b"HTTP/1.1 400 Bad Request")
    # This transport cannot close one direction alone.
    assert transport.closed
    protocol.connection_lost(None)
