"""Detects that the client of a REST request disconnects before the response."""

import asyncio
from types import TracebackType
from typing import TYPE_CHECKING

from tpuserve_server.core.system.cancellation import take_back
from tpuserve_server.core.system.timers import RareTimers
from tpuserve_server.protocols.http.errors import ClientGone

if TYPE_CHECKING:
    from starlette.types import Receive


class ClientWatch:
    """Context manager that cancels the wait for a result, as ClientGone, when the client disconnects.

    It starts watching after `delay_s`. Most results arrive earlier, and then the watch costs only a timer that never
    fires. A task that waits on `receive` costs ten times as much.
    """

    __slots__ = ("_delay_s", "_gone", "_receive", "_task", "_timers", "_watcher")

    def __init__(self, receive: "Receive", delay_s: float, timers: RareTimers) -> None:
        """Watch `receive`, which must have delivered the whole body: its next message can only be the disconnect."""
        self._receive = receive
        self._delay_s = delay_s
        self._timers = timers
        self._gone = False
        self._watcher: asyncio.Task[None] | None = None

    def __enter__(self) -> None:
        """Start the watch. From here on it may cancel the current task."""
        # Half the time of finding the loop again.
        self._task = asyncio.current_task(self._timers.loop)
        self._timers.start(self, self._delay_s, self._start)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop watching. Turn the watch's own cancellation into ClientGone; any other one propagates."""
        self._timers.cancel(self)
        if self._watcher is not None:
            self._watcher.cancel()
        if self._gone and kind is asyncio.CancelledError and self._task is not None and take_back(self._task):
            raise ClientGone from None

    def _start(self) -> None:
        self._watcher = self._timers.loop.create_task(self._watch())

    async def _watch(self) -> None:
        message = await self._receive()
        # Any other message violates the protocol; ignore it.
        if message["type"] == "http.disconnect" and self._task is not None:
            self._gone = True
            self._task.cancel()
