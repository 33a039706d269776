"""A gRPC channel for concurrent greenlets, which opens more connections as the server's limits require.

gRPC's own Python client does not support this under gevent: see docs/explanation/decisions.
"""

import math
import ssl
from collections.abc import Mapping
from contextlib import closing, suppress
from functools import lru_cache
from types import MappingProxyType
from typing import Final

import gevent
import gevent.ssl
from gevent import socket
from gevent.event import AsyncResult

from tpuserve_client.request_headers import HOST
from tpuserve_client.tls import Tls
from tpuserve_loadtests.measurement.recorder import Delivery
from tpuserve_loadtests.traffic.connection import Connection, GrpcError, NotProcessed
from tpuserve_loadtests.traffic.header_block import encode

HTTP2: Final = "h2"
_UNIX: Final = "unix:"


class Endpoint:
    """An endpoint with the `scheme` and `authority` for request headers."""

    def __init__(self, target: str, tls: Tls | None, address: str = "") -> None:
        """Parse `target`, `host:port` or `unix:/path`. Without `tls`, connections are plaintext.

        Connections go to `address`, one of the host's IP addresses, or to any that accepts one. Raises InvalidArgument.
        """
        self._target = target
        self._context = None if tls is None else tls.context(gevent.ssl.SSLContext)
        self.scheme = "http"
        self.authority = "localhost" if target.startswith(_UNIX) else target
        if self._context is not None:
            self.scheme = "https"
            self._context.set_alpn_protocols([HTTP2])
        host = target.rpartition(":")[0].strip("[]")
        self._address = address or host
        self._name = (tls and tls.server_name) or host

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
            connected = socket.create_connection((self._address, port), timeout_s)
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


_MOST_IN_TIMEOUT: Final = 10**8
# Calls of a scenario may each have another timeout.
_MOST_HEADS: Final = 1000
_NO_HEADERS: Final[Mapping[str, str]] = MappingProxyType({})


class Channel:
    """Channel that connects on the first call. Belongs to one thread.

    `timeout_s` limits each call and each connection attempt.
    """

    def __init__(
        self,
        target: str,
        timeout_s: float,
        tls: Tls | None = None,
        headers: Mapping[str, str] | None = None,
        address: str = "",
    ) -> None:
        """Set up a channel to `target`, `host:port` or `unix:/path`. Without `tls`, the channel is plaintext.

        Every call sends `headers`, as the client's `read_headers` returns them. `address` is as in Endpoint. Raises
        InvalidArgument for files that are not certificates.
        """
        self._endpoint = Endpoint(target, tls, address)
        self._headers = dict(headers or {})
        self._timeout_s = timeout_s
        self._connections: list[Connection] = []
        self._connecting: AsyncResult[None] | None = None
        # Headers are encoded once, so that they add no cost to a call without its own headers.
        self._head = lru_cache(_MOST_HEADS)(self._encoded)

    def call(
        self,
        path: str,
        message: bytes,
        headers: Mapping[str, str] = _NO_HEADERS,
        timeout_s: float = math.inf,
        delivery: Delivery | None = None,
    ) -> bytes:
        """Send a message to a method and return the response. Raises GrpcError.

        `headers` are sent in addition to the channel's. A `timeout_s` shorter than the channel's replaces it. The
        channel counts a retry in `delivery`.
        """
        delivery, limit_s = delivery or Delivery(), min(timeout_s, self._timeout_s)
        head = self._encoded(path, limit_s, headers) if headers else self._head(path, limit_s)
        if limit_s == self._timeout_s:
            return self._call(head, message, delivery)
        expired = GrpcError("DEADLINE_EXCEEDED", f"no response within {timeout_s:.3g} s")
        with gevent.Timeout(max(timeout_s, 0), expired):
            return self._call(head, message, delivery)

    def _call(self, head: bytes, message: bytes, delivery: Delivery) -> bytes:
        """Send a request, and once more if the server refused it unprocessed: gRPC's transparent retry.

        https://github.com/grpc/proposal/blob/master/A6-client-retries.md
        """
        try:
            return self._connection().call(head, message)
        except NotProcessed:
            delivery.retries += 1
        return self._connection().call(head, message)

    def open(self) -> None:
        """Open the first connection before a call needs it. If that fails, the call reports it."""
        with suppress(GrpcError):
            self._connection()

    def close(self) -> None:
        for connection in self._connections:
            connection.close()
        self._connections.clear()

    def _encoded(self, path: str, timeout_s: float, headers: Mapping[str, str] = _NO_HEADERS) -> bytes:
        return encode(
            {
                ":method": "POST",
                ":scheme": self._endpoint.scheme,
                ":path": path,
                ":authority": self._headers.get(HOST, self._endpoint.authority),
                "te": "trailers",
                "content-type": "application/grpc",
                "user-agent": "tpuserve-loadtest",
                "grpc-timeout": _timeout(timeout_s),
                **{name: value for name, value in {**self._headers, **headers}.items() if name != HOST},
            }
        )

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
