"""A limited number of connections that calls take in the order of their arrival, blocking and asyncio.

httpcore's own pool examines all its connections, and all waiting requests, for every request: with 100 connections that
takes more time than the request. Here each slot is a pool of one connection, and taking a slot takes constant time.
"""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Idle(Generic[T]):
    slot: T
    since_s: float


class _Stack(Generic[T]):
    """Idle slots, the most recently used on top, and the count of slots that may still be made. Needs a lock."""

    def __init__(self, count: int, make: Callable[[], T], idle_timeout_s: float) -> None:
        self._unmade = count
        self._make = make
        self._idle_timeout_s = idle_timeout_s
        self._idle: deque[_Idle[T]] = deque()

    def pop(self) -> T | None:
        """Return an idle or a new slot, or None if all are in use."""
        if self._idle:
            return self._idle.pop().slot
        if not self._unmade:
            return None
        self._unmade -= 1
        return self._make()

    def push(self, slot: T) -> None:
        """Add an idle slot."""
        self._idle.append(_Idle(slot, time.monotonic()))

    def pop_expired(self) -> list[T]:
        """Remove and return the slots that were idle for too long."""
        limit_s = time.monotonic() - self._idle_timeout_s
        expired = []
        while self._idle and self._idle[0].since_s < limit_s:
            expired.append(self._idle.popleft().slot)
            self._unmade += 1
        return expired

    def clear(self) -> list[T]:
        """Remove and return all idle slots."""
        slots = [idle.slot for idle in self._idle]
        self._idle.clear()
        return slots


class Slots(Generic[T]):
    """Slots for threads. First come, first served: `threading.Semaphore` lets a new thread overtake a waiting one."""

    def __init__(self, count: int, make: Callable[[], T], idle_timeout_s: float, close: Callable[[T], None]) -> None:
        self._stack = _Stack(count, make, idle_timeout_s)
        self._close = close
        self._waiting: deque[_Turn[T]] = deque()
        self._lock = threading.Lock()
        self._is_closed = False

    def take(self, timeout_s: float | None) -> T:
        """Return a slot, which the caller must give back. Waits at most `timeout_s` seconds, then raises TimeoutError.

        Raises RuntimeError after `close`.
        """
        with self._lock:
            if self._is_closed:
                raise RuntimeError("the client is closed")
            if not self._waiting and (slot := self._stack.pop()) is not None:
                return slot
            turn = _Turn[T]()
            self._waiting.append(turn)
        try:
            turn.ready.wait(timeout_s)
        except BaseException:  # such as Ctrl-C, after which the caller does not give back a slot
            if (slot := self._leave(turn)) is not None:
                self.give_back(slot)
            raise
        if (slot := self._leave(turn)) is None:
            raise TimeoutError("no free connection")
        return slot

    def _leave(self, turn: "_Turn[T]") -> T | None:
        """End a turn. Return its slot, or None if it has none yet."""
        with self._lock:
            if turn.slot is None:
                self._waiting.remove(turn)
            return turn.slot

    def give_back(self, slot: T) -> None:
        """Pass the slot to the call that has waited longest, or keep it for the next."""
        with self._lock:
            if self._waiting:
                turn = self._waiting.popleft()
                turn.slot = slot
                turn.ready.set()
                return
            if not self._is_closed:
                self._stack.push(slot)
            closing = [slot] if self._is_closed else self._stack.pop_expired()
        for one in closing:
            self._close(one)

    def close(self) -> None:
        """Close the idle slots now, and those in use when they are given back."""
        with self._lock:
            self._is_closed = True
            closing = self._stack.clear()
        for slot in closing:
            self._close(slot)


class _Turn(Generic[T]):
    """A waiting thread. `slot` is set before `ready`."""

    def __init__(self) -> None:
        self.ready = threading.Event()
        self.slot: T | None = None


class AsyncSlots(Generic[T]):
    """Slots for the tasks of one event loop, first come, first served. The caller closes expired slots."""

    def __init__(self, count: int, make: Callable[[], T], idle_timeout_s: float) -> None:
        self._stack = _Stack(count, make, idle_timeout_s)
        self._waiting: deque[asyncio.Future[T]] = deque()
        self._is_closed = False

    async def take(self) -> T:
        """Return a slot, which the caller must give back. Raises RuntimeError after `close`."""
        if self._is_closed:
            raise RuntimeError("the client is closed")
        if not self._waiting and (slot := self._stack.pop()) is not None:
            return slot
        turn: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            return await turn
        except asyncio.CancelledError:
            # The slot came just before the cancellation.
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                self._hand_over(turn.result())
            raise

    def give_back(self, slot: T) -> list[T]:
        """Pass the slot to the task that has waited longest, or keep it. Return slots that the caller must close."""
        if self._is_closed:
            return [slot]
        self._hand_over(slot)
        return self._stack.pop_expired()

    def _hand_over(self, slot: T) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(slot)
                return
        self._stack.push(slot)

    def close(self) -> list[T]:
        """Refuse further calls and those that wait. Return the idle slots, which the caller must close."""
        self._is_closed = True
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_exception(RuntimeError("the client is closed"))
        return self._stack.clear()
