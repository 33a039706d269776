"""Transports of a client by endpoint, created at their first use: in each process, and on each event loop."""

import asyncio
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar
from weakref import WeakKeyDictionary

from tpuserve_client.endpoint import Endpoint
from tpuserve_client.errors import FailedPrecondition
from tpuserve_client.exchange import AsyncTransport, Transport

# A lookup may remove an endpoint while calls use it. Close its transport after more time than calls usually take.
_UNUSED_LIFETIME_S: Final = 600.0

T = TypeVar("T", Transport, AsyncTransport)


@dataclass(slots=True)
class _Used(Generic[T]):
    transport: T
    used_s: float


class Connections:
    """Blocking transports. Safe to share between threads, but not between processes: see `fork.py`."""

    def __init__(self, make: Callable[[Endpoint], Transport]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._used: dict[Endpoint, _Used[Transport]] = {}
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

    def _add(self, endpoint: Endpoint) -> _Used[Transport]:
        with self._lock:
            _check_open(self._is_closed)
            if (used := self._used.get(endpoint)) is not None:
                return used
            for unused in _remove_unused(self._used):
                unused.close()
            self._used[endpoint] = made = _Used(self._make(endpoint), time.monotonic())
            return made


class AsyncConnections:
    """Asyncio transports, separate for each event loop. Safe to share between threads, each with its own loop."""

    def __init__(self, make: Callable[[Endpoint], AsyncTransport]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._by_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[Endpoint, _Used[AsyncTransport]]]
        self._by_loop = WeakKeyDictionary()
        self._is_closed = False

    def find(self, endpoint: Endpoint) -> AsyncTransport | None:
        """Return the endpoint's transport on the running loop, or None before its first use."""
        of_loop = self._by_loop.get(asyncio.get_running_loop())
        if of_loop is None or (used := of_loop.get(endpoint)) is None:
            return None
        used.used_s = time.monotonic()
        return used.transport

    async def open(self, endpoint: Endpoint) -> AsyncTransport:
        """Return the endpoint's transport, created if necessary. Raises FailedPrecondition after `close`."""
        return (await self._add(endpoint)).transport

    async def close(self) -> None:
        """Close the running loop's transports, and forget those of other loops."""
        with self._lock:
            self._is_closed = True
            closing = self._by_loop.pop(asyncio.get_running_loop(), {})
            self._by_loop.clear()
        for used in closing.values():
            await used.transport.close()

    def release_idle(self) -> None:
        """Let each transport drop what must not exist when the process forks."""
        for of_loop in list(self._by_loop.values()):
            for used in list(of_loop.values()):
                used.transport.release_idle()

    async def _add(self, endpoint: Endpoint) -> _Used[AsyncTransport]:
        with self._lock:
            _check_open(self._is_closed)
            # A closed loop cannot close its connections. Forget them, so that their sockets are closed.
            for loop in [loop for loop in self._by_loop if loop.is_closed()]:
                del self._by_loop[loop]
            of_loop = self._by_loop.setdefault(asyncio.get_running_loop(), {})
            unused = _remove_unused(of_loop)
            made = of_loop.setdefault(endpoint, _Used(self._make(endpoint), time.monotonic()))
        for transport in unused:
            await transport.close()
        return made


def _check_open(is_closed: bool) -> None:
    if is_closed:
        raise FailedPrecondition("The client is closed.")


def _remove_unused(used: "dict[Endpoint, _Used[T]]") -> list[T]:
    limit_s = time.monotonic() - _UNUSED_LIFETIME_S
    removed = [endpoint for endpoint, one in used.items() if one.used_s < limit_s]
    return [used.pop(endpoint).transport for endpoint in removed]
