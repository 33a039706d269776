"""Channel arguments of the Python host's gRPC server: limits that gRPC's C core does not have by default."""

from typing import Final

from tpuserve_server.hosts.application import HostOptions
from tpuserve_server.hosts.limits import IDLE_CONNECTION_S, MAX_HEADER_BYTES, find_connection_limit

# Calls of one connection, without a limit by default. A call that its client has reset counts until its handler has
# ended (grpc.http.overload_protection), so a rapid reset delays other clients by at most this number of calls. A client
# with more concurrent calls gets UNAVAILABLE for some of them. Load generators use hundreds.
MAX_STREAMS_PER_CONNECTION: Final = 512
# Calls of all connections that wait for the event loop. Between both limits the C core cancels random calls of any
# client (server.cc, RandomEarlyDetection). The defaults are 1000 and 3000: one connection that resets its calls fills
# them. A waiting call takes about 10 KB.
_MAX_WAITING_CALLS: Final = 8192
_MAX_WAITING_CALLS_HARD: Final = 16_384
# grpcio cannot ask clients to move to another server, except by an age of connections that is set at the start. It
# refuses no call in progress.
MAX_AGE: Final = "grpc.max_connection_age_ms"
MAX_AGE_MS: Final = 5000
# Bytes of a call that the C core receives before a handler reads. A pending read adds the size of its message, so large
# messages lose one round trip. By default the C core probes the bandwidth and raises the window to 128 MiB a call.
_CALL_WINDOW_BYTES: Final = 1 << 20
_MAX_METADATA: Final = "grpc.max_metadata_size"
_MAX_METADATA_HARD: Final = "grpc.absolute_max_metadata_size"


def channel_arguments(options: HostOptions) -> dict[str, int | str]:
    """Return the arguments of the server (grpc/impl/channel_arg_names.h). Those of `options` have precedence."""
    given = dict(options.grpc_arguments)
    return {
        "grpc.max_receive_message_length": options.max_message_bytes,
        "grpc.max_send_message_length": -1,
        # By default, a second server on the same port must fail instead of taking every other connection.
        "grpc.so_reuseport": int(options.reuse_port),
        **({MAX_AGE: MAX_AGE_MS} if options.reuse_port else {}),
        "grpc.max_allowed_incoming_connections": find_connection_limit(options),
        "grpc.max_concurrent_streams": MAX_STREAMS_PER_CONNECTION,
        "grpc.http.overload_protection": 1,
        "grpc.server.max_pending_requests": _MAX_WAITING_CALLS,
        "grpc.server.max_pending_requests_hard_limit": _MAX_WAITING_CALLS_HARD,
        "grpc.http2.bdp_probe": 0,
        "grpc.http2.lookahead_bytes": _CALL_WINDOW_BYTES,
        # TLS, and HTTP/2's preface and settings.
        "grpc.server_handshake_timeout_ms": round(options.header_timeout_s * 1000),
        "grpc.max_connection_idle_ms": IDLE_CONNECTION_S * 1000,
        **_metadata_limits(given),
        **given,
    }


def _metadata_limits(given: dict[str, int | str]) -> dict[str, int | str]:
    """Return equal limits, because between both the C core refuses random requests. It derives one from the other."""
    if _MAX_METADATA in given or _MAX_METADATA_HARD in given:
        return {}
    return {_MAX_METADATA: MAX_HEADER_BYTES, _MAX_METADATA_HARD: MAX_HEADER_BYTES}
