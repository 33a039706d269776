"""RareTimers: timers that nearly never fire, as those of deadlines. One of the event loop's own serves them all."""

import asyncio
import math
from collections.abc import Callable, Hashable

# Event loops may run a timer this much before its time: uvloop counts in whole milliseconds.
EARLY_S = 0.002


class RareTimers:
    """Calls back at given times. One event loop's thread owns it.

    To start a timer and to cancel it is an entry in a dictionary each, a fifth of what they cost in a loop. All entries
    are looked through when one is due, or was when it was cancelled: not for timers that mostly fire.
    """

    __slots__ = ("_calls", "_loop", "_next_s", "_timer")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        """Nothing is due yet."""
        self._loop = loop
        self._calls: dict[Hashable, tuple[float, Callable[[], None]]] = {}
        self._next_s = math.inf
        self._timer: asyncio.TimerHandle | None = None

    def start(self, key: Hashable, delay_s: float, call: Callable[[], None]) -> None:
        """Call `call` in `delay_s`, once, unless `key` is cancelled before."""
        at_s = self._loop.time() + delay_s
        self._calls[key] = (at_s, call)
        if at_s < self._next_s:
            self._arm(at_s)

    def cancel(self, key: Hashable) -> None:
        """No call for `key`; it need not have one."""
        self._calls.pop(key, None)

    def _arm(self, at_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._next_s = at_s
        self._timer = self._loop.call_at(at_s, self._fire)

    def _fire(self) -> None:
        now_s = self._loop.time() + EARLY_S
        due = [(key, call) for key, (at_s, call) in self._calls.items() if at_s <= now_s]
        for key, _ in due:
            del self._calls[key]
        self._timer, self._next_s = None, math.inf
        if self._calls:
            self._arm(min(at_s for at_s, _ in self._calls.values()))
        for _, call in due:
            call()


class RareTimersByLoop:
    """The timers of every event loop that asks, each of which gets its own."""

    __slots__ = ("_by_loop",)

    def __init__(self) -> None:
        """No loop has asked yet."""
        self._by_loop: dict[asyncio.AbstractEventLoop, RareTimers] = {}

    def of(self, loop: asyncio.AbstractEventLoop) -> RareTimers:
        """The loop's timers. Called on the loop."""
        found = self._by_loop.get(loop)
        return found if found is not None else self._add(loop)

    def _add(self, loop: asyncio.AbstractEventLoop) -> RareTimers:
        for other in [other for other in list(self._by_loop) if other.is_closed()]:
            self._by_loop.pop(other, None)
        return self._by_loop.setdefault(loop, RareTimers(loop))
