"""HTTP/1.1 as uvicorn speaks it, with bounded headers and without offers of other protocols."""

import json
from typing import Final

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

_MAX_HEAD_BYTES = 60 << 10
# The two headers that offer another protocol (RFC 9110, 7.8); a server may ignore them.
_OFFER: Final = (b"connection", b"upgrade")


class Http1Protocol(HttpToolsProtocol):
    """One connection; its event loop's thread owns it. For `uvicorn.Config`'s `http`.

    Java's HttpClient offers HTTP/2 along with a request, body and all. httptools ends the message at such an offer, and
    leaves the body unread: the message is read once more, without the offer.
    """

    _in_head = False
    _head_bytes = 0

    def data_received(self, data: bytes) -> None:
        """Of asyncio.Protocol."""
        self._unset_keepalive_if_required()
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
        """Of httptools."""
        self._in_head = True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Of httptools."""
        self._in_head, self._head_bytes = False, 0
        if not self.parser.should_upgrade():
            super().on_headers_complete()

    def on_message_complete(self) -> None:
        """Of httptools."""
        if not self.parser.should_upgrade():
            super().on_message_complete()

    def _decline(self, unread: bytes) -> None:
        method = self.parser.get_method()
        if method == b"CONNECT":
            self.send_400_response("CONNECT is not supported.")
            return
        headers = [b"%b: %b\r\n" % header for header in self.headers if header[0] not in _OFFER]
        self.parser = httptools.HttpRequestParser(self)
        self.data_received(b"%b %b HTTP/1.1\r\n%b\r\n%b" % (method, self.url, b"".join(headers), unread))

    def _bound_head(self, received_bytes: int) -> None:
        """Headers wait in memory until they are complete; those that come slowly are counted by what they come with."""
        self._head_bytes += received_bytes
        if self._head_bytes > _MAX_HEAD_BYTES and not self.transport.is_closing():
            self._refuse(b"431 Request Header Fields Too Large", f"Headers of more than {_MAX_HEAD_BYTES} bytes")

    def send_400_response(self, msg: str) -> None:
        """Of HttpToolsProtocol: as everything else under REST is refused."""
        self._refuse(b"400 Bad Request", msg)

    def _refuse(self, status: bytes, message: str) -> None:
        body = json.dumps({"error": message}).encode()
        head = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close" % len(body)
        self.transport.write(b"HTTP/1.1 %b\r\n%b\r\n\r\n%b" % (status, head, body))
        self.transport.close()
