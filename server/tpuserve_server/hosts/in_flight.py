"""Tracks the calls in flight, so that a host can wait for them or cancel them. One event loop's thread owns it."""

import asyncio
from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

# Streams such as grpc.health.v1.Health/Watch have no natural end: a drain ends them instead of waiting.
EndStream = Callable[[], None]


class CallWithoutTask(Protocol):
    """A call that no task runs."""

    def cancel(self) -> object:
        """End the call soon."""
        ...


Call: TypeAlias = asyncio.Task[Any] | CallWithoutTask


class InFlight:
    """Calls in flight, most of them in separate tasks, and functions that end streams."""

    def __init__(self) -> None:
        self._tasks: set[Call] = set()
        # The calls among them that are streams.
        self._streams: dict[Call, EndStream] = {}
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
        return len(self._tasks)

    def begin(self) -> asyncio.Task[Any]:
        """Count a call that runs in the current task, and return the task for `end`."""
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        return task

    def begin_call(self, call: CallWithoutTask) -> None:
        """Count a call that no task runs, until `end`."""
        self._tasks.add(call)

    def begin_stream(self, task: asyncio.Task[Any], end: EndStream) -> None:
        """Register a call as a stream, which `end` ends. End it soon if streams already end."""
        self._streams[task] = end
        if self._ending_streams:
            asyncio.get_running_loop().call_soon(end)
        self._wake()

    def end(self, task: Call) -> None:
        """Account for the end of a call or a stream: it is answered, refused or abandoned."""
        self._tasks.remove(task)
        self._streams.pop(task, None)
        if self._changed is not None:
            self._wake()

    async def finish(self) -> None:
        """Wait for the last call, then end the streams and wait for them. New calls may still begin meanwhile."""
        while len(self._tasks) > len(self._streams):
            await self._change()
        self._end_streams()
        while self._tasks:
            await self._change()

    def cut(self) -> None:
        """Cancel the calls and end the streams. Use `finish` to wait until they have ended."""
        self._is_cut = True
        calls = self._tasks.difference(self._streams)
        self._end_streams()
        for task in calls:
            task.cancel()

    def _end_streams(self) -> None:
        self._ending_streams = True
        for end in list(self._streams.values()):
            end()

    async def _change(self) -> None:
        self._changed = asyncio.get_running_loop().create_future()
        await self._changed

    def _wake(self) -> None:
        if self._changed is not None and not self._changed.done():
            self._changed.set_result(None)
