"""Http1Limits: sizes and times of a connection over HTTP/1.1. A client beyond one of them loses its connection."""

from dataclasses import dataclass

from tpuserve_server.core.budgets.receiving import IDLE_TIMEOUT_S
from tpuserve_server.hosts.application import HostOptions
from tpuserve_server.hosts.limits import DRAIN_UNREAD_S, MAX_HEADER_BYTES, MAX_HEADERS_COUNT, REQUEST_TIMEOUT_S


@dataclass(frozen=True, slots=True)
class Http1Limits:
    """Limits of the server's connections."""

    connections: int = HostOptions().max_connections
    # Request target, names and values of one request. Also the bytes of trailers, and of a chunk's extensions.
    head_bytes: int = MAX_HEADER_BYTES
    # Headers and trailers of one request.
    headers: int = MAX_HEADERS_COUNT
    # Time for the headers, from their first byte.
    head_s: float = 10.0
    # Time from the headers to the first byte of the body. ReceivingBudget limits later pauses.
    body_start_s: float = IDLE_TIMEOUT_S
    # Time from the headers to the end of the body.
    request_s: float = REQUEST_TIMEOUT_S
    # Time in which the client takes no byte of a response that does not fit the system's buffer.
    unsent_s: float = 30.0
    # The same after `Http1Protocol.shutdown`.
    drain_unsent_s: float = DRAIN_UNREAD_S
