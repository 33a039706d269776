"""A server for the cases of HTTP/2."""

import asyncio
import socket
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.server.hosts.http2.peer import ECHO
from tpuserve_server.hosts.application import HostOptions
from tpuserve_server.hosts.http_server import HttpServer

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send


class _Endpoint:
    """Answers `/hello`, echoes gRPC messages, and reads nothing of other requests."""

    holds = False

    def say_farewell(self) -> None:
        """Ignore it: the server lives as long as the module."""

    def take_farewells(self) -> int:
        return 0

    def release(self) -> None:
        """Do nothing: no call waits for it."""

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        path = scope["path"]
        if path == "/unread":
            await asyncio.Event().wait()
        if path != ECHO:
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"5")]})
            await send({"type": "http.response.body", "body": b"hello"})
            return
        body, is_whole = b"", False
        while not is_whole:
            part = await receive()
            if part["type"] == "http.disconnect":
                return
            body += part.get("body", b"")
            is_whole = not part.get("more_body", False)
        head = {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/grpc")]}
        await send({**head, "trailers": True})
        await send({"type": "http.response.body", "body": body})
        await send({"type": "http.response.trailers", "headers": [(b"grpc-status", b"0")]})


@pytest.fixture(scope="module")
def http2_port() -> Iterator[int]:
    """Yield the port of a server with the host's configuration, which must outlive every case."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=loop.run_forever, name="http2-server")
        thread.start()
        server = HttpServer(lambda _: _Endpoint(), {"grpc": listening}, HostOptions())
        try:
            asyncio.run_coroutine_threadsafe(server.open(None), loop).result()
            yield listening.getsockname()[1]
        finally:
            asyncio.run_coroutine_threadsafe(server.close(), loop).result()
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()
