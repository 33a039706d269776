"""Demand: the device time that the requests for a version need, whether or not the server admits them."""

from typing import Final, NamedTuple

from tpuserve_server.core.terms.priority import Priority

# Weight of the latest request in the running mean of the time that a request needs.
_WEIGHT: Final = 0.02


class DemandTotals(NamedTuple):
    """Seconds that requests of each priority have needed, the number of requests, and the mean of recent ones."""

    high_s: float = 0.0
    low_s: float = 0.0
    requests: int = 0
    mean_s: float = 0.0


class Demand:
    """Seconds of one batcher's capacity that requests have asked for. A second a second is all that it can do.

    A request counts with its share of a batch of the size that the device uses under full load
    (`SignatureRules.price_s`), divided by the number of batches that run at a time. While no cost is known, a batch
    counts with its measured time when it ends.

    The batcher's lock guards the changes. Any thread may read, and may miss the latest request.
    """

    __slots__ = ("_high_s", "_low_s", "_mean_s", "_requests", "_scale", "_unpriced")

    def __init__(self, threads: int) -> None:
        """Start without requests for a batcher that runs `threads` batches at a time."""
        self._scale = 1.0 / threads
        self._high_s = self._low_s = self._mean_s = 0.0
        self._requests = 0
        # Whether requests have arrived since the last batch whose cost was unknown.
        self._unpriced = False

    def arrived(self, price_s: float, priority: Priority) -> None:
        """Record a request that needs `price_s` of the device, or 0 if that is unknown. Called for every request."""
        self._requests += 1
        if not price_s:
            self._unpriced = True
            return
        seconds = price_s * self._scale
        if priority:
            self._low_s += seconds
        else:
            self._high_s += seconds
        self._mean_s = self._mean_s + _WEIGHT * (seconds - self._mean_s) if self._mean_s else seconds

    def refused_unread(self, priority: Priority) -> None:
        """Record a request that was refused before its inputs were known, as a request of the mean time."""
        if self._mean_s:
            self.arrived(self._mean_s / self._scale, priority)

    def ran(self, run_s: float) -> None:
        """Record the end of a batch whose cost was unknown."""
        if self._unpriced:
            self._unpriced = False
            self._high_s += run_s * self._scale

    def totals(self) -> DemandTotals:
        """Return the totals since the start of the batcher."""
        return DemandTotals(self._high_s, self._low_s, self._requests, self._mean_s)
