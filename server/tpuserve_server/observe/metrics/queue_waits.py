"""QueueWaits: the mean time that requests waited for the device, between two readings."""

import threading

from tpuserve_server.observe.metrics.measurements import Measurements


class QueueWaits:
    """Reads the waits of all versions together. Thread-safe."""

    def __init__(self, measured: Measurements) -> None:
        """Read from `measured`."""
        self._measured = measured
        self._lock = threading.Lock()
        self._count, self._sum_s = 0, 0.0

    def take_mean_s(self) -> float:
        """Return the mean wait in seconds of the requests that left a queue since the last call, 0 without any."""
        with self._lock:
            count, sum_s = self._totals()
            new, new_s = count - self._count, sum_s - self._sum_s
            self._count, self._sum_s = count, sum_s
        # The series of a version end with it, so the totals may fall.
        return new_s / new if new > 0 and new_s > 0 else 0.0

    def _totals(self) -> tuple[int, float]:
        counts, sums_s = 0, 0.0
        for histogram in self._measured.batches.queue_wait.values():
            count, sum_s = histogram.number_and_sum()
            counts, sums_s = counts + count, sums_s + sum_s
        return counts, sums_s
