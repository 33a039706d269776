"""Latencies of a running load in logarithmic buckets, for progress lines and pushed metrics.

Recording a latency costs a fraction of LatencyHistogram.record, so that each request is recorded in both. Reports use
LatencyHistogram, which is ten times as exact.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Self

import numpy as np

from tpuserve_loadtests.statistics.histogram import HIGHEST_US, Counts

# Buckets of a doubling, which makes them 1.1 % wide.
STEPS: Final = 64
# Bucket 0 ends at 2 ** -10 ms, below a microsecond.
_AT_1_MS: Final = 10 * STEPS
_SHIFT: Final = _AT_1_MS - STEPS * math.log2(1000)
_LAST: Final = math.ceil(STEPS * math.log2(HIGHEST_US) + _SHIFT)
# Large enough to share the cost of numpy's calls, small enough to delay no request by 0.1 ms.
_MOST_WAITING: Final = 1024


def _none() -> Counts:
    return np.zeros(_LAST + 1, np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class LiveLatencies:
    """Counts of latencies by bucket, and their sum in whole microseconds.

    Bucket i ends at 2 ** (i / 64 - 10) milliseconds.
    """

    counts: Counts = field(default_factory=_none)
    sum_us: int = 0

    @property
    def count(self) -> int:
        return int(self.counts.sum())

    def since(self, earlier: "LiveLatencies") -> "LiveLatencies":
        return LiveLatencies(self.counts - earlier.counts, self.sum_us - earlier.sum_us)

    def __add__(self, other: "LiveLatencies") -> "LiveLatencies":
        return LiveLatencies(self.counts + other.counts, self.sum_us + other.sum_us)

    def percentile_ms(self, percent: float, failures: int = 0) -> float | None:
        """Return a percentile (0 to 100) in milliseconds with an error of at most 0.6 %.

        `failures` count as late. Returns None without latencies, and for a percentile among the failures.
        """
        ends = np.cumsum(self.counts)
        # Rounding can put the product slightly above a whole number, as in LatencyHistogram.
        rank = math.ceil((ends[-1] + failures) * percent / 100 - 1e-6)
        if not ends[-1] or rank > ends[-1]:
            return None
        bucket = int(np.searchsorted(ends, rank))
        # The geometric middle of the bucket.
        return float(2 ** ((bucket - 0.5 - _AT_1_MS) / STEPS))

    def cumulative(self, exponents: Sequence[int]) -> list[int]:
        """Return the exact numbers of latencies up to 2 ** exponent milliseconds, for exponents from -10 to 21."""
        ends = np.cumsum(self.counts)
        return [int(ends[_AT_1_MS + STEPS * each]) for each in exponents]

    def to_wire(self) -> list[Any]:  # plain values of several types
        """Return a document for `from_wire`, which msgpack can encode."""
        return [self.counts.tobytes(), self.sum_us]

    @classmethod
    def from_wire(cls, document: list[Any]) -> Self:
        """Return the latencies that `to_wire` encoded."""
        counts, sum_us = document
        return cls(np.frombuffer(counts, np.int64), sum_us)


class LiveLatencyRecorder:
    """Recorder of latencies. Belongs to one thread."""

    def __init__(self) -> None:
        self._state = LiveLatencies()
        # Latencies in microseconds that `_state` does not have yet. A list costs a tenth of a bucket per request.
        self._waiting: list[float] = []

    def record(self, latency_us: float) -> None:
        """Count a latency. Values are limited to the range from a microsecond to an hour."""
        self._waiting.append(latency_us)
        if len(self._waiting) >= _MOST_WAITING:
            self.state()

    def state(self) -> LiveLatencies:
        if self._waiting:
            values = np.clip(np.array(self._waiting), 1, HIGHEST_US)
            buckets = np.ceil(STEPS * np.log2(values) + _SHIFT).astype(np.int64)
            counts = np.bincount(buckets, minlength=_LAST + 1)
            self._state += LiveLatencies(counts, int(np.rint(values).sum()))
            self._waiting.clear()
        return self._state
