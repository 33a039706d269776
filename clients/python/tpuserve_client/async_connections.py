"""Transports of an asyncio client by endpoint, created at their first use on each event loop."""

import asyncio
import threading
import time
from collections.abc import Callable
from weakref import WeakKeyDictionary

from tpuserve_client.connections import Used, check_open, remove_unused
from tpuserve_client.endpoint import Endpoint
from tpuserve_client.exchange import AsyncTransport


class AsyncConnections:
    """Asyncio transports, separate for each event loop. Safe to share between threads, each with its own loop."""

    def __init__(self, make: Callable[[Endpoint], AsyncTransport]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._by_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[Endpoint, Used[AsyncTransport]]]
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

    def release_idle(self) -> bool:
        """Let each transport drop what must not exist when the process forks. Return whether there was any."""
        has_released = False
        for of_loop in list(self._by_loop.values()):
            for used in list(of_loop.values()):
                has_released = used.transport.release_idle() or has_released
        return has_released

    async def _add(self, endpoint: Endpoint) -> Used[AsyncTransport]:
        with self._lock:
            check_open(self._is_closed)
            # A closed loop cannot close its connections. Forget them, so that their sockets are closed.
            for loop in [loop for loop in self._by_loop if loop.is_closed()]:
                del self._by_loop[loop]
            of_loop = self._by_loop.setdefault(asyncio.get_running_loop(), {})
            unused = remove_unused(of_loop)
            made = of_loop.setdefault(endpoint, Used(self._make(endpoint), time.monotonic()))
        for transport in unused:
            await transport.close()
        return made
