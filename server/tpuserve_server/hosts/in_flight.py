"""Tracks the calls in flight, so that a host can wait for them or cancel them. One event loop's thread owns it."""

import asyncio
from collections.abc import Callable
from typing import Any

# Streams such as grpc.health.v1.Health/Watch have no natural end: a drain ends them instead of waiting.
EndStream = Callable[[], None]


class InFlight:
    """Calls in flight, each in a separate task, and functions that end streams."""

    def __init__(self) -> None:
        self._calls = 0
        self._tasks: set[asyncio.Task[Any] | None] = set()  # Tasks of calls and streams.
        self._streams: dict[EndStream, asyncio.Task[Any] | None] = {}
        self._ending_streams = False
        self._is_cut = False
        self._changed: asyncio.Future[None] | None = None  # Only one `finish` waits at a time.

    @property
    def is_cut(self) -> bool:
        """Whether `cut` has cancelled the calls, which then explains a cancellation of their tasks."""
        return self._is_cut

    @property
    def count(self) -> int:
        """Number of calls and streams that have not ended."""
        return self._calls + len(self._streams)

    def begin(self) -> asyncio.Task[Any] | None:
        """Count a call that runs in the current task, and return the task."""
        self._calls += 1
        task = asyncio.current_task()
        self._tasks.add(task)
        return task

    def end(self, task: asyncio.Task[Any] | None = None) -> None:
        """Count the call of `task`, by default the current one, as answered, refused or abandoned.

        Finding the current task takes longer than the rest of this function.
        """
        self._calls -= 1
        self._tasks.discard(task or asyncio.current_task())
        if self._changed is not None:
            self._wake()

    def begin_stream(self, end: EndStream) -> None:
        """Register the current task's call as a stream, which `end` ends. End it soon if streams already end."""
        self._calls -= 1
        self._streams[end] = asyncio.current_task()
        if self._ending_streams:
            asyncio.get_running_loop().call_soon(end)
        self._wake()

    def end_stream(self, end: EndStream) -> None:
        """Unregister the stream of `end`. Its task counts as an ordinary call until it calls `InFlight.end`."""
        self._calls += 1
        self._streams.pop(end)

    async def finish(self) -> None:
        """Wait for the last call, then end the streams and wait for them. New calls may still begin meanwhile."""
        while self._calls:
            await self._change()
        self._end_streams()
        while self._busy():
            await self._change()

    def cut(self) -> None:
        """Cancel the calls and end the streams. Use `finish` to wait until they have ended."""
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
        return self.count > 0

    async def _change(self) -> None:
        self._changed = asyncio.get_running_loop().create_future()
        await self._changed

    def _wake(self) -> None:
        if self._changed is not None and not self._changed.done():
            self._changed.set_result(None)
