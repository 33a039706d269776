"""Transports of a blocking client by endpoint, created at their first use in each process."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from tpuserve_client.endpoint import Endpoint
from tpuserve_client.errors import FailedPrecondition
from tpuserve_client.exchange import AsyncTransport, Transport

# A lookup may remove an endpoint while calls use it. Close its transport after more time than calls usually take.
_UNUSED_LIFETIME_S: Final = 600.0

T = TypeVar("T", Transport, AsyncTransport)


@dataclass(slots=True)
class Used(Generic[T]):
    """A transport, and the time of its last use in the seconds of `time.monotonic`."""

    transport: T
    used_s: float


class Connections:
    """Blocking transports. Safe to share between threads, but not between processes: see `fork.py`."""

    def __init__(self, make: Callable[[Endpoint], Transport]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._used: dict[Endpoint, Used[Transport]] = {}
        self._is_closed = False

    def get(self, endpoint: Endpoint) -> Transport:
        """Return the endpoint's transport. Raises FailedPrecondition after `close`."""
        if (used := self._used.get(endpoint)) is None:
            used = self._add(endpoint)
        used.used_s = time.monotonic()
        return used.transport

    def close(self) -> None:
        """Close all transports. Their calls fail, and later calls raise FailedPrecondition."""
        with self._lock:
            self._is_closed = True
            closing, self._used = self._used, {}
        for used in closing.values():
            used.transport.close()

    def _add(self, endpoint: Endpoint) -> Used[Transport]:
        with self._lock:
            check_open(self._is_closed)
            if (used := self._used.get(endpoint)) is not None:
                return used
            for unused in remove_unused(self._used):
                unused.close()
            self._used[endpoint] = made = Used(self._make(endpoint), time.monotonic())
            return made


def check_open(is_closed: bool) -> None:
    """Raise FailedPrecondition if the client is closed."""
    if is_closed:
        raise FailedPrecondition("The client is closed.")


def remove_unused(used: "dict[Endpoint, Used[T]]") -> list[T]:
    """Remove and return the transports without a call for a long time. The caller closes them."""
    limit_s = time.monotonic() - _UNUSED_LIFETIME_S
    removed = [endpoint for endpoint, one in used.items() if one.used_s < limit_s]
    return [used.pop(endpoint).transport for endpoint in removed]
