"""BusyTime: for how long anything has been running on a device."""

import threading

from tpuserve_server.core.deadline import Clock


class BusyTime:
    """Adds up the time in which at least one run was on. Safe from any thread; `_lock` guards everything here."""

    def __init__(self, clock: Clock) -> None:
        """Nothing runs."""
        self._clock = clock
        self._lock = threading.Lock()
        self._running = 0
        self._since_s = 0.0
        self._total_s = 0.0

    def begin(self) -> None:
        """A run goes to the device."""
        with self._lock:
            if self._running == 0:
                self._since_s = self._clock.monotonic_s()
            self._running += 1

    def end(self) -> None:
        """A run has come back."""
        with self._lock:
            self._running -= 1
            if self._running == 0:
                self._total_s += self._clock.monotonic_s() - self._since_s

    def total_s(self) -> float:
        """Up to now."""
        with self._lock:
            running_s = self._clock.monotonic_s() - self._since_s if self._running else 0.0
            return self._total_s + running_s
