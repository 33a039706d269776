"""Limits of a client's connections, and the check of its timeouts."""

import math
from dataclasses import dataclass
from numbers import Real
from typing import Final

from tpuserve_client.errors import InvalidArgument
from tpuserve_client.names import shown

# 30 years. Sockets and gRPC refuse longer waits.
_LONGEST_TIMEOUT_S: Final = 1e9


@dataclass(frozen=True, slots=True)
class Pool:
    """Limits of a client's connections to one server.

    REST opens at most `max_connections`; further calls wait for a connection, first come, first served. It closes a
    connection that was idle for `idle_timeout_s` seconds. gRPC sends all calls over one connection.

    gRPC sends a ping after `keepalive_s` seconds without data while calls are pending (None: never), and drops the
    connection if a ping or sent data is not acknowledged within `keepalive_timeout_s` seconds. Servers close
    connections that send more pings than they allow: by default, one in 300 seconds.

    Raises InvalidArgument for numbers out of range.
    """

    max_connections: int = 100
    idle_timeout_s: float = 5.0
    keepalive_s: float | None = 300.0
    keepalive_timeout_s: float = 10.0

    def __post_init__(self) -> None:
        count: object = self.max_connections
        if not isinstance(count, int) or isinstance(count, bool) or count < 1:
            raise InvalidArgument(f"max_connections must be an integer of at least 1, not {shown(count)}.")
        for name in ("idle_timeout_s", "keepalive_s", "keepalive_timeout_s"):
            seconds = checked_timeout(getattr(self, name), name)
            if seconds is None and name == "keepalive_s":
                continue
            if seconds is None or seconds <= 0:
                raise InvalidArgument(f"{name} must be a positive number of seconds, not {shown(seconds)}.")


def checked_timeout(value: object, name: str = "timeout_s") -> float | None:
    """Return a timeout in seconds as a float, or None for no limit. Raises InvalidArgument for other values."""
    if value is None:
        return None
    seconds = as_number(value)
    if math.isnan(seconds):
        raise InvalidArgument(f"{name} must be a number of seconds, or None for no limit, not {shown(value)}.")
    if abs(seconds) > _LONGEST_TIMEOUT_S:
        limit = f"{_LONGEST_TIMEOUT_S:,.0f} seconds"
        raise InvalidArgument(f"{name} must be at most {limit}, or None for no limit, not {shown(value)}.")
    return seconds


def as_number(value: object) -> float:
    """Return a real number of Python or numpy as a float. Return NaN for any other value, also for a bool."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return math.nan
    try:
        return float(value)
    except OverflowError:
        return math.inf
