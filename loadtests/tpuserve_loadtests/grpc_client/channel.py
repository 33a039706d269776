"""A gRPC channel for concurrent greenlets, which opens more connections as the server's limits require.

gRPC's own Python client does not support this under gevent: see docs/explanation/decisions.
"""

from collections.abc import Mapping
from typing import Final

from gevent.event import AsyncResult

from tpuserve_client.request_headers import HOST
from tpuserve_client.tls import Tls
from tpuserve_loadtests.grpc_client.connection import Connection
from tpuserve_loadtests.grpc_client.endpoint import Endpoint
from tpuserve_loadtests.grpc_client.header_block import encode
from tpuserve_loadtests.grpc_client.status import GrpcError, NotProcessed

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
        """End all calls and connections."""
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
        """Open a connection. Other callers wait for it meanwhile, and fail if it fails."""
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
    """Format the timeout as gRPC requires, with at most eight digits."""
    milliseconds = max(round(timeout_s * 1000), 1)
    return f"{milliseconds}m" if milliseconds < _MOST_IN_TIMEOUT else f"{milliseconds // 1000}S"
