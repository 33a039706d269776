"""Timers that share one timer of an event loop, and timers of versions, which share one thread."""

import asyncio
import math
import threading
from collections.abc import Callable, Hashable

from tpuserve_server.core.terms.deadline import WaitingClock
from tpuserve_server.core.terms.types import ServableId

# Event loops may fire a timer this much early: uvloop counts in whole milliseconds.
EARLY_S = 0.002


class RareTimers:
    """Calls back at given times. One event loop's thread owns it.

    Starting or cancelling a timer is one dictionary operation, a fifth of its cost in an event loop. When a timer is
    due, even a cancelled one, all entries are searched. Do not use it for timers that usually fire.
    """

    __slots__ = ("_calls", "_next_s", "_timer", "loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start without timers."""
        # The event loop of the timers. Not to be changed.
        self.loop = loop
        self._calls: dict[Hashable, tuple[float, Callable[[], None]]] = {}
        self._next_s = math.inf
        self._timer: asyncio.TimerHandle | None = None

    def start(self, key: Hashable, delay_s: float, call: Callable[[], None]) -> None:
        """Call `call` once after `delay_s`, unless `key` is cancelled first."""
        at_s = self.loop.time() + delay_s
        self._calls[key] = (at_s, call)
        if at_s < self._next_s:
            self._arm(at_s)

    def cancel(self, key: Hashable) -> None:
        """Cancel the call for `key`, if there is one."""
        self._calls.pop(key, None)

    def _arm(self, at_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._next_s = at_s
        self._timer = self.loop.call_at(at_s, self._fire)

    def _fire(self) -> None:
        now_s = self.loop.time() + EARLY_S
        due = [(key, call) for key, (at_s, call) in self._calls.items() if at_s <= now_s]
        for key, _ in due:
            del self._calls[key]
        self._timer, self._next_s = None, math.inf
        if self._calls:
            self._arm(min(at_s for at_s, _ in self._calls.values()))
        for _, call in due:
            call()


class RareTimersByLoop:
    """The timers of every event loop that uses them, separate for each loop."""

    __slots__ = ("_by_loop",)

    def __init__(self) -> None:
        """Start without loops."""
        self._by_loop: dict[asyncio.AbstractEventLoop, RareTimers] = {}

    def of(self, loop: asyncio.AbstractEventLoop) -> RareTimers:
        """Return the loop's timers. Called on the loop."""
        found = self._by_loop.get(loop)
        return found if found is not None else self._add(loop)

    def _add(self, loop: asyncio.AbstractEventLoop) -> RareTimers:
        for other in [other for other in list(self._by_loop) if other.is_closed()]:
            self._by_loop.pop(other, None)
        return self._by_loop.setdefault(loop, RareTimers(loop))


class VersionTimer:
    """One thread, started by the first `set`, that calls `on_due` for each version that is due.

    `_changed` guards `_due_s` and `_stopping`. `on_due` is called without the lock and must not block.
    """

    def __init__(self, clock: WaitingClock, on_due: Callable[[ServableId], None], *, name: str) -> None:
        """Start without versions. `name` is that of the thread."""
        self._clock = clock
        self._on_due = on_due
        self._changed = threading.Condition()
        self._due_s: dict[ServableId, float] = {}
        self._stopping = False
        self._timer_thread = threading.Thread(target=self._run, name=name)

    def set(self, servable_id: ServableId, delay_s: float) -> None:
        """Call `on_due` for this version once, `delay_s` seconds from now."""
        with self._changed:
            if self._stopping:
                return
            self._due_s[servable_id] = self._clock.monotonic_s() + delay_s
            if self._timer_thread.ident is None:
                self._timer_thread.start()
            self._changed.notify()

    def cancel(self, servable_id: ServableId) -> None:
        """Cancel the call for this version. A call that has already begun may still arrive."""
        with self._changed:
            self._due_s.pop(servable_id, None)

    def stop(self) -> None:
        """Cancel all calls and join the thread."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        if self._timer_thread.ident is not None:
            self._timer_thread.join()

    def _run(self) -> None:
        while (servable_id := self._next()) is not None:
            self._on_due(servable_id)

    def _next(self) -> ServableId | None:
        """Wait for the next version that is due, and return it, or None once stopped."""
        with self._changed:
            while not self._stopping:
                first = min(self._due_s, key=self._due_s.__getitem__, default=None)
                due_s = math.inf if first is None else self._due_s[first]
                if first is not None and due_s <= self._clock.monotonic_s():
                    del self._due_s[first]
                    return first
                self._clock.wait_until(self._changed, due_s)
            return None
