"""Tests for faulty HTTP servers and proxies, simulated by scripted servers."""

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from tests.clients.model_server import http_address
from tpuserve_client.errors import DeadlineExceeded, InvalidArgument, NotFound, TpuserveError, Unavailable
from tpuserve_client.exchange import Exchange, Reply
from tpuserve_client.limits import Pool
from tpuserve_client.rest_transport import AsyncRestTransport, RestTransport

LARGE_BODY_BYTES = 2**26


async def trickle(_request: Request) -> Response:
    async def drops() -> AsyncIterator[bytes]:
        while True:
            yield b"."
            await asyncio.sleep(0.02)

    return StreamingResponse(drops())


async def cut_short(_request: Request) -> Response:
    async def start() -> AsyncIterator[bytes]:
        yield b"half"

    return StreamingResponse(start(), headers={"content-length": "100"})


async def proxy_page(_request: Request) -> Response:
    return PlainTextResponse("<h1>Bad Gateway</h1>", 502)


async def empty_page(_request: Request) -> Response:
    return Response(status_code=503, headers={"retry-after": "soon"})


async def come_back(_request: Request) -> Response:
    return Response(status_code=503, headers={"retry-after": format_datetime(datetime.now(UTC) + timedelta(hours=1))})


async def no_date(_request: Request) -> Response:
    return Response(status_code=503, headers={"retry-after": f"Thu, 01 Jan {'9' * 20} 00:00:00 +{'9' * 20}"})


async def bottomless(_request: Request) -> Response:
    return PlainTextResponse("[" * 5000, 404)


@pytest.fixture
def address() -> Iterator[str]:
    pages = [trickle, cut_short, proxy_page, empty_page, come_back, no_date, bottomless]
    with http_address(Starlette(routes=[Route(f"/{page.__name__}", page) for page in pages])) as place:
        yield place


def send(kind: str, address: str, path: str, timeout_s: float | None, body: bytes = b"") -> Reply:
    exchange = Exchange(path, body, method="POST" if body else "GET")
    if kind == "sync":
        transport = RestTransport(address)
        try:
            return transport.send(exchange, timeout_s)
        finally:
            transport.close()

    async def awaited() -> Reply:
        transport = AsyncRestTransport(address)
        try:
            return await transport.send(exchange, timeout_s)
        finally:
            await transport.close()

    return asyncio.run(awaited())


def test_cancelled_call_leaves_a_usable_connection(address: str) -> None:
    """Cancel a call after each number of steps of the event loop, until the call ends before its cancellation."""

    async def cancel_after(steps: int) -> bool:
        transport = AsyncRestTransport(address, pool=Pool(max_connections=1))
        try:
            first = asyncio.create_task(transport.send(Exchange("/bottomless", method="GET"), None))
            for _ in range(steps):
                await asyncio.sleep(0)
            first.cancel()
            await asyncio.wait([first])
            with pytest.raises(NotFound):
                await transport.send(Exchange("/bottomless", method="GET"), 30.0)
            return first.cancelled()
        finally:
            await transport.close()

    steps = 0
    while asyncio.run(cancel_after(steps)):
        steps += 1
    assert steps > 0


def test_body_that_trickles_in_is_given_up_at_the_deadline(kind: str, address: str) -> None:
    with pytest.raises(DeadlineExceeded, match=r"within 0.3 s"):
        send(kind, address, "/trickle", 0.3)


@contextmanager
def one_connection(serve: Callable[[socket.socket], None]) -> Iterator[str]:
    """Yield the address of a server that accepts one connection and passes it to `serve`.

    The server ends when the client disconnects.
    """

    def accept() -> None:
        with listener.accept()[0] as connection, contextlib.suppress(OSError):
            serve(connection)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=accept, name="test-raw-http")
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            thread.join()


def trickle_headers(connection: socket.socket) -> None:
    """Send a valid response slowly: a client that waits long enough receives all of it."""
    connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n")
    for number in range(100):
        connection.sendall(b"x-%d: .\r\n" % number)
        time.sleep(0.02)
    connection.sendall(b"\r\n")


def drink_slowly(connection: socket.socket) -> None:
    """Read a large request, then send a response. No single wait for buffer space is long."""
    left = LARGE_BODY_BYTES
    while left > 0 and (taken := connection.recv(2**18)):
        left -= len(taken)
        time.sleep(0.005)
    connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")


def test_headers_that_trickle_in_are_given_up_at_the_deadline(kind: str) -> None:
    with one_connection(trickle_headers) as place, pytest.raises(DeadlineExceeded, match=r"within 0.3 s"):
        send(kind, place, "/", 0.3)


def test_request_that_is_taken_slowly_is_given_up_at_the_deadline(kind: str) -> None:
    with one_connection(drink_slowly) as place, pytest.raises(DeadlineExceeded, match=r"within 0.3 s"):
        send(kind, place, "/", 0.3, body=bytes(LARGE_BODY_BYTES))


def test_connection_is_used_again_with_a_deadline_of_its_own(address: str) -> None:
    transport = RestTransport(address)
    with contextlib.closing(transport):
        for _ in range(2):
            with pytest.raises(Unavailable):
                transport.send(Exchange("/proxy_page", method="GET"), 5.0)
        with pytest.raises(DeadlineExceeded):
            transport.send(Exchange("/trickle", method="GET"), 0.2)
        with pytest.raises(Unavailable):
            transport.send(Exchange("/proxy_page", method="GET"), None)


def test_proxy_of_the_environment_is_spoken_to(kind: str, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("no_proxy", "NO_PROXY", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("http_proxy", address)  # the server responds by path and ignores the host
    with pytest.raises(Unavailable, match=r"^HTTP 502 Bad Gateway: <h1>Bad Gateway</h1>$"):
        send(kind, "http://model.invalid:8501", "/proxy_page", 5.0)
    monkeypatch.setenv("no_proxy", "model.invalid")
    with pytest.raises(Unavailable):
        send(kind, "http://model.invalid:8501", "/proxy_page", 5.0)


def test_path_too_long_for_a_url_is_an_invalid_argument(kind: str, address: str) -> None:
    with pytest.raises(InvalidArgument, match="URL too long"):
        send(kind, address, "/" + "x" * 70000, 5.0)


@pytest.mark.filterwarnings("ignore")  # the server complains that the body is shorter than its content-length
def test_connection_that_breaks_in_the_middle_is_unavailable(kind: str, address: str) -> None:
    with pytest.raises(Unavailable):
        send(kind, address, "/cut_short", 5.0)


def test_proxys_page_is_the_message(kind: str, address: str) -> None:
    with pytest.raises(Unavailable, match=r"^HTTP 502 Bad Gateway: <h1>Bad Gateway</h1>$"):
        send(kind, address, "/proxy_page", 5.0)


def test_empty_body_leaves_the_status_as_the_message(kind: str, address: str) -> None:
    with pytest.raises(Unavailable, match="HTTP 503 Service Unavailable") as caught:
        send(kind, address, "/empty_page", 5.0)
    assert caught.value.retry_after_s is None  # "soon" is not a duration


def test_retry_after_can_be_a_date(kind: str, address: str) -> None:
    with pytest.raises(TpuserveError) as caught:
        send(kind, address, "/come_back", 5.0)
    assert caught.value.retry_after_s == pytest.approx(3600, abs=60)


def test_retry_after_beyond_all_dates_is_ignored(kind: str, address: str) -> None:
    with pytest.raises(Unavailable) as caught:
        send(kind, address, "/no_date", 5.0)
    assert caught.value.retry_after_s is None


def test_error_nested_too_deeply_is_read_as_text(kind: str, address: str) -> None:
    with pytest.raises(NotFound, match=r"^HTTP 404 Not Found: \[{1024}$"):
        send(kind, address, "/bottomless", 5.0)
