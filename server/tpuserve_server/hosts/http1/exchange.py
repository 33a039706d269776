"""One request over HTTP/1.1 and its response, as ASGI has them: uvicorn's cycle, made for short ones."""

import asyncio
import logging
from typing import TYPE_CHECKING, Final, Protocol

from uvicorn.protocols.http.flow_control import FlowControl

from tpuserve_server.hosts.disconnects import DISCONNECT
from tpuserve_server.hosts.http1.head import Head, head_of, header_lines

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.types import ASGIApp, Message, Scope

_log = logging.getLogger("uvicorn.error")

_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
_CLOSE: Final = b"connection: close\r\n"
# Head and body are copied into one write up to here.
_LARGE_BYTES = 1 << 16
_FAILED: Final = b'{"error":"Internal error"}'
_FAILED_HEADERS: Final = (
    (b"content-type", b"application/json"),
    (b"content-length", b"%d" % len(_FAILED)),
    (b"connection", b"close"),
)


class Connection(Protocol):
    """What an exchange needs of its connection."""

    transport: asyncio.Transport
    flow: FlowControl
    # A future that has a result, for whoever waits for what is done.
    done: "asyncio.Future[None]"

    def default_headers(self) -> list[tuple[bytes, bytes]]:
        """Those of every response."""
        ...

    def on_response_complete(self) -> None:
        """The last byte of the answer was written; nothing more of this exchange will be."""
        ...


class Exchange:
    """A request and its response; the event loop's thread owns it. Is ASGI's `receive`, and knows how far it was read.

    The response's first message is held until the second comes, and leaves with it: one write, one packet, for most.
    """

    __slots__ = (
        "_arrived",
        "_body",
        "_connection",
        "_expects_continue",
        "_has_news",
        "_head",
        "_is_head_sent",
        "_sent_bytes",
        "disconnected",
        "ended",
        "keep_alive",
        "more_body",
        "response_complete",
        "scope",
    )

    def __init__(self, connection: Connection, scope: "Scope", *, expects_continue: bool, keep_alive: bool) -> None:
        """`scope` is ASGI's. With `expects_continue` the client waits for leave to send its body."""
        self._connection = connection
        self.scope = scope
        self._expects_continue = expects_continue
        # Whether the connection outlives the response.
        self.keep_alive = keep_alive
        self.disconnected = False
        # The request: what has come and was not received, whether more will, and whether its end was received.
        self._body: bytes | bytearray = b""
        self.more_body = True
        self.ended = False
        self._has_news = False
        self._arrived: asyncio.Event | None = None  # Of news, once somebody has waited for some.
        # The response.
        self._head: Head | None = None
        self._is_head_sent = False
        self._sent_bytes = 0
        self.response_complete = False

    @property
    def server(self) -> "Exchange":
        """The server's own `receive`: of BodyReceive."""
        return self

    @property
    def held_bytes(self) -> int:
        """Of the request's body: what has come and was not received."""
        return len(self._body)

    def add(self, piece: bytes) -> None:
        """A piece of the request's body came."""
        if not self._body:
            self._body = piece  # Nearly always all of it.
        elif isinstance(self._body, bytearray):
            self._body += piece
        else:
            self._body = bytearray(self._body) + piece
        self._tell()

    def complete(self) -> None:
        """The request's body came to its end."""
        self.more_body = False
        self._tell()

    def disconnect(self) -> None:
        """The client has gone."""
        if not self.response_complete:
            self.disconnected = True
        self._tell()

    def _tell(self) -> None:
        self._has_news = True
        if self._arrived is not None:
            self._arrived.set()

    async def run(self, app: "ASGIApp", ended: "Callable[[asyncio.Task[None] | None], None]") -> None:
        """Let `app` answer, then call `ended` with the task. Without a whole answer the connection is closed."""
        try:
            await app(self.scope, self, self.send)
            if not (self.response_complete or self.disconnected):
                raise RuntimeError("The application returned before its response was complete")
        except BaseException as error:  # The edge: cancellations, too, must end the response.
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
        """ASGI's. What can be sent at once is, before this returns."""
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
            raise RuntimeError(f"{message['type']} came where {expected} should")
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
        self._tell()
        if not self.keep_alive:
            self._connection.transport.close()
        self._connection.on_response_complete()

    async def __call__(self) -> "Message":
        """ASGI's `receive`."""
        if self._expects_continue and not self._connection.transport.is_closing():
            self._expects_continue = False
            self._connection.transport.write(_CONTINUE)
        if not (self.disconnected or self.response_complete):
            self._connection.flow.resume_reading()
            if not self._has_news:
                await self._news()
            self._has_news = False
        if self.disconnected or self.response_complete:
            return {"type": DISCONNECT}
        body, self._body = self._body, b""
        self.ended = not self.more_body
        return {"type": "http.request", "body": bytes(body), "more_body": self.more_body}

    async def _news(self) -> None:
        if self._arrived is None:
            self._arrived = asyncio.Event()
        self._arrived.clear()
        await self._arrived.wait()


def _chunk(body: bytes, *, is_last: bool) -> bytes:
    # RFC 9112, 7.1: an empty one would be the last.
    chunk = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
    return chunk + b"0\r\n\r\n" if is_last else chunk
