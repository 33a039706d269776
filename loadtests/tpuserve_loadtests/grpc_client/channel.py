"""What calls a gRPC server from any number of greenlets at once, over as many connections as its limits ask for.

gRPC's own Python client cannot do that under gevent: see docs/decisions.
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

# A server that refuses a request again and again without looking at it is not asked for ever.
_ATTEMPTS: Final = 5
_MOST_IN_TIMEOUT: Final = 10**8


class Channel:
    """Connects when it is called. Belongs to one thread. Every call may take `timeout_s`, as may a connection."""

    def __init__(
        self, target: str, timeout_s: float, tls: Tls | None = None, headers: Mapping[str, str] | None = None
    ) -> None:
        """`target`: `host:port` or `unix:/path`; without `tls` in the clear.

        `headers`, as the client's `read_headers` gives them, go with every call. Raises InvalidArgument for files that
        are no certificates.
        """
        self._endpoint = Endpoint(target, tls)
        self._headers = dict(headers or {})
        self._timeout_s = timeout_s
        self._connections: list[Connection] = []
        self._connecting: AsyncResult[None] | None = None
        self._heads: dict[str, bytes] = {}

    def call(self, path: str, message: bytes) -> bytes:
        """Send a message to a method and wait for its answer. GrpcError."""
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
        """Made once: a call costs the same with headers and without."""
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
        """One that has room for a call, which must begin at once."""
        while True:
            for connection in self._connections:
                if connection.has_room:
                    return connection
            if self._connecting is not None:
                self._connecting.get()
            else:
                self._connect()

    def _connect(self) -> None:
        """One more; whoever needs one meanwhile waits for it, and fails with it."""
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
                connecting.set_exception(GrpcError("CANCELLED", "the connection was given up"))


def _timeout(timeout_s: float) -> str:
    """As gRPC writes it: eight digits at most."""
    milliseconds = max(round(timeout_s * 1000), 1)
    return f"{milliseconds}m" if milliseconds < _MOST_IN_TIMEOUT else f"{milliseconds // 1000}S"
