"""One request over HTTP/1.1 and its response in ASGI: uvicorn's request-response cycle, for short requests."""

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING, Final, Protocol

from uvicorn.protocols.http.flow_control import FlowControl

from tpuserve_server.core.budgets.sending import ResponseCut
from tpuserve_server.frontends.http.errors import ClientGone
from tpuserve_server.hosts.disconnects import DISCONNECT
from tpuserve_server.hosts.http1.head import Head, head_of, header_lines

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.types import ASGIApp, Message, Scope

_log = logging.getLogger("uvicorn.error")

_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
_CLOSE: Final = b"connection: close\r\n"
# Head and body are copied into a single write if the body is at most this long.
_LARGE_BYTES = 1 << 16
# The application receives larger pieces of a body as they arrived, and smaller ones together.
_SMALL_PIECE_BYTES: Final = 1 << 12
_FAILED: Final = b'{"error":"Internal error"}'
_FAILED_HEADERS: Final = (
    (b"content-type", b"application/json"),
    (b"content-length", b"%d" % len(_FAILED)),
    (b"connection", b"close"),
)


# Shared by all exchanges without later pieces. Never changed.
_NO_PIECES: "Final[deque[bytes | bytearray]]" = deque()


class Connection(Protocol):
    """The interface that an exchange needs from its connection."""

    transport: asyncio.Transport
    flow: FlowControl
    # A completed future, the result of a send that is already done.
    done: "asyncio.Future[None]"

    def default_headers(self) -> list[tuple[bytes, bytes]]:
        """Return the headers of every response."""
        ...

    def want_data(self) -> None:
        """Continue to read, because an exchange waits for its body or for the disconnect of its client."""
        ...

    def on_response_complete(self) -> None:
        """Handle the end of the exchange: its last byte was written."""
        ...


class Exchange:
    """A request and its response. The event loop's thread owns it. It is also ASGI's `receive` with its read position.

    The exchange holds the response's first message and writes it together with the second one. Most responses need only
    one write and one packet.
    """

    __slots__ = (
        "_arrived",
        "_body",
        "_connection",
        "_expects_continue",
        "_has_event",
        "_head",
        "_is_head_sent",
        "_later",
        "_sent_bytes",
        "disconnected",
        "ended",
        "keep_alive",
        "more_body",
        "response_complete",
        "scope",
    )

    def __init__(self, connection: Connection, scope: "Scope", *, expects_continue: bool, keep_alive: bool) -> None:
        """Create the exchange for an ASGI `scope`. With `expects_continue`, the client waits for 100 Continue."""
        self._connection = connection
        self.scope = scope
        self._expects_continue = expects_continue
        # Whether the connection stays open after the response.
        self.keep_alive = keep_alive
        self.disconnected = False
        # The request: the next piece that the application has not received, those after it, whether more follow, and
        # whether it got the end.
        self._body: bytes | bytearray = b""
        self._later: deque[bytes | bytearray] = _NO_PIECES
        self.more_body = True
        self.ended = False
        self._has_event = False
        self._arrived: asyncio.Event | None = None  # Signals news. Created at the first wait.
        # The response.
        self._head: Head | None = None
        self._is_head_sent = False
        self._sent_bytes = 0
        self.response_complete = False

    @property
    def server(self) -> "Exchange":
        """The server's own `receive` (BodyReceive)."""
        return self

    @property
    def has_begun(self) -> bool:
        """Whether the response has begun."""
        return self._head is not None

    @property
    def held_bytes(self) -> int:
        """The number of body bytes that arrived and that the application has not received."""
        return len(self._body) + sum(map(len, self._later))

    def add(self, piece: bytes) -> None:
        """Add a piece of the request's body."""
        if not self._body:
            self._body = piece  # Nearly always the whole body.
        else:
            self._add_later(piece)
        self._notify()

    def _add_later(self, piece: bytes) -> None:
        last = self._later[-1] if self._later else self._body
        if len(last) >= _SMALL_PIECE_BYTES or len(piece) >= _SMALL_PIECE_BYTES:
            self._later = self._later or deque()
            self._later.append(piece)
        elif isinstance(last, bytearray):
            last += piece
        elif self._later:
            self._later[-1] = bytearray(last) + piece
        else:
            self._body = bytearray(last) + piece

    def complete(self) -> None:
        """Mark the request's body as complete."""
        self.more_body = False
        self._notify()

    def disconnect(self) -> None:
        """Handle a disconnect of the client."""
        if not self.response_complete:
            self.disconnected = True
        self._notify()

    def _notify(self) -> None:
        self._has_event = True
        if self._arrived is not None:
            self._arrived.set()

    async def run(self, app: "ASGIApp", ended: "Callable[[asyncio.Task[None] | None], None]") -> None:
        """Run `app`, then call `ended` with the task.

        After an error, send a 500 response, or close the connection if a response has begun.
        """
        try:
            await app(self.scope, self, self.send)
            if not (self.response_complete or self.disconnected):
                raise RuntimeError("The application returned before its response was complete")
        except (ClientGone, ResponseCut):
            # The application or the budget gave up a client that does not read: `close` would wait for it.
            self._connection.transport.abort()
        except asyncio.CancelledError:
            # The drain has no more time. Only a response that its client does not read is left then.
            _log.warning("Cut a response, because the client did not read it before the server ended")
            self._fail()
        except BaseException as error:  # The edge.
            _log.exception("Exception in ASGI application", exc_info=error)
            self._fail()
        finally:
            ended(asyncio.current_task())

    def _fail(self) -> None:
        if self._head is None and not self.disconnected:
            self._send_start(500, _FAILED_HEADERS)
            self._send_body(_FAILED, is_last=True)
        else:
            self._connection.transport.close()

    def send(self, message: "Message") -> "Awaitable[None]":
        """Send an ASGI message. Writes it before returning, unless writing is paused."""
        if self._connection.flow.write_paused and not self.disconnected:
            return self._send_later(message)
        self._send(message)
        return self._connection.done

    async def _send_later(self, message: "Message") -> None:
        await self._connection.flow.drain()
        self._send(message)

    def _send(self, message: "Message") -> None:
        if self.disconnected:
            return
        expected = "http.response.start" if self._head is None else "http.response.body"
        if message["type"] != expected or self.response_complete:
            raise RuntimeError(f"the application sent {message['type']}, expected {expected}")
        if self._head is None:
            self._send_start(message["status"], tuple(message.get("headers", ())))
        else:
            self._send_body(message.get("body", b""), is_last=not message.get("more_body", False))

    def _send_start(self, status: int, headers: tuple[tuple[bytes, bytes], ...]) -> None:
        self._expects_continue = False
        self._head = head = head_of(status, headers, has_body=self.scope["method"] != "HEAD")
        if head.closes:
            self.keep_alive = False

    def _send_body(self, body: bytes, *, is_last: bool) -> None:
        head = self._head
        assert head is not None
        if head.length is None:
            body = _chunk(body, is_last=is_last)
        elif self.scope["method"] == "HEAD":
            body = b""
        else:
            self._sent_bytes += len(body)
            if self._sent_bytes > head.length or (is_last and self._sent_bytes < head.length):
                raise RuntimeError("A response's body is longer or shorter than its Content-Length")
        transport = self._connection.transport
        if not self._is_head_sent:
            self._is_head_sent = True
            first = self._first_lines(head)
            if len(body) > _LARGE_BYTES:
                transport.write(first)
            else:
                body = first + body
        if body:
            transport.write(body)
        if is_last:
            self._finish()

    def _first_lines(self, head: Head) -> bytes:
        close = b"" if self.keep_alive or head.closes else _CLOSE
        return b"%b%b%b\r\n" % (head.lines, header_lines(tuple(self._connection.default_headers())), close)

    def _finish(self) -> None:
        self.response_complete = True
        self._notify()
        if not self.keep_alive:
            self._connection.transport.close()
        self._connection.on_response_complete()

    async def __call__(self) -> "Message":
        """Receive the next ASGI message."""
        # After a disconnect, which malformed data also causes, the connection may have written its last byte.
        if self._expects_continue and not (self.disconnected or self._connection.transport.is_closing()):
            self._expects_continue = False
            self._connection.transport.write(_CONTINUE)
        if not (self._has_event or self.disconnected or self.response_complete):
            self._connection.want_data()
            await self._next_event()
        if self.disconnected or self.response_complete:
            return {"type": DISCONNECT}
        body, self._body = self._body, self._later.popleft() if self._later else b""
        self._has_event = bool(self._body)
        more_body = self.more_body or self._has_event
        self.ended = not more_body
        return {"type": "http.request", "body": bytes(body), "more_body": more_body}

    async def _next_event(self) -> None:
        if self._arrived is None:
            self._arrived = asyncio.Event()
        self._arrived.clear()
        await self._arrived.wait()


def _chunk(body: bytes, *, is_last: bool) -> bytes:
    # RFC 9112, 7.1: an empty chunk would end the body.
    chunk = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
    return chunk + b"0\r\n\r\n" if is_last else chunk
