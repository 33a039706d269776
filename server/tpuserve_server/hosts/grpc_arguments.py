"""gRPC's channel arguments (--grpc_channel_arguments) that have an effect. Light imports only, for the supervisor."""

from collections.abc import Sequence
from typing import Final, TypeAlias

from tpuserve_server.hosts.errors import HostError

GrpcArguments: TypeAlias = Sequence[tuple[str, int | str]]

STREAMS: Final = "grpc.max_concurrent_streams"
AGE_MS: Final = "grpc.max_connection_age_ms"
IDLE_MS: Final = "grpc.max_connection_idle_ms"
# TCP's keepalive takes the place of HTTP/2's pings.
KEEPALIVE_MS: Final = "grpc.keepalive_time_ms"
KEEPALIVE_TIMEOUT_MS: Final = "grpc.keepalive_timeout_ms"
_KNOWN: Final = (STREAMS, AGE_MS, IDLE_MS, KEEPALIVE_MS, KEEPALIVE_TIMEOUT_MS)


def numbers(arguments: GrpcArguments) -> dict[str, int]:
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


def unknown(arguments: GrpcArguments) -> list[str]:
    """Return the names of the other arguments, in their order."""
    return [name for name, _ in arguments if name not in _KNOWN]
