"""Latencies by the million in bounded memory: an HDR histogram whose percentiles are read with numpy.

Three digits from a microsecond to an hour. Histograms of several windows, protocols, processes or machines add up to
the one that would have been, had all been recorded at one place.
"""

from typing import Self, TypeAlias

import numpy as np
from hdrh.histogram import HdrHistogram  # type: ignore[import-untyped]  # ships no annotations
from numpy.typing import NDArray

HIGHEST_US = 3_600_000_000
SIGNIFICANT_DIGITS = 3

Counts: TypeAlias = NDArray[np.int64]


class LatencyHistogram:
    """Counts of latencies in whole microseconds. Belongs to one thread."""

    def __init__(self) -> None:
        self.max_us = 0
        self._hdr = HdrHistogram(1, HIGHEST_US, SIGNIFICANT_DIGITS)

    @property
    def count(self) -> int:
        """How many were recorded."""
        return int(self._hdr.total_count)

    def record(self, latency_us: float, count: int = 1) -> None:
        """Count a latency, `count` times; below a microsecond it is one, beyond an hour an hour."""
        value = min(max(round(latency_us), 1), HIGHEST_US)
        if value > self.max_us:
            self.max_us = value
        self._hdr.record_value(value, count)

    def add(self, other: "LatencyHistogram") -> None:
        """Merge another one into this."""
        self.max_us = max(self.max_us, other.max_us)
        if other.count:
            self._hdr.add(other._hdr)

    def percentile_us(self, percent: float) -> int | None:
        """The smallest latency that `percent` percent (0 to 100) do not exceed; None where nothing was recorded."""
        if not self.count:
            return None
        # The product may lie a rounding above a whole number: 99.9 % of 1,000 are 999.
        return self.value_at_rank(int(np.ceil(self.count * percent / 100 - 1e-6)))

    def value_at_rank(self, rank: int) -> int:
        """The `rank`-th smallest latency in microseconds, counted from 1; at least one was recorded."""
        ends = np.cumsum(self._counts())
        index = int(np.searchsorted(ends, min(max(rank, 1), self.count)))
        # The histogram answers with the top of the bucket, which may lie above everything that was recorded.
        return min(int(self._hdr.get_highest_equivalent_value(self._hdr.get_value_from_index(index))), self.max_us)

    def count_above(self, latency_us: float) -> int:
        """How many exceed a latency, exact to the histogram's three digits."""
        if latency_us >= self.max_us:
            return 0
        bucket = int(self._hdr._counts_index_for(max(int(latency_us), 1)))
        return int(self._counts()[bucket + 1 :].sum())

    def mean_us(self) -> float | None:
        """The mean; None where nothing was recorded."""
        if not self.count:
            return None
        values, counts = self.recorded()
        return min(float(np.average(values, weights=counts)), float(self.max_us))

    def deviation_us(self) -> float:
        """The standard deviation; 0 where nothing was recorded."""
        if not self.count:
            return 0.0
        values, counts = self.recorded()
        mean = np.average(values, weights=counts)
        return float(np.sqrt(np.average((values - mean) ** 2, weights=counts)))

    def recorded(self) -> tuple[Counts, Counts]:
        """Latencies that occur, in microseconds and ascending, and how often each does; int64[n] both."""
        counts = self._counts()
        indexes = np.flatnonzero(counts)
        # As HdrHistogram.get_value_from_index, for all of them: the first bucket is twice as long as those that follow.
        half_bits = int(self._hdr.sub_bucket_half_count_magnitude)
        buckets = np.maximum((indexes >> half_bits) - 1, 0)
        return (indexes - (buckets << half_bits)) << buckets, counts[indexes]

    def encode(self) -> bytes:
        """As HdrHistogram's compressed V2 format, in base64: what its tools in all languages read."""
        encoded: bytes = self._hdr.encode()
        return encoded

    @classmethod
    def decode(cls, encoded: bytes, max_us: int) -> Self:
        """What `encode` made; `max_us` is the largest latency, which the format keeps to three digits only."""
        histogram = cls()
        histogram._hdr.decode_and_add(encoded)
        histogram.max_us = max_us
        return histogram

    def _counts(self) -> Counts:
        return np.frombuffer(self._hdr.counts, np.int64)
