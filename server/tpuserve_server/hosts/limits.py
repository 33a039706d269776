"""Limits of the host, and gRPC's channel arguments (--grpc_channel_arguments) that change some of them.

Light imports only: the supervisor imports this module, too.
"""

import resource
from collections.abc import Sequence
from typing import Final, TypeAlias

from tpuserve_server.hosts.application import HostError, HostOptions

# File descriptors that stay free for the files and threads of models.
_RESERVED_FILES: Final = 256
# Generations of the HTTP server that have connections at the same time.
_GENERATIONS: Final = 2
# Names and values of the headers of one request. Metadata is small.
MAX_HEADER_BYTES: Final = 60 << 10
MAX_HEADERS_COUNT: Final = 100
# A client process usually shares one connection among all its calls. Beyond this limit, its library makes calls wait.
# Load generators and proxies use hundreds of streams.
MAX_STREAMS_PER_CONNECTION: Final = 1024
# Time for a whole request: long enough for 64 MiB on a slow line. No timeout limits the response: a health watch stays
# open, and a first call may wait for compilation.
REQUEST_TIMEOUT_S: Final = 300
# Timeout of an idle connection. Clients should close it themselves: when the server closes, a request may be on its
# way.
IDLE_CONNECTION_S: Final = 3600
# Bytes that the system takes for a TCP connection ahead of those that it sends (TCP_NOTSENT_LOWAT), so that the server
# sees that a slow client reads. By default the system takes megabytes, and takes more when it has sent a third.
UNSENT_BYTES: Final = 1 << 17
# Time in which a client takes nothing of its response, after which a drain does not wait for it any longer.
DRAIN_UNREAD_S: Final = 5.0
# Complete responses up to this size are sent at once, and not charged.
SMALL_BYTES: Final = 1 << 14
# A part that the server gets at once.
PART_BYTES: Final = 1 << 16
# Bytes of a response that the server takes although the client takes none: 32 parts over HTTP/1.1, 2 MiB over HTTP/2.
TAKEN_AHEAD_BYTES: Final = 32 * PART_BYTES


def raise_file_limit(options: HostOptions) -> None:
    """Let this process open as many files as its connections need, if the system allows that."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = _RESERVED_FILES + _GENERATIONS * options.max_connections
    if soft != resource.RLIM_INFINITY and soft < needed:
        most = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, most), hard))


def find_connection_limit(options: HostOptions) -> int:
    """Return the connections that a generation of the HTTP server accepts. Each takes a file descriptor."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return options.max_connections
    return max(1, min(options.max_connections, (soft - _RESERVED_FILES) // _GENERATIONS))


GrpcArguments: TypeAlias = Sequence[tuple[str, int | str]]

STREAMS: Final = "grpc.max_concurrent_streams"
AGE_MS: Final = "grpc.max_connection_age_ms"
IDLE_MS: Final = "grpc.max_connection_idle_ms"
# TCP's keepalive takes the place of HTTP/2's pings.
KEEPALIVE_MS: Final = "grpc.keepalive_time_ms"
KEEPALIVE_TIMEOUT_MS: Final = "grpc.keepalive_timeout_ms"
_KNOWN: Final = (STREAMS, AGE_MS, IDLE_MS, KEEPALIVE_MS, KEEPALIVE_TIMEOUT_MS)


def known_arguments(arguments: GrpcArguments) -> dict[str, int]:
    """Return the arguments that have an effect.

    Raises:
        HostError: a value is not a positive number.
    """
    found: dict[str, int] = {}
    for name, value in arguments:
        if name in _KNOWN:
            if not isinstance(value, int) or value <= 0:
                raise HostError(f"--grpc_channel_arguments: {name} expects a positive number, got {value!r}.")
            found[name] = value
    return found


def unknown_arguments(arguments: GrpcArguments) -> list[str]:
    """Return the names of the other arguments, in their order."""
    return [name for name, _ in arguments if name not in _KNOWN]
