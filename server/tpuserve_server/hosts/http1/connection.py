"""HTTP/1.1 on uvicorn's protocol class, with fast paths for short requests, limited headers and no upgrades."""

import asyncio
import json
from collections import deque
from typing import TYPE_CHECKING, Any, Final

import httptools
from uvicorn.config import Config
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from tpuserve_server.hosts.http1.exchange import Exchange
from tpuserve_server.hosts.http1.head import parse_target

if TYPE_CHECKING:
    from starlette.types import Scope

_MAX_HEAD_BYTES = 60 << 10
# The two headers that offer a protocol upgrade (RFC 9110, 7.8). A server may ignore the offer.
_OFFER: Final = (b"connection", b"upgrade")


class Http1Protocol(HttpToolsProtocol):
    """One connection, for `uvicorn.Config`'s `http`. Its event loop's thread owns it.

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
    ) -> None:
        """Create the connection with uvicorn's arguments."""
        super().__init__(config, server_state, app_state, _loop)
        self._in_head = False
        self._head_bytes = 0
        self.done: asyncio.Future[None] = self.loop.create_future()
        self.done.set_result(None)
        self._scope: Scope = {}
        self._newest: Exchange | None = None  # The parser reads its body.
        self._answering: Exchange | None = None  # Older than `_newest` if requests are pipelined.
        self._waiting: deque[Exchange] = deque()
        self._idle_since_s: float | None = None
        self._idle_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        """Prepare the scope that all requests share (asyncio.Protocol)."""
        super().connection_made(transport)
        self._scope = {
            "type": "http",
            "asgi": {"version": self.asgi_version, "spec_version": "2.3"},
            "http_version": "1.1",
            "server": self.server,
            "client": self.client,
            "scheme": self.scheme,
            "root_path": "",
        }

    def connection_lost(self, exc: Exception | None) -> None:
        """Disconnect the current exchange and drop waiting ones (asyncio.Protocol)."""
        self.connections.discard(self)
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        if self._answering is not None:
            self._answering.disconnect()
        self._waiting.clear()
        self._newest = self._answering = None
        self.flow.resume_writing()
        if exc is None:
            self.transport.close()
        self.parser = None  # type: ignore[assignment]  # as in uvicorn

    def shutdown(self) -> None:
        """Close the connection after the last pending response (HttpToolsProtocol)."""
        if self._newest is None or self._newest.response_complete:
            self.transport.close()
        else:
            self._newest.keep_alive = False

    def data_received(self, data: bytes) -> None:
        """Parse received data (asyncio.Protocol)."""
        self._idle_since_s = None
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._decline(data[upgrade.args[0] :])
        except httptools.HttpParserError:
            self.logger.warning("Invalid HTTP request received.")
            self.send_400_response("Invalid HTTP request received.")
        if self._in_head:
            self._bound_head(len(data))

    def on_message_begin(self) -> None:
        """Begin the head of a request (httptools)."""
        self._in_head = True
        self.url = b""
        self.expect_100_continue = False
        self.headers = []

    def on_headers_complete(self) -> None:
        """Create the exchange, and run it unless an older one runs (httptools)."""
        self._in_head, self._head_bytes = False, 0
        parser = self.parser
        if parser.should_upgrade():
            return
        target = parse_target(self.url)
        scope = {**self._scope}
        scope["method"] = parser.get_method().decode("ascii")
        scope["path"], scope["raw_path"], scope["query_string"] = target
        scope["headers"] = self.headers
        keep_alive = parser.should_keep_alive()
        version = parser.get_http_version()
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
        exchange = self._newest
        if exchange is not None and not exchange.response_complete:
            exchange.add(body)
            if exchange.held_bytes > HIGH_WATER_LIMIT:
                self.flow.pause_reading()

    def on_message_complete(self) -> None:
        """Complete the body of the newest exchange (httptools)."""
        exchange = self._newest
        if exchange is not None and not exchange.response_complete and not self.parser.should_upgrade():
            exchange.complete()

    def default_headers(self) -> list[tuple[bytes, bytes]]:
        """Return uvicorn's default headers (Connection)."""
        return self.server_state.default_headers

    def on_response_complete(self) -> None:
        """Run the next waiting exchange, or become idle (Connection)."""
        self.server_state.total_requests += 1
        self._answering = None
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        if self._waiting:
            self._answer(self._waiting.popleft())
        else:
            self._be_idle()

    def _answer(self, exchange: Exchange) -> None:
        self._answering = exchange
        self.tasks.add(self.loop.create_task(exchange.run(self.app, self.tasks.discard)))

    def _be_idle(self) -> None:
        # One timer serves the whole connection. `_close_if_idle` restarts it if a request came meanwhile.
        self._idle_since_s = self.loop.time()
        if self._idle_timer is None:
            self._idle_timer = self.loop.call_later(self.timeout_keep_alive, self._close_if_idle)

    def _close_if_idle(self) -> None:
        self._idle_timer = None
        if self._idle_since_s is None:
            return
        left_s = self._idle_since_s + self.timeout_keep_alive - self.loop.time()
        if left_s <= 0:
            self.transport.close()
        else:
            self._idle_timer = self.loop.call_later(left_s, self._close_if_idle)

    def _decline(self, unread: bytes) -> None:
        method = self.parser.get_method()
        if method == b"CONNECT":
            self.send_400_response("CONNECT is not supported.")
            return
        headers = [b"%b: %b\r\n" % header for header in self.headers if header[0] not in _OFFER]
        self.parser = httptools.HttpRequestParser(self)
        self.data_received(b"%b %b HTTP/1.1\r\n%b\r\n%b" % (method, self.url, b"".join(headers), unread))

    def _bound_head(self, received_bytes: int) -> None:
        """Limit the size of headers, which stay in memory until they are complete.

        The count includes all data that arrives together with a part of the headers.
        """
        self._head_bytes += received_bytes
        if self._head_bytes > _MAX_HEAD_BYTES and not self.transport.is_closing():
            self._refuse(b"431 Request Header Fields Too Large", f"Headers of more than {_MAX_HEAD_BYTES} bytes")

    def send_400_response(self, msg: str) -> None:
        """Send 400 in the error form of the REST application (HttpToolsProtocol)."""
        self._refuse(b"400 Bad Request", msg)

    def _refuse(self, status: bytes, message: str) -> None:
        body = json.dumps({"error": message}).encode()
        head = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close" % len(body)
        self.transport.write(b"HTTP/1.1 %b\r\n%b\r\n\r\n%b" % (status, head, body))
        self.transport.close()
