"""Figures of a running load over a recent period."""

from collections import deque
from dataclasses import dataclass
from typing import Final

from tpuserve_loadtests.measurement.recorder import Counts

# Long enough for a p99 at 100 requests per second, short enough to show a stall.
RECENT_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class LiveFigures:
    """Figures of the `seconds` before a moment. Latencies are milliseconds of all requests, or None
    if they fall among failed ones.

    `rate_per_s` counts successful responses.
    """

    seconds: float
    rate_per_s: float
    p50_ms: float | None
    p99_ms: float | None


class LivePeriod:
    """Figures since an earlier moment: at least `least_s` seconds ago, or the start of the measured time.

    Times are seconds of measured time.
    """

    def __init__(self, least_s: float = RECENT_S) -> None:
        self._least_s = least_s
        self._past = deque([(0.0, Counts())])

    def advance(self, measured_s: float, counts: Counts) -> LiveFigures | None:
        """Add a moment and return its figures. Return None if no measured time passed since the previous moment."""
        if measured_s <= self._past[-1][0]:
            return None
        self._past.append((measured_s, counts))
        while len(self._past) > 2 and measured_s - self._past[1][0] >= self._least_s:
            self._past.popleft()
        return _figures(*self._past[0], measured_s, counts)


def _figures(since_s: float, before: Counts, now_s: float, now: Counts) -> LiveFigures:
    seconds = now_s - since_s
    failures = now.failures - before.failures
    successes = now.requests - before.requests - failures
    latencies = now.latencies.since(before.latencies)
    p50_ms, p99_ms = (latencies.percentile_ms(percent, failures) for percent in (50, 99))
    return LiveFigures(seconds, successes / seconds, p50_ms, p99_ms)
