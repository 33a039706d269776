"""Interruption: ends the work of a request whose client has gone, whose deadline has passed, or that must end.

By the ASGI specification, `receive()` waits after the end of the body until the client disconnects. Waiting on it costs
a task for each request, so only requests that take long are polled. One event loop's thread owns all objects here.
"""

import asyncio
import math
from collections import deque
from types import TracebackType
from typing import TYPE_CHECKING, Final, Protocol, Self

from tpuserve_server.core.system.cancellation import take_back
from tpuserve_server.core.system.timers import RareTimers
from tpuserve_server.core.terms.deadline import Clock, Deadline
from tpuserve_server.core.terms.errors import DeadlineExceeded, ServingError, Unavailable
from tpuserve_server.protocols.status import ClientGone

if TYPE_CHECKING:
    from starlette.types import Message, Receive

# A request is first polled one to two intervals after its start, then once in each interval. An interval is long
# compared with the cost of a poll (two hops between threads). It is short compared with the time that abandoned work
# would occupy a queue.
INTERVAL_S: Final = 0.1
# Limit on unread messages that polls have found. Polls of a request pause while it has this many.
_MAX_UNREAD: Final = 16
_DISCONNECT: Final = "http.disconnect"
# A client that leaves so shortly before its deadline has reached it: its own timer began before the request arrived.
_CLOSE_S: Final = 0.05


class Interruptions:
    """The requests of one application that may be interrupted. A quick request costs only a dictionary entry."""

    def __init__(self, interval_s: float = INTERVAL_S) -> None:
        """Poll requests for a disconnect of their clients once in `interval_s`."""
        self._interval_s = interval_s
        self._loop: asyncio.AbstractEventLoop | None = None
        self._young: dict[Interruption, None] = {}
        self._old: dict[Interruption, None] = {}
        self._timer: asyncio.TimerHandle | None = None

    def add(self, request: "Interruption", loop: asyncio.AbstractEventLoop) -> RareTimers:
        """Poll `request` until `remove`, and return the timers of the loop, for its deadline."""
        if loop is not self._loop:
            # A host has one loop. Tests use one application on several loops, one after the other.
            self._loop, self._timers = loop, RareTimers(loop)
            self._young, self._old, self._timer = {}, {}, None
        self._young[request] = None
        if self._timer is None:
            self._timer = loop.call_later(self._interval_s, self._sweep, loop)
        return self._timers

    def remove(self, request: "Interruption") -> None:
        """Stop polling `request`."""
        if request in self._young:
            del self._young[request]
        else:
            self._old.pop(request, None)

    def _sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        for request in self._old:
            request.poll()
        self._old |= self._young
        self._young = {}
        self._timer = loop.call_later(self._interval_s, self._sweep, loop) if self._old else None


class Interruptible(Protocol):
    """The work of a request: a task, or a call without one."""

    def get_loop(self) -> asyncio.AbstractEventLoop:
        """Return the event loop that runs the work."""
        ...

    def cancel(self) -> object:
        """End the work soon."""
        ...


class Interruption:
    """Context manager around the work of one request, which it cancels at most once. It then raises the reason."""

    __slots__ = ("_among", "_ended", "_expires_s", "_pending", "_receive", "_task", "_timers", "_unread", "reason")

    def __init__(self, among: Interruptions, receive: "Receive", task: Interruptible | None = None) -> None:
        """Poll `receive` for a disconnect. `task` does the work.

        Without `task` it is the current one, which takes a system call to find up to Python 3.11.
        """
        self._among = among
        self._receive = receive
        self._task = task
        # Why it has cancelled the work.
        self.reason: ServingError | None = None
        self._timers: RareTimers | None = None
        # Time of the event loop, once the deadline is known.
        self._expires_s = math.inf
        self._pending: asyncio.Future[Message] | None = None
        # Most requests end before a poll finds a message.
        self._unread: deque[Message] | None = None
        self._ended = False

    def __enter__(self) -> Self:
        """Begin. From here on the task may be cancelled."""
        task = self._task
        if task is None:
            task = self._task = asyncio.current_task()
            assert task is not None
        self._timers = self._among.add(self, task.get_loop())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """End. Turn the own cancellation into its reason; any other error propagates."""
        task = self._task
        self.end()
        if (
            self.reason is not None
            and kind is asyncio.CancelledError
            and isinstance(task, asyncio.Task)
            and take_back(task)
        ):
            raise self.reason from None

    def end(self) -> None:
        """End, whatever the outcome. Does nothing after the first call."""
        self._task = None
        self._among.remove(self)
        if self._timers is not None:
            self._timers.cancel(self)
        # A future belongs to the server, which will set its result.
        if isinstance(self._pending, asyncio.Task):
            self._pending.cancel()

    def expire_at(self, deadline: Deadline, clock: Clock) -> None:
        """Interrupt the request at its deadline. Raises DeadlineExceeded if it has passed, so that no work begins."""
        if not deadline.is_finite:
            return
        remaining_s = deadline.remaining_s(clock.monotonic_s())
        if remaining_s <= 0:
            raise deadline_passed()
        assert self._timers is not None
        # A timer of the event loop for each call would take 50 % more time.
        self._timers.start(self, remaining_s, self._expire)
        self._expires_s = self._timers.loop.time() + remaining_s

    def shut_down(self) -> None:
        """Interrupt the request because the server shuts down."""
        self._interrupt(Unavailable("The server is shutting down"))

    async def receive(self) -> "Message":
        """Receive the next ASGI message of a stream. Safe to cancel. Do not call it after the body's end."""
        while not self._unread:
            pending = self._pending or self._begin()
            if pending.done():
                # Its callback has not run yet, and cannot run during this loop: `await` would not suspend.
                self._received(pending)
            else:
                await asyncio.shield(pending)
        return self._unread.popleft()

    def poll(self) -> None:
        """Poll for a disconnect, unless an earlier poll is pending or too many messages are unread."""
        if self._pending is None and (self._unread is None or len(self._unread) < _MAX_UNREAD):
            self._begin()

    def _begin(self) -> "asyncio.Future[Message]":
        # `ensure_future` keeps a server's own future and turns a coroutine into a task. A wrapper coroutine would leave
        # the inner one unawaited if the task is cancelled before its first step.
        self._pending = pending = asyncio.ensure_future(self._receive())
        # Add this callback before any reader's, so that a reader that wakes finds the message in `_unread`.
        pending.add_done_callback(self._received)
        return pending

    def _received(self, pending: "asyncio.Future[Message]") -> None:
        if pending is not self._pending:
            return  # A reader has taken the message.
        self._pending = None
        if pending.cancelled():
            return
        # An error in `receive` also means that the client is gone.
        message = {"type": _DISCONNECT} if pending.exception() is not None else pending.result()
        if message["type"] == _DISCONNECT:
            assert self._timers is not None
            is_late = self._expires_s - self._timers.loop.time() <= _CLOSE_S
            self._interrupt(deadline_passed() if is_late else ClientGone())
        elif self._ended:
            return  # One more empty body: the client is still connected.
        self._ended = not message.get("more_body", False)
        if self._unread is None:
            self._unread = deque()
        self._unread.append(message)

    def _expire(self) -> None:
        self._interrupt(deadline_passed())

    def _interrupt(self, reason: ServingError) -> None:
        if self.reason is None and self._task is not None:
            self.reason = reason
            self._task.cancel()


def deadline_passed() -> DeadlineExceeded:
    """Return the error of a request whose deadline has passed, in the words of gRPC's own servers."""
    return DeadlineExceeded("Deadline Exceeded")
