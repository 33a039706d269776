"""HTTP/1.1 on uvicorn's protocol class, with fast paths for short requests, limits and no upgrades."""

import asyncio
import json
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import httptools
from uvicorn.config import Config
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from tpuserve_server.hosts.http1.exchange import Exchange
from tpuserve_server.hosts.http1.head import MalformedHead, check_head, parse_target
from tpuserve_server.hosts.http1.limits import Http1Limits
from tpuserve_server.hosts.http1.timers import LazyTimer, UnsentWatch
from tpuserve_server.hosts.peer_certificate import names_of_peer
from tpuserve_server.identity.certificate import CERTIFICATE_KEY

if TYPE_CHECKING:
    from starlette.types import Scope

# The two headers that offer a protocol upgrade (RFC 9110, 7.8). A server may ignore the offer.
_OFFER: Final = (b"connection", b"upgrade")
# Received data is parsed in pieces, because the parser cannot pause: a piece bounds the requests that wait.
_PIECE_BYTES: Final = 1 << 14
_BODY_PIECE_BYTES: Final = 1 << 16
# Unparsed data beyond which the server does not read on to learn that the client has disconnected.
_MAX_HELD_BYTES: Final = 1 << 18
# After a refusal the server reads on within these limits: closing with unread data would reset the connection, and the
# client would lose the response (RFC 9112, 9.6).
_LINGER_S: Final = 2.0
_MAX_LINGER_BYTES: Final = 1 << 20
_INVALID: Final = "Invalid HTTP request received."


class _LongHead(Exception):
    """The headers or trailers of a request are over a limit."""


class Http1Protocol(HttpToolsProtocol):
    """One connection, for uvicorn. Its event loop's thread owns it.

    `Exchange` replaces uvicorn's request-response cycle, whose generality costs 10 us for each request. The class
    ignores the uvicorn options that python.py does not set.

    Java's HttpClient offers HTTP/2 in requests, even in those with a body. httptools ends the message at such an offer
    and leaves the body unread. The class therefore parses the message again, without the offer.
    """

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        limits: Http1Limits | None = None,
    ) -> None:
        """Create the connection with uvicorn's arguments and `limits`, or the default ones."""
        super().__init__(config, server_state, app_state, _loop)
        self._limits = limits or Http1Limits()
        self.done: asyncio.Future[None] = self.loop.create_future()
        self.done.set_result(None)
        self._scope: Scope = {}
        # The parser's position: within a message, within its headers, after the first byte of its body.
        self._in_message = self._in_head = self._in_body = False
        self._messages = 0
        self._progressed = False
        self._head_bytes = 0
        self._newest: Exchange | None = None  # The parser reads its body.
        self._answering: Exchange | None = None  # Older than `_newest` if requests are pipelined.
        self._waiting: deque[Exchange] = deque()
        self._held = b""  # Data to parse once no exchange waits.
        self._refusal: bytes | None = None  # The last response. The server parses nothing more.
        self._is_lingering = False
        self._lingered_bytes = 0
        self._timer = LazyTimer(self.loop)
        self._timed = 0  # What the timer limits: the number of the message, and whether it is in its headers.
        self._message_since_s = 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        """Prepare the scope that all requests share (asyncio.Protocol). Close connections over the limit."""
        super().connection_made(transport)
        self._unsent = UnsentWatch(transport, LazyTimer(self.loop), self._limits.unsent_s)
        if len(self.connections) > self._limits.connections:
            transport.close()
            return
        self._scope = {
            "type": "http",
            "asgi": {"version": self.asgi_version, "spec_version": "2.3"},
            "http_version": "1.1",
            "server": self.server,
            "client": self.client,
            "scheme": self.scheme,
            "root_path": "",
        }
        if certificate := transport.get_extra_info("peercert"):
            self._scope[CERTIFICATE_KEY] = partial(names_of_peer, certificate)
        self._be_idle()

    def connection_lost(self, exc: Exception | None) -> None:
        """Disconnect the current exchange and drop waiting ones (asyncio.Protocol)."""
        self.connections.discard(self)
        self._timer.close()
        self._unsent.close()
        if self._answering is not None:
            self._answering.disconnect()
        self._waiting.clear()
        self._held = b""
        self._newest = self._answering = None
        self.flow.resume_writing()
        if exc is None:
            self.transport.close()
        self.parser = None  # type: ignore[assignment]  # as in uvicorn

    def shutdown(self) -> None:
        """Close the connection after the last pending response, if its client reads (HttpToolsProtocol)."""
        self._unsent.hurry(self._limits.drain_unsent_s)
        if self._newest is None or self._newest.response_complete:
            self.transport.close()
        else:
            self._newest.keep_alive = False

    def pause_writing(self) -> None:
        """Make senders wait, and watch that the client reads (asyncio.Protocol)."""
        super().pause_writing()
        self._unsent.start()

    def resume_writing(self) -> None:
        """Let senders continue (asyncio.Protocol)."""
        super().resume_writing()
        if not self.transport.is_closing():
            self._unsent.stop()

    def data_received(self, data: bytes) -> None:
        """Parse received data, or hold it while older requests wait (asyncio.Protocol)."""
        if self._refusal is not None:
            self._discard(len(data))
        elif self._held or self._waiting:
            self.flow.pause_reading()
            self._held += data
        elif len(data) <= _PIECE_BYTES:
            self._parse_piece(data)
            self._limit_time()
        else:
            self._parse(data)

    def want_data(self) -> None:
        """Read on, unless the client has sent many requests ahead (Connection)."""
        if len(self._held) <= _MAX_HELD_BYTES:
            self.flow.resume_reading()

    def on_message_begin(self) -> None:
        """Begin the head of a request (httptools)."""
        self._in_message = self._in_head = True
        self._in_body = False
        self._messages += 1
        self.url = b""
        self.expect_100_continue = False
        self.headers = []
        self._fields = 0

    def on_header(self, name: bytes, value: bytes) -> None:
        """Add a header, and ignore a trailer (httptools)."""
        if self._fields >= self._limits.headers:
            raise _LongHead(f"More than {self._limits.headers} headers")
        self._fields += 1
        if not self._in_head:
            return  # A trailer must not pass for a header, which a proxy may have removed from the head.
        name = name.lower()
        if name == b"expect" and value.lower() == b"100-continue":
            self.expect_100_continue = True
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        """Create the exchange, and run it unless an older one runs (httptools)."""
        parser = self.parser
        if parser.should_upgrade():
            return
        if self._head_bytes:
            self._check_size()
        version = parser.get_http_version()
        check_head(version, self.url, self.headers)
        self._in_head = False
        target = parse_target(self.url)
        scope = {**self._scope}
        scope["method"] = parser.get_method().decode("ascii")
        scope["path"], scope["raw_path"], scope["query_string"] = target
        scope["headers"] = self.headers
        keep_alive = parser.should_keep_alive()
        if version != "1.1":
            scope["http_version"] = version
            keep_alive = keep_alive and version != "1.0"
        exchange = Exchange(self, scope, expects_continue=self.expect_100_continue, keep_alive=keep_alive)
        self._newest = exchange
        if self._answering is None:
            self._answer(exchange)
        else:
            self.flow.pause_reading()
            self._waiting.append(exchange)

    def on_body(self, body: bytes) -> None:
        """Add a piece of the body to the newest exchange (httptools)."""
        self._progressed = self._in_body = True
        exchange = self._newest
        if exchange is not None and not exchange.response_complete:
            exchange.add(body)
            if exchange.held_bytes > HIGH_WATER_LIMIT:
                self.flow.pause_reading()

    def on_message_complete(self) -> None:
        """Complete the body of the newest exchange (httptools)."""
        if self.parser.should_upgrade():
            return
        self._in_message = False
        exchange = self._newest
        if exchange is not None and not exchange.response_complete:
            exchange.complete()

    def default_headers(self) -> list[tuple[bytes, bytes]]:
        """Return uvicorn's default headers (Connection)."""
        return self.server_state.default_headers

    def on_response_complete(self) -> None:
        """Run the next waiting exchange, or become idle (Connection)."""
        self.server_state.total_requests += 1
        self._answering = None
        if self.transport.is_closing():
            self._unsent.start()
            return
        if self._waiting:
            self._answer(self._waiting.popleft())
        if self._waiting:
            return
        if self._held:
            data, self._held = self._held, b""
            self._parse(data)
        if not (self._held or self._waiting):
            self.flow.resume_reading()
        if self._answering is None:
            self._after_last_response()

    def _after_last_response(self) -> None:
        if self._refusal is not None:
            self._send_refusal(self._refusal)
        elif not self._in_head:
            self._be_idle()

    def _answer(self, exchange: Exchange) -> None:
        self._answering = exchange
        self.tasks.add(self.loop.create_task(exchange.run(self.app, self.tasks.discard)))

    def _parse(self, data: bytes) -> None:
        """Parse `data` in pieces. Hold the rest as soon as an exchange waits."""
        at, view = 0, memoryview(data)
        while at < len(data) and self._refusal is None and not self.transport.is_closing():
            if self._waiting:
                self._held = data[at:]
                break
            size = _BODY_PIECE_BYTES if self._in_body else _PIECE_BYTES
            self._parse_piece(view[at : at + size])
            at += size
        self._limit_time()

    def _parse_piece(self, data: bytes | memoryview) -> None:
        self._progressed = False
        current = self._messages if self._in_message else self._messages + 1
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._decline(bytes(data[upgrade.args[0] :]))
            return
        except httptools.HttpParserError as error:
            cause = error.__context__
            if isinstance(cause, _LongHead):
                self._refuse_head(str(cause))
            else:
                self.logger.warning(_INVALID)
                self.send_400_response(str(cause) if isinstance(cause, MalformedHead) else _INVALID)
            return
        if self._in_message:
            # The parser keeps incomplete headers and trailers in memory. The piece in which they begin may not count.
            is_begun = self._messages == current and not self._progressed
            self._head_bytes = self._head_bytes + len(data) if is_begun else 0
            if self._head_bytes > self._limits.head_bytes:
                self._refuse_head(f"Headers of more than {self._limits.head_bytes} bytes")
        else:
            self._head_bytes = 0

    def _check_size(self) -> None:
        """Raise _LongHead if the complete head, which came in several pieces, is over the limit."""
        size_bytes = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
        if size_bytes > self._limits.head_bytes:
            raise _LongHead(f"Headers of more than {self._limits.head_bytes} bytes")

    def _limit_time(self) -> None:
        """Start the timer when a message or its body begins, and stop it when the message is complete."""
        newest = self._newest
        if self._refusal is not None:
            return
        if not self._in_message:
            if self._answering is None:
                self._be_idle()
            else:
                self._timer.stop()
        elif self._in_head:
            if self._timed != 2 * self._messages:
                self._timed = 2 * self._messages
                self._timer.start(self._limits.head_s, self._end_late_head)
        elif newest is not None and not newest.response_complete and self._timed != 2 * self._messages + 1:
            self._timed = 2 * self._messages + 1
            self._message_since_s = self.loop.time()
            self._timer.start(self._limits.body_start_s, self._end_late_body)

    def _end_late_head(self) -> None:
        if self.flow.read_paused:  # The server is late, not the client.
            self._timer.start(self._limits.head_s, self._end_late_head)
        else:
            self._refuse(b"408 Request Timeout", f"The headers took more than {self._limits.head_s:g} seconds")

    def _end_late_body(self) -> None:
        left_s = self._message_since_s + self._limits.request_s - self.loop.time()
        if left_s <= 0:
            self._refuse(b"408 Request Timeout", f"The body took more than {self._limits.request_s:g} seconds")
        elif self._in_body or self.flow.read_paused:
            self._timer.start(left_s, self._end_late_body)
        else:
            self._refuse(b"408 Request Timeout", f"No body came within {self._limits.body_start_s:g} seconds")

    def _be_idle(self) -> None:
        self._timer.start(self.timeout_keep_alive, self._close)

    def _close(self) -> None:
        self.transport.close()
        self._unsent.start()

    def _decline(self, unread: bytes) -> None:
        method = self.parser.get_method()
        if method == b"CONNECT":
            self.send_400_response("CONNECT is not supported.")
            return
        headers = [b"%b: %b\r\n" % header for header in self.headers if header[0] not in _OFFER]
        self.parser = httptools.HttpRequestParser(self)
        self._parse(b"%b %b HTTP/1.1\r\n%b\r\n%b" % (method, self.url, b"".join(headers), unread))

    def send_400_response(self, msg: str) -> None:
        """Send 400 in the error form of the REST application (HttpToolsProtocol)."""
        self._refuse(b"400 Bad Request", msg)

    def _refuse_head(self, message: str) -> None:
        self._refuse(b"431 Request Header Fields Too Large", message)

    def _refuse(self, status: bytes, message: str) -> None:
        """Answer what the client has just sent, after the responses to its complete requests, and close."""
        body = json.dumps({"error": message}).encode()
        head = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close" % len(body)
        self._refusal = b"HTTP/1.1 %b\r\n%b\r\n\r\n%b" % (status, head, body)
        self._held = b""
        self._timer.stop()
        incomplete = self._newest
        if incomplete is not None and self._in_message and not (self._in_head or incomplete.response_complete):
            if self._waiting:
                self._waiting.pop()
            elif incomplete.has_begun:
                self.transport.close()
                return
            else:
                incomplete.disconnect()
                self._answering = None
        if self._answering is None:
            self._send_refusal(self._refusal)

    def _send_refusal(self, refusal: bytes) -> None:
        if self._is_lingering:
            return
        self._is_lingering = True
        self.transport.write(refusal)
        if self.transport.can_write_eof():
            self.transport.write_eof()
            self.flow.resume_reading()
            self._timer.start(_LINGER_S, self._close)
        else:
            self._close()

    def _discard(self, size_bytes: int) -> None:
        self._lingered_bytes += size_bytes
        if self._answering is not None:
            self.flow.pause_reading()
        elif self._lingered_bytes > _MAX_LINGER_BYTES:
            self._close()
