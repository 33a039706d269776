"""BusyTime: the total time in which a device had a run."""

import threading

from tpuserve_server.core.terms.deadline import Clock


class BusyTime:
    """Total time with at least one run. Thread-safe: `_lock` guards every field."""

    def __init__(self, clock: Clock) -> None:
        """Start without a run."""
        self._clock = clock
        self._lock = threading.Lock()
        self._running = 0
        self._since_s = 0.0
        self._total_s = 0.0

    def begin(self) -> None:
        """Record the start of a run."""
        with self._lock:
            if self._running == 0:
                self._since_s = self._clock.monotonic_s()
            self._running += 1

    def end(self) -> None:
        """Record the end of a run."""
        with self._lock:
            self._running -= 1
            if self._running == 0:
                self._total_s += self._clock.monotonic_s() - self._since_s

    def total_s(self) -> float:
        """Return the time up to now, in seconds."""
        with self._lock:
            running_s = self._clock.monotonic_s() - self._since_s if self._running else 0.0
            return self._total_s + running_s
