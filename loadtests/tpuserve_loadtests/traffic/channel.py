"""A gRPC channel for concurrent greenlets, which opens more connections as the server's limits require.

gRPC's own Python client does not support this under gevent: see docs/explanation/decisions.
"""

import ssl
from collections.abc import Mapping
from contextlib import closing
from typing import Final

import gevent.ssl
from gevent import socket
from gevent.event import AsyncResult

from tpuserve_client.request_headers import HOST
from tpuserve_client.tls import Tls
from tpuserve_loadtests.traffic.connection import Connection, GrpcError, NotProcessed
from tpuserve_loadtests.traffic.header_block import encode

HTTP2: Final = "h2"
_UNIX: Final = "unix:"


class Endpoint:
    """An endpoint with the `scheme` and `authority` for request headers."""

    def __init__(self, target: str, tls: Tls | None) -> None:
        """Parse `target`, `host:port` or `unix:/path`. Without `tls`, connections are plaintext.

        Raises InvalidArgument.
        """
        self._target = target
        self._context = None if tls is None else tls.context(gevent.ssl.SSLContext)
        self.scheme = "http"
        self.authority = "localhost" if target.startswith(_UNIX) else target
        if self._context is not None:
            self.scheme = "https"
            self._context.set_alpn_protocols([HTTP2])
        self._host = target.rpartition(":")[0].strip("[]")
        self._name = (tls and tls.server_name) or self._host

    def connect(self, timeout_s: float) -> socket.socket:
        """Return a connected socket without a timeout.

        Raises GrpcError if the connection fails, or takes longer than `timeout_s`.
        """
        try:
            connected = self._secured(self._connected(timeout_s))
        except ssl.SSLCertVerificationError as error:
            raise GrpcError(
                "UNAVAILABLE", f"{self._target}: certificate verification failed: {error.verify_message}"
            ) from None
        except OSError as error:
            raise GrpcError("UNAVAILABLE", f"{self._target}: {error.strerror or error}") from None
        connected.settimeout(None)
        return connected

    def _connected(self, timeout_s: float) -> socket.socket:
        if self._target.startswith(_UNIX):
            connected = socket.socket(socket.AF_UNIX)
            connected.settimeout(timeout_s)
            connected.connect(self._target.removeprefix(_UNIX))
        else:
            port = int(self._target.rpartition(":")[2])
            connected = socket.create_connection((self._host, port), timeout_s)
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connected

    def _secured(self, connected: socket.socket) -> socket.socket:
        if self._context is None:
            return connected
        with closing(connected):  # the wrapped socket replaces it, and a failed handshake leaves it unusable
            secured = self._context.wrap_socket(connected, server_hostname=self._name)
        if secured.selected_alpn_protocol() != HTTP2:
            secured.close()
            raise GrpcError("UNAVAILABLE", f"{self._target}: the server does not offer HTTP/2 over TLS (ALPN)")
        return secured


# Limit for attempts of a request that the server refuses without processing.
_ATTEMPTS: Final = 5
_MOST_IN_TIMEOUT: Final = 10**8


class Channel:
    """Channel that connects on the first call. Belongs to one thread.

    `timeout_s` limits each call and each connection attempt.
    """

    def __init__(
        self, target: str, timeout_s: float, tls: Tls | None = None, headers: Mapping[str, str] | None = None
    ) -> None:
        """Set up a channel to `target`, `host:port` or `unix:/path`. Without `tls`, the channel is plaintext.

        Every call sends `headers`, as the client's `read_headers` returns them. Raises InvalidArgument for files that
        are not certificates.
        """
        self._endpoint = Endpoint(target, tls)
        self._headers = dict(headers or {})
        self._timeout_s = timeout_s
        self._connections: list[Connection] = []
        self._connecting: AsyncResult[None] | None = None
        self._heads: dict[str, bytes] = {}

    def call(self, path: str, message: bytes) -> bytes:
        """Send a message to a method and return the response. Raises GrpcError."""
        head = self._heads.get(path) or self._head(path)
        for _ in range(_ATTEMPTS - 1):
            try:
                return self._connection().call(head, message)
            except NotProcessed:
                continue
        return self._connection().call(head, message)

    def close(self) -> None:
        for connection in self._connections:
            connection.close()
        self._connections.clear()

    def _head(self, path: str) -> bytes:
        """Encode the request headers once, so that headers add no cost to a call."""
        head = self._heads[path] = encode(
            {
                ":method": "POST",
                ":scheme": self._endpoint.scheme,
                ":path": path,
                ":authority": self._headers.get(HOST, self._endpoint.authority),
                "te": "trailers",
                "content-type": "application/grpc",
                "user-agent": "tpuserve-loadtest",
                "grpc-timeout": _timeout(self._timeout_s),
                **{name: value for name, value in self._headers.items() if name != HOST},
            }
        )
        return head

    def _connection(self) -> Connection:
        """Return a connection with room for a call. The caller must start the call without yielding."""
        while True:
            for connection in self._connections:
                if connection.has_room:
                    return connection
            if self._connecting is not None:
                self._connecting.get()
            else:
                self._connect()

    def _connect(self) -> None:
        connecting = self._connecting = AsyncResult()
        try:
            made = Connection(self._endpoint.connect(self._timeout_s), self._timeout_s)
            self._connections = [*(one for one in self._connections if not one.is_over), made]
            connecting.set()
        except GrpcError as error:
            connecting.set_exception(error)
            raise
        finally:
            self._connecting = None
            if not connecting.ready():
                connecting.set_exception(GrpcError("CANCELLED", "the connection attempt was abandoned"))


def _timeout(timeout_s: float) -> str:
    milliseconds = max(round(timeout_s * 1000), 1)
    return f"{milliseconds}m" if milliseconds < _MOST_IN_TIMEOUT else f"{milliseconds // 1000}S"
