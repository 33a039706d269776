"""One HTTP exchange of any REST protocol: body, encodings, deadline, priority, a client that leaves, and every error.

A protocol adds its paths, its JSON and its texts, and has a line in the table of rest.py. No routing and no middleware:
a FastAPI endpoint costs more than twice what all of a prediction does here (python -m benchmarks codecs).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol
from urllib.parse import quote

from tpuserve_server.core.deadline import Clock, Deadline
from tpuserve_server.core.errors import ServingError
from tpuserve_server.core.priority import Priority
from tpuserve_server.core.rare_timers import RareTimersByLoop
from tpuserve_server.frontends.edge import Edge, MeasuredRequest
from tpuserve_server.frontends.http.body import rest_of_body
from tpuserve_server.frontends.http.client_watch import ClientWatch
from tpuserve_server.frontends.http.errors import BodyTooLarge, ClientGone
from tpuserve_server.frontends.http.gzip import MIN_GZIP_BYTES, gunzip
from tpuserve_server.frontends.http.headers import read_headers
from tpuserve_server.frontends.http.response import (
    Headers,
    JsonResponse,
    compressed,
    error_response,
    send_response,
)

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

_log = logging.getLogger(__name__)
_MEBIBYTE = 1 << 20


@dataclass(frozen=True, slots=True)
class ExchangeOptions:
    """Bounds of one exchange, whatever its protocol."""

    # Before and after decompression.
    max_body_bytes: int = 64 * _MEBIBYTE
    # rest_api_timeout_in_ms; counts from when the body is complete. inf for none.
    timeout_s: float = 30.0
    # How long an answer may take before the server begins to notice that the client has gone.
    disconnect_watch_delay_s: float = 0.05


class HttpCall:
    """One request under way, as a protocol sees it. `read_body` sets `deadline` and `priority`."""

    __slots__ = ("_exchange", "_receive", "deadline", "measured", "priority", "scope")

    deadline: Deadline
    priority: Priority

    def __init__(self, exchange: "Exchange", scope: "Scope", receive: "Receive", measured: MeasuredRequest) -> None:
        """Read nothing yet."""
        self._exchange = exchange
        self._receive = receive
        self.scope = scope
        # The protocol says here what was asked: method, model, version, signature.
        self.measured = measured

    async def read_body(self) -> bytes:
        """Read the headers and the whole body, decompressed; at most a chunk beyond the limit is ever read.

        Raises:
            ClientGone: the client disconnected.
            BodyTooLarge: the body is over the limit, as declared, compressed or not.
            UnsupportedEncoding: the body is encoded otherwise than by gzip.
            InvalidArgument: the gzip is broken, or a header asks for no timeout or priority.
        """
        exchange, receive = self._exchange, self._receive
        limit_bytes = exchange.options.max_body_bytes
        headers = read_headers(self.scope, limit_bytes)
        message = await receive()
        if message["type"] == "http.request" and not message.get("more_body", False):
            body: bytes = message.get("body", b"")
            if len(body) > limit_bytes:
                raise BodyTooLarge(limit_bytes)
        else:
            body = await rest_of_body(message, receive, limit_bytes)
        if headers.is_compressed:
            body = await gunzip(body, limit_bytes)
        measured = self.measured
        measured.came_s = now_s = exchange.clock.monotonic_s()
        # The sooner of the server's, which counts from now, and the client's, who has waited since it was read.
        self.deadline = Deadline(min(now_s + exchange.options.timeout_s, measured.started_s + headers.timeout_s))
        self.priority = headers.priority
        return body

    def watch_client(self) -> ClientWatch:
        """A context manager around the wait for an answer: cancels it, as ClientGone, when the client leaves.

        Only once the body has been read.
        """
        exchange = self._exchange
        timers = exchange.timers.of(asyncio.get_running_loop())
        return ClientWatch(self._receive, exchange.options.disconnect_watch_delay_s, timers)


class RestProtocol(Protocol):
    """What a protocol adds to an exchange."""

    @property
    def headers(self) -> Headers:
        """Headers of every response."""
        ...

    def answer(self, call: HttpCall) -> Awaitable[JsonResponse]:
        """Answer a request; a function that returns a coroutine saves a frame. Raises ServingError, now or awaited."""
        ...

    def error_body(self, message: str) -> bytes:
        """An error as JSON in the protocol's form."""
        ...

    def find_model(self, method: str, path: bytes) -> str | None:
        """The model that the path of a request names, as it was sent; None where it names none."""
        ...


class Exchange:
    """The ASGI application of one protocol. Every error becomes an answer; nothing is raised."""

    def __init__(self, protocol: RestProtocol, edge: Edge, clock: Clock, options: ExchangeOptions) -> None:
        """Answer by `protocol`; `edge` measures every request."""
        self.protocol = protocol
        self.options = options
        self.clock = clock
        self.timers = RareTimersByLoop()
        self._edge = edge

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        """One HTTP request, from path to response."""
        protocol = self.protocol
        try:
            with self._edge.request("Unknown") as measured:
                response = await protocol.answer(HttpCall(self, scope, receive, measured))
        except ClientGone:
            return
        except Exception as error:  # The edge: whatever it is, the client gets an answer.
            response = failure_response(error, scope, protocol.error_body)
        if len(response.body) >= MIN_GZIP_BYTES:
            response = await compressed(response, scope)
        await send_response(send, response, protocol.headers)


def failure_response(error: Exception, scope: "Scope", error_body: Callable[[str], bytes]) -> JsonResponse:
    """The answer to what a protocol raised. Anything but a ServingError is our fault: logged here, hidden outside."""
    if isinstance(error, ServingError):
        return error_response(error, error_body(error.message))
    _log.error("Unexpected error in %s %s", scope["method"], scope["path"], exc_info=error)
    return JsonResponse(500, error_body("Internal error"))


def raw_path(scope: "Scope") -> bytes:
    """The path as it was sent. Not every ASGI server tells; a name with a slash in it then reads as two."""
    raw: bytes | None = scope.get("raw_path")
    return quote(scope["path"], safe="/:").encode() if raw is None else raw.partition(b"?")[0]
