"""A fixed number of slots that threads take in the order of their arrival."""

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager


class Slots:
    """Like a semaphore, but first come, first served: `threading.Semaphore` lets a new thread overtake a waiting one.

    A pool that lets all callers wait inside it examines every waiting request whenever one ends, which takes quadratic
    time in all.
    """

    def __init__(self, count: int) -> None:
        self._free = count
        self._waiting: deque[threading.Lock] = deque()
        self._lock = threading.Lock()

    @contextmanager
    def taken(self, timeout_s: float | None) -> Iterator[None]:
        """Hold a slot in the `with` block. Waits at most `timeout_s` seconds, then raises TimeoutError."""
        self._take(timeout_s)
        try:
            yield
        finally:
            self._give_back()

    def _take(self, timeout_s: float | None) -> None:
        with self._lock:
            if self._free:
                self._free -= 1
                return
            turn = threading.Lock()
            turn.acquire()
            self._waiting.append(turn)
        if turn.acquire(timeout=-1 if timeout_s is None else max(timeout_s, 0.0)):
            return
        with self._lock:
            if turn in self._waiting:
                self._waiting.remove(turn)
                raise TimeoutError(f"no free connection within {timeout_s:.3g} s")
        # The slot was handed over just after the timeout.

    def _give_back(self) -> None:
        with self._lock:
            if self._waiting:
                self._waiting.popleft().release()
            else:
                self._free += 1
