"""Server endpoint, which opens connections: plaintext, or TLS with negotiated HTTP/2."""

import ssl
from contextlib import closing
from typing import Final

import gevent.ssl
from gevent import socket

from tpuserve_client.tls import Tls
from tpuserve_loadtests.grpc_client.status import GrpcError

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
