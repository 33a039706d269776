"""Timers of a connection: LazyTimer, and a watch of bytes that the client does not take."""

import asyncio
from collections.abc import Callable

from tpuserve_server.hosts.http1.acknowledged import acknowledged_bytes


class LazyTimer:
    """A timer that starts again for each request. The event loop's timer moves only if the new time is earlier."""

    __slots__ = ("_call", "_due_s", "_fires_s", "_handle", "_loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        """Create a stopped timer."""
        self._loop = loop
        self._handle: asyncio.TimerHandle | None = None
        self._fires_s = 0.0
        # None: stopped, though the event loop's timer may still run.
        self._due_s: float | None = None
        self._call: Callable[[], None] | None = None

    def start(self, delay_s: float, call: Callable[[], None]) -> None:
        """Call `call` after `delay_s`, instead of an earlier start's function."""
        self._call = call
        self._due_s = due_s = self._loop.time() + delay_s
        if self._handle is not None and self._fires_s > due_s:
            self._handle.cancel()
            self._handle = None
        if self._handle is None:
            self._schedule(due_s, delay_s)

    def stop(self) -> None:
        """Forget the last start."""
        self._due_s = None

    def close(self) -> None:
        """Stop, and cancel the event loop's timer, which refers to this object."""
        self._due_s = self._call = None
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _schedule(self, due_s: float, delay_s: float) -> None:
        self._fires_s = due_s
        self._handle = self._loop.call_later(delay_s, self._fire)

    def _fire(self) -> None:
        self._handle = None
        if self._due_s is None or self._call is None:
            return
        left_s = self._due_s - self._loop.time()
        if left_s > 0:
            self._schedule(self._due_s, left_s)
        else:
            self._due_s = None
            self._call()


class UnsentWatch:
    """Ends a connection whose client takes no bytes. A closed transport, too, waits for such a client without end."""

    __slots__ = ("_acknowledged_bytes", "_is_hurried", "_size_bytes", "_timeout_s", "_timer", "_transport")

    def __init__(self, transport: asyncio.Transport, timer: LazyTimer, timeout_s: float) -> None:
        """Watch `transport` with `timer`, which belongs to this object alone."""
        self._transport = transport
        self._timer = timer
        self._timeout_s = timeout_s
        self._is_hurried = False
        self._size_bytes = self._acknowledged_bytes = 0

    def start(self) -> None:
        """Watch until `stop`, if bytes wait in the transport."""
        self._size_bytes = self._transport.get_write_buffer_size()
        if self._size_bytes:
            self._acknowledged_bytes = acknowledged_bytes(self._transport)
            self._timer.start(self._timeout_s, self._check)

    def stop(self) -> None:
        """Stop until the next start. After `hurry`, watch until all bytes are sent."""
        if not self._is_hurried:
            self._timer.stop()

    def hurry(self, timeout_s: float) -> None:
        """Watch with this timeout from now on: the server does not wait longer for its clients."""
        self._timeout_s = timeout_s
        self._is_hurried = True
        self.start()

    def close(self) -> None:
        """Stop for good."""
        self._timer.close()

    def _check(self) -> None:
        size_bytes, acknowledged = self._size_bytes, self._acknowledged_bytes
        self.start()
        # The system's own buffers hide a slow client from the transport, but not its acknowledgements.
        if self._size_bytes >= size_bytes and self._acknowledged_bytes == acknowledged:
            self._transport.abort()
