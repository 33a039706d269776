"""Requests of one protocol for an ASGI application in this process, without a socket."""

import asyncio
import time
from typing import TYPE_CHECKING, Final

import uvloop

from benchmarks.harness.load_tools import framed
from benchmarks.harness.mlp_model import example
from benchmarks.peers.wire import Wire
from tpuserve_client.exchange import Reply

if TYPE_CHECKING:
    from collections.abc import MutableMapping
    from typing import Any

    from starlette.types import ASGIApp, Message

IN_FLIGHT: Final = 32
_CLIENT: Final = ("127.0.0.1", 50000)
# As grpcio sends them.
_GRPC_HEADERS: Final = [
    (b"te", b"trailers"),
    (b"content-type", b"application/grpc"),
    (b"user-agent", b"grpc-python/1.80.0 grpc-c/50.0.0 (linux; chttp2)"),
    (b"grpc-accept-encoding", b"identity, deflate, gzip"),
]


class Request:
    """A request of one row."""

    def __init__(self, wire: Wire) -> None:
        """Encode the request of a wire."""
        body = wire.encode(example())
        is_grpc = wire.protocol == "grpc"
        self.body = framed(body) if is_grpc else body
        own = _GRPC_HEADERS if is_grpc else [(b"content-length", b"%d" % len(body)), *_encoded(wire)]
        path = wire.path.encode()
        headers = [(b":method", b"POST"), (b":scheme", b"http"), (b":path", path), (b":authority", b"server"), *own]
        self._scope = {
            "type": "http",
            "method": "POST",
            "path": wire.path,
            "raw_path": path,
            "headers": headers,
            "client": _CLIENT,
            "extensions": {"http.response.trailers": {}} if is_grpc else {},
        }

    def scope(self) -> "MutableMapping[str, Any]":
        """Return the ASGI scope of another request."""
        return self._scope.copy()


def _encoded(wire: Wire) -> list[tuple[bytes, bytes]]:
    return [(name.lower().encode(), value.encode()) for name, value in wire.headers.items()]


def run(app: "ASGIApp", request: Request, requests: int) -> tuple[float, float]:
    """Return the CPU of the loop's thread and of all others for each request, in microseconds."""
    return uvloop.run(_Load(app, request, requests).run())


def replies(app: "ASGIApp", request: Request) -> list[Reply]:
    """Send IN_FLIGHT requests, and return the responses. A gRPC message is in a frame."""
    load = _Load(app, request, IN_FLIGHT, keeps_replies=True)
    uvloop.run(load.run())
    return load.replies


class _Receive:
    """ASGI's `receive` of a request whose body has arrived."""

    def __init__(self, body: bytes) -> None:
        self._received: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._received.set_result({"type": "http.request", "body": body, "more_body": False})

    def __call__(self) -> "asyncio.Future[Message]":
        return self._received


class _Load:
    """Requests of which IN_FLIGHT are in flight at a time. Each has a separate task, as on h2corn.

    With `keeps_replies`, `replies` gets the responses.
    """

    def __init__(self, app: "ASGIApp", request: Request, requests: int, *, keeps_replies: bool = False) -> None:
        self._app = app
        self._request = request
        self._left = requests
        self._pending = 0
        self._keeps_replies = keeps_replies
        self.replies: list[Reply] = []

    async def run(self) -> tuple[float, float]:
        loop = asyncio.get_running_loop()
        self._receive = _Receive(self._request.body)
        self._sent: asyncio.Future[None] = loop.create_future()
        self._sent.set_result(None)
        self._done: asyncio.Future[None] = loop.create_future()
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
        coroutine = self._app(self._request.scope(), self._receive, self._send)
        asyncio.ensure_future(coroutine).add_done_callback(self._ended)

    def _send(self, message: "Message") -> "asyncio.Future[None]":
        if self._keeps_replies:
            self._keep(message)
        return self._sent

    def _keep(self, message: "Message") -> None:
        # Each response is sent in one turn of the event loop, so that no other one is between its parts.
        if message["type"] == "http.response.start":
            headers = {name.decode(): value.decode() for name, value in message["headers"]}
            self.replies.append(Reply(b"", headers))
        elif message["type"] == "http.response.body":
            self.replies[-1] = self.replies[-1]._replace(body=message["body"])

    def _ended(self, task: "asyncio.Future[None]") -> None:
        task.result()
        self._pending -= 1
        if self._left:
            self._begin()
        elif not self._pending:
            self._done.set_result(None)
