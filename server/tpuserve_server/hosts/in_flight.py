"""Counts the calls under way, so that a host can wait for the last one. One event loop's thread owns it."""

import asyncio
from collections.abc import Callable

# Streams such as grpc.health.v1.Health/Watch last as long as their client likes: a drain ends them, it never waits.
EndStream = Callable[[], None]


class InFlight:
    """Calls under way, and how to end those that would not end by themselves."""

    def __init__(self) -> None:
        self._calls = 0
        self._streams: dict[EndStream, None] = {}
        self._ending_streams = False
        self._changed: asyncio.Future[None] | None = None  # Only `finish` waits, and only once at a time.

    @property
    def count(self) -> int:
        """Calls under way, streams not among them."""
        return self._calls

    def begin(self) -> None:
        """A call came in."""
        self._calls += 1

    def end(self) -> None:
        """A call was answered, refused or abandoned."""
        self._calls -= 1
        self._wake()

    def begin_stream(self, end: EndStream) -> None:
        """The call under way is a stream, which `end` ends. Once streams are being ended, so is this one, soon."""
        self._calls -= 1
        self._streams[end] = None
        if self._ending_streams:
            asyncio.get_running_loop().call_soon(end)
        self._wake()

    def end_stream(self, end: EndStream) -> None:
        """The stream that `end` ends is over; what is left of it is a call like any other."""
        self._calls += 1
        self._streams.pop(end)

    async def finish(self) -> None:
        """Wait for the last call, then end the streams and wait for them. Calls may still come in meanwhile."""
        while self._calls:
            await self._change()
        self._ending_streams = True
        for end in list(self._streams):
            end()
        while self._busy():
            await self._change()

    def _busy(self) -> bool:
        return self._calls > 0 or bool(self._streams)

    async def _change(self) -> None:
        self._changed = asyncio.get_running_loop().create_future()
        await self._changed

    def _wake(self) -> None:
        if self._changed is not None and not self._changed.done():
            self._changed.set_result(None)
