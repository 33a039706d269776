"""Detects clients that disconnect while their request runs. One event loop's thread owns all objects of this module.

By the ASGI specification, `receive()` waits after the end of the body until the client disconnects. Waiting on it costs
a task for each request. This module therefore calls it only for requests that take long.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from starlette.types import Message, Receive

# The watch first polls a caller one to two intervals after its request, then once in each interval. An interval is long
# compared with the cost of a poll (two hops between threads). It is short compared with the time that abandoned work
# would occupy a queue.
INTERVAL_S = 0.1

# Limit on unread messages that polls have found. Polls of a caller pause while it has this many.
_MAX_UNREAD = 16

DISCONNECT = "http.disconnect"


class Caller:
    """The `receive` of one request, with a poll for a disconnect ahead of its reader."""

    __slots__ = ("_ended", "_gone", "_pending", "_receive", "_unread")

    def __init__(self, receive: "Receive", gone: Callable[[], None]) -> None:
        """Call `gone` when the client has disconnected, possibly more than once."""
        self._receive = receive
        self._gone = gone
        self._pending: asyncio.Future[Message] | None = None
        # Most requests end before a poll finds a message.
        self._unread: deque[Message] | None = None
        self._ended = False

    async def receive(self) -> "Message":
        """Receive the next ASGI message. Safe to cancel and to use with `ask`. Do not call it after the body's end."""
        while not self._unread:
            pending = self._pending or self._begin()
            if pending.done():
                # Its callback has not run yet, and cannot run during this loop: `await` would not suspend.
                self._received(pending)
            else:
                await asyncio.shield(pending)
        return self._unread.popleft()

    def ask(self) -> None:
        """Poll for a disconnect, unless an earlier poll is pending or too many messages are unread."""
        if self._pending is None and (self._unread is None or len(self._unread) < _MAX_UNREAD):
            self._begin()

    def close(self) -> None:
        """Stop polling. Cancel a pending task of this object, but not a future that the server owns."""
        if isinstance(self._pending, asyncio.Task):
            self._pending.cancel()

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
        message = {"type": DISCONNECT} if pending.exception() is not None else pending.result()
        if message["type"] == DISCONNECT:
            self._gone()
        elif self._ended:
            return  # One more empty body: the client is still connected.
        self._ended = not message.get("more_body", False)
        if self._unread is None:
            self._unread = deque()
        self._unread.append(message)


class DisconnectWatch:
    """Polls the callers of requests that take longer than an interval for a disconnect."""

    def __init__(self, interval_s: float = INTERVAL_S) -> None:
        self._interval_s = interval_s
        self._young: dict[Caller, None] = {}
        self._old: dict[Caller, None] = {}
        self._timer: asyncio.TimerHandle | None = None

    def add(self, caller: Caller) -> None:
        """Watch `caller` until `remove`. A quick request costs only a dictionary entry."""
        self._young[caller] = None
        if self._timer is None:
            self._schedule()

    def remove(self, caller: Caller) -> None:
        """Stop watching `caller`, which must have been added, after the response."""
        if caller in self._young:
            del self._young[caller]
        else:
            del self._old[caller]
        caller.close()

    def _schedule(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._interval_s, self._sweep)

    def _sweep(self) -> None:
        self._timer = None
        for caller in self._old:
            caller.ask()
        self._old |= self._young
        self._young = {}
        if self._old:
            self._schedule()
