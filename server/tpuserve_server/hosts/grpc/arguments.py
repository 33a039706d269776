"""Translates gRPC's channel arguments (--grpc_channel_arguments) to their equivalents in Envoy's configuration."""

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from tpuserve_server.hosts.errors import HostError

GrpcArguments: TypeAlias = Sequence[tuple[str, int | str]]

# gRPC's default, for a configuration that sets only the ping interval.
_KEEPALIVE_TIMEOUT_MS = 20_000
# Envoy's upper limit.
_MAX_HEADERS_KIB = 8192


def unknown_to_envoy(arguments: GrpcArguments) -> list[str]:
    """Return the names of arguments that have no effect on the Envoy host, in their order."""
    return [name for name, _ in arguments if name not in _APPLY]


def apply_to_manager(arguments: GrpcArguments, manager: dict[str, Any]) -> None:
    """Apply the arguments to the configuration of an HTTP connection manager. Raises HostError for an invalid value."""
    for name, value in arguments:
        if name not in _APPLY:
            continue
        if not isinstance(value, int) or value <= 0:
            raise HostError(f"--grpc_channel_arguments: {name} expects a positive number, got {value!r}.")
        _APPLY[name](manager, value)


def _streams(manager: dict[str, Any], value: int) -> None:
    manager["http2_protocol_options"]["max_concurrent_streams"] = value


def _age(manager: dict[str, Any], value: int) -> None:
    manager["common_http_protocol_options"]["max_connection_duration"] = _seconds(value)


def _idle(manager: dict[str, Any], value: int) -> None:
    manager["common_http_protocol_options"]["idle_timeout"] = _seconds(value)


def _ping(manager: dict[str, Any], value: int) -> None:
    _keepalive(manager)["interval"] = _seconds(value)


def _ping_timeout(manager: dict[str, Any], value: int) -> None:
    _keepalive(manager)["timeout"] = _seconds(value)


def _keepalive(manager: dict[str, Any]) -> dict[str, Any]:
    default = {"timeout": _seconds(_KEEPALIVE_TIMEOUT_MS)}
    keepalive: dict[str, Any] = manager["http2_protocol_options"].setdefault("connection_keepalive", default)
    return keepalive


def _metadata(manager: dict[str, Any], value: int) -> None:
    manager["max_request_headers_kb"] = min(math.ceil(value / 1024), _MAX_HEADERS_KIB)


def _seconds(milliseconds: int) -> str:
    return f"{milliseconds / 1000:.3f}s"


_APPLY: dict[str, Callable[[dict[str, Any], int], None]] = {
    "grpc.max_concurrent_streams": _streams,
    "grpc.max_connection_age_ms": _age,
    "grpc.max_connection_idle_ms": _idle,
    "grpc.keepalive_time_ms": _ping,
    "grpc.keepalive_timeout_ms": _ping_timeout,
    "grpc.max_metadata_size": _metadata,
}
