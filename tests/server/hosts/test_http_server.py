"""Tests for generations of the HTTP server, with real clients."""

import asyncio
import logging
import socket
import ssl
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio
import httpx
import pytest

from tests.server.hosts.grpc_calls import unary
from tests.server.hosts.test_tls import CA, TLS, chain_of, client_context, key_of
from tpuserve_server.hosts import http_server
from tpuserve_server.hosts.application import HostError, HostOptions, TlsOptions
from tpuserve_server.hosts.http_server import HttpServer

if TYPE_CHECKING:
    from starlette.types import Message, Receive, Scope, Send

OPTIONS = HostOptions(bind_address="127.0.0.1")
OTHER = CA.issue_cert("127.0.0.1")
NEXT = TlsOptions(private_key=key_of(OTHER), certificate_chain=chain_of(OTHER))
CLOSE = (b"connection", b"close")


class Echo:
    """Echoes bodies, over gRPC with its status."""

    def __init__(self) -> None:
        self.farewells = 0
        self.holds = False
        self.is_leaving = False

    def say_farewell(self) -> None:
        self.is_leaving = True

    def take_farewells(self) -> int:
        taken, self.farewells = self.farewells, 0
        return taken

    def release(self) -> None:
        """Do nothing: no call waits for it."""

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        content, more = b"", True
        while more:
            message = await receive()
            content += message.get("body", b"")
            more = message.get("more_body", False)
        if scope["http_version"] == "2":
            head = [(b"content-type", b"application/grpc")]
            await send({"type": "http.response.start", "status": 200, "headers": head, "trailers": True})
            await send({"type": "http.response.body", "body": content})
            await send({"type": "http.response.trailers", "headers": [(b"grpc-status", b"0")]})
            return
        self.farewells += self.is_leaving
        start: Message = {"type": "http.response.start", "status": 200, "headers": [CLOSE] if self.is_leaving else []}
        await send(start)
        await send({"type": "http.response.body", "body": content})


@pytest.fixture(autouse=True)
def _brief(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "FAREWELL_S", 0.2)


@pytest.fixture
def bound() -> socket.socket:
    # The server closes it.
    bound = socket.socket()
    bound.bind(("127.0.0.1", 0))
    return bound


def server_on(bound: socket.socket, **options: Any) -> HttpServer:  # noqa: ANN401 - fields of HostOptions
    return HttpServer(lambda _: Echo(), {"rest": bound}, HostOptions(bind_address="127.0.0.1", **options))


@pytest.fixture
async def server(bound: socket.socket) -> AsyncIterator[HttpServer]:
    server = server_on(bound)
    await server.open(TlsOptions(**TLS))
    yield server
    await server.close()


async def presented(port: int) -> bytes | None:
    """Return the certificate that a new connection gets."""
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=client_context())
    certificate: bytes | None = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    return certificate


async def test_new_certificates_cost_no_request(server: HttpServer, bound: socket.socket) -> None:
    port, stop = bound.getsockname()[1], asyncio.Event()
    done = 0

    async def post() -> None:
        nonlocal done
        async with httpx.AsyncClient(verify=client_context(), timeout=60) as client:
            while not stop.is_set():
                answer = await client.post(f"https://127.0.0.1:{port}", content=b"x")
                assert answer.content == b"x"
                done += 1

    async def call() -> None:
        nonlocal done
        credentials = grpc.ssl_channel_credentials(CA.cert_pem.bytes())
        async with grpc.aio.secure_channel(f"127.0.0.1:{port}", credentials) as channel:
            while not stop.is_set():
                assert await unary(channel, "B")(b"x", timeout=60) == b"x"
                done += 1

    load = [asyncio.create_task(work()) for work in (post, post, call)]
    before = await presented(port)
    await server.renew(NEXT)
    while await presented(port) == before:  # noqa: ASYNC110  # Both generations accept for a while.
        await asyncio.sleep(0.01)
    await asyncio.sleep(2 * http_server.FAREWELL_S)
    expected = ssl.PEM_cert_to_DER_cert(OTHER.cert_chain_pems[0].bytes().decode())
    assert [await presented(port) for _ in range(4)] == [expected] * 4
    seen = done
    while done < seen + 20:  # noqa: ASYNC110  # The clients count.
        await asyncio.sleep(0.01)
    stop.set()
    await asyncio.gather(*load)


async def test_certificates_that_cannot_be_used_change_nothing(server: HttpServer, bound: socket.socket) -> None:
    port = bound.getsockname()[1]
    before = await presented(port)
    with pytest.raises(HostError, match=r"^here: "):
        await server.renew(TlsOptions("no key", TLS["certificate_chain"], chain_name="here"))
    assert await presented(port) == before


async def test_a_server_that_ends_by_itself_starts_again(
    bound: socket.socket, caplog: pytest.LogCaptureFixture
) -> None:
    server = server_on(bound)
    await server.open(None)
    [generation] = server._generations
    with caplog.at_level(logging.ERROR):
        generation.serving.get_loop().call_soon(generation.serving.cancel)
        await asyncio.wait({generation.serving})
        failed: asyncio.Task[None] = asyncio.create_task(_fail())
        await asyncio.wait({failed})
        server._generations = [http_server._Generation(generation.endpoint, generation.server, failed)]
        server._ended(failed)
        await asyncio.gather(*server._tasks)
    assert "It starts again" in caplog.text
    async with httpx.AsyncClient() as client:
        assert (await client.post(f"http://127.0.0.1:{bound.getsockname()[1]}", content=b"x")).content == b"x"
    await server.close()


async def test_a_renewal_that_fails_is_tried_again(
    bound: socket.socket, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(http_server, "_PAUSE_S", 0.01)
    server = server_on(bound)
    await server.open(None)
    start, failures = server._start, [OSError(24, "Too many open files")]

    async def fail_once(tls: TlsOptions | None) -> list[http_server._Generation]:
        if failures:
            raise HostError(str(failures.pop()))
        return await start(tls)

    monkeypatch.setattr(server, "_start", fail_once)
    [before] = server._generations
    await server._renew_for_sure()
    assert server._generations != [before]
    assert "The HTTP server cannot start, and tries again" in caplog.text
    await server.close()


async def test_renewals_at_the_same_time_leave_the_address_open(bound: socket.socket) -> None:
    server = server_on(bound)
    await server.open(None)
    await asyncio.gather(*(server.renew(None) for _ in range(3)))
    async with httpx.AsyncClient() as client:
        assert (await client.post(f"http://127.0.0.1:{bound.getsockname()[1]}", content=b"x")).content == b"x"
    await server.close()


async def _fail() -> None:
    raise OSError(24, "Too many open files")


async def test_connections_of_a_great_age_are_closed(bound: socket.socket) -> None:
    server = server_on(bound, grpc_arguments=(("grpc.max_connection_age_ms", 50),))
    await server.open(None)
    url = f"http://127.0.0.1:{bound.getsockname()[1]}"
    async with httpx.AsyncClient(timeout=60) as client:
        while (await client.post(url, content=b"x")).headers.get("connection") != "close":
            continue
    await server.close()


async def test_farewells_are_counted_until_they_are_taken(bound: socket.socket) -> None:
    server = server_on(bound)
    await server.open(None)
    server.say_farewell()
    async with httpx.AsyncClient(timeout=60) as client:
        await client.post(f"http://127.0.0.1:{bound.getsockname()[1]}", content=b"x")
    assert [server.take_farewells(), server.take_farewells()] == [1, 0]
    await server.renew(None)  # The server is leaving, so nothing changes.
    assert len(server._generations) == 1
    await server.close()
