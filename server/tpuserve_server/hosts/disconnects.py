"""Notices callers that went away while their request is being worked on. One event loop's thread owns everything here.

ASGI says that `receive()` waits, once the body is complete, until the client is gone. In Envoy's embedding it does not:
it answers at once, with one more empty body, as long as the client is there. And waiting on it costs a task for each
request on servers that do conform. So callers are asked from time to time, and only those whose request takes long.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from starlette.types import Message, Receive

# A caller is first asked between one and two of these after it came, then once in each. Long beside the cost of asking
# (two hops between threads), short beside the time that cancelled work would otherwise hold its place in a queue.
INTERVAL_S = 0.1

# Of messages found while asking. A client whose unread stream is longer than that is not asked any more.
_MAX_UNREAD = 16

DISCONNECT = "http.disconnect"


class Caller:
    """One request's `receive`, which can be asked ahead of its reader whether the client is still there."""

    __slots__ = ("_ended", "_gone", "_pending", "_receive", "_unread")

    def __init__(self, receive: "Receive", gone: Callable[[], None]) -> None:
        """`gone` is called when the client was seen to leave; it may be called more than once."""
        self._receive = receive
        self._gone = gone
        self._pending: asyncio.Future[Message] | None = None
        self._unread: deque[Message] = deque()
        self._ended = False

    async def receive(self) -> "Message":
        """ASGI's `receive`, safe to cancel and safe beside `ask`. Not for use after the body's end."""
        while not self._unread:
            await asyncio.shield(self._pending or self._begin())
        return self._unread.popleft()

    def ask(self) -> None:
        """Look whether the client has gone, unless an earlier look is unanswered or much was found and not yet read."""
        if self._pending is None and len(self._unread) < _MAX_UNREAD:
            self._begin()

    def close(self) -> None:
        """No more questions. A task of ours that still waits is ended; a server's own future is left to the server."""
        if isinstance(self._pending, asyncio.Task):
            self._pending.cancel()

    def _begin(self) -> "asyncio.Future[Message]":
        # A server's own future as it is. A coroutine becomes the task itself: one inside another would never be awaited
        # if the task is cancelled before its first step.
        self._pending = pending = asyncio.ensure_future(self._receive())
        # Before any reader's own callback, so that a reader which wakes finds the message among the unread.
        pending.add_done_callback(self._answered)
        return pending

    def _answered(self, pending: "asyncio.Future[Message]") -> None:
        self._pending = None
        if pending.cancelled():
            return
        # A server that fails to receive has lost the client, too.
        message = {"type": DISCONNECT} if pending.exception() is not None else pending.result()
        if message["type"] == DISCONNECT:
            self._gone()
        elif self._ended:
            return  # One more empty body, which says no more than that the client is still there.
        self._ended = not message.get("more_body", False)
        self._unread.append(message)


class DisconnectWatch:
    """Asks the callers of requests that take longer than an interval whether they are still there."""

    def __init__(self, interval_s: float = INTERVAL_S) -> None:
        self._interval_s = interval_s
        self._young: dict[Caller, None] = {}
        self._old: dict[Caller, None] = {}
        self._timer: asyncio.TimerHandle | None = None

    def add(self, caller: Caller) -> None:
        """Watch `caller` until `remove`. Costs a dictionary entry while its request is quick."""
        self._young[caller] = None
        if self._timer is None:
            self._schedule()

    def remove(self, caller: Caller) -> None:
        """The request is answered. Only for callers that were added."""
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


class ConformingReceive:
    """Makes a `receive` that answers after the body's end wait for the client's leaving instead, as ASGI says."""

    def __init__(self, receive: "Receive", watch: DisconnectWatch) -> None:
        self.server = receive
        self._watch = watch
        self.ended = False
        self._gone: asyncio.Future[Message] | None = None
        self._caller: Caller | None = None

    async def __call__(self) -> "Message":
        """ASGI's `receive`."""
        if self.ended:
            return await asyncio.shield(self._gone or self._wait())
        message = await self.server()
        self.ended = not message.get("more_body", False)
        return message

    def close(self) -> None:
        """The response is complete: whoever still waits hears that the client is gone, as ASGI says."""
        if self._caller is not None:
            self._tell()
            self._watch.remove(self._caller)

    def _wait(self) -> "asyncio.Future[Message]":
        self._gone = asyncio.get_running_loop().create_future()
        self._caller = Caller(self.server, self._tell)
        self._watch.add(self._caller)
        return self._gone

    def _tell(self) -> None:
        if self._gone is not None and not self._gone.done():
            self._gone.set_result({"type": DISCONNECT})
