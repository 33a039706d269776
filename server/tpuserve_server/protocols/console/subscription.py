"""Subscription: the events that one client of the stream has not received yet."""

import asyncio
from collections.abc import Callable


class Subscription:
    """The latest event of each name. A slow client misses snapshots, and its memory does not grow.

    The event loop's thread owns it.
    """

    def __init__(self, leave: Callable[["Subscription"], None]) -> None:
        """Begin without events. `close` calls `leave`."""
        self._leave = leave
        self._pending: dict[str, bytes] = {}
        self._changed = asyncio.Event()
        self.has_ended = False
        # Called at the end, if the stream is sending then.
        self.on_end: Callable[[], None] | None = None

    def offer(self, name: str, event: bytes) -> None:
        """Add an event, in place of the pending one of this name."""
        self._pending.pop(name, None)
        self._pending[name] = event
        self._changed.set()

    def end(self) -> None:
        """End the stream after the pending events."""
        self.has_ended = True
        self._changed.set()
        if self.on_end is not None:
            self.on_end()

    async def next(self) -> bytes:
        """Wait for events, and return all that are pending. Return nothing at the end of the stream."""
        await self._changed.wait()
        events = b"".join(self._pending.values())
        self._pending.clear()
        if not self.has_ended:
            self._changed.clear()
        return events

    def close(self) -> None:
        """Leave the feed. May be called more than once."""
        self._leave(self)
