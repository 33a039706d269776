"""Knows the calls under way, so that a host can wait for the last one or cut them. One event loop's thread owns it."""

import asyncio
from collections.abc import Callable
from typing import Any

# Streams such as grpc.health.v1.Health/Watch last as long as their client likes: a drain ends them, it never waits.
EndStream = Callable[[], None]


class InFlight:
    """Calls under way, each in a task of its own, and how to end those that would not end by themselves."""

    def __init__(self) -> None:
        self._calls = 0
        self._tasks: set[asyncio.Task[Any] | None] = set()  # Of calls and streams.
        self._streams: dict[EndStream, asyncio.Task[Any] | None] = {}
        self._ending_streams = False
        self._is_cut = False
        self._changed: asyncio.Future[None] | None = None  # Only `finish` waits, and only once at a time.

    @property
    def is_cut(self) -> bool:
        """Whether calls were cut: what a task is cancelled for that carries one."""
        return self._is_cut

    def begin(self) -> None:
        """A call came in, in this task."""
        self._calls += 1
        self._tasks.add(asyncio.current_task())

    def end(self) -> None:
        """This task's call was answered, refused or abandoned."""
        self._calls -= 1
        self._tasks.discard(asyncio.current_task())
        self._wake()

    def begin_stream(self, end: EndStream) -> None:
        """The call under way is a stream, which `end` ends. Once streams are being ended, so is this one, soon."""
        self._calls -= 1
        self._streams[end] = asyncio.current_task()
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
        self._end_streams()
        while self._busy():
            await self._change()

    def cut(self) -> None:
        """Cancel the calls and end the streams. Those that obey are soon over: `finish` waits for that."""
        self._is_cut = True
        calls = self._tasks.difference(self._streams.values())
        self._end_streams()
        for task in calls:
            if task is not None:
                task.cancel()

    def _end_streams(self) -> None:
        self._ending_streams = True
        for end in list(self._streams):
            end()

    def _busy(self) -> bool:
        return self._calls > 0 or bool(self._streams)

    async def _change(self) -> None:
        self._changed = asyncio.get_running_loop().create_future()
        await self._changed

    def _wake(self) -> None:
        if self._changed is not None and not self._changed.done():
            self._changed.set_result(None)
