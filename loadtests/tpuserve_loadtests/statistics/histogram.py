"""Latency histograms in bounded memory: HDR histograms, with percentiles computed by numpy.

They keep three digits from a microsecond to an hour. Merged histograms of windows, protocols, processes or machines
equal a single histogram of all values.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, Self, TypeAlias

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
        return int(self._hdr.total_count)

    def record(self, latency_us: float, count: int = 1) -> None:
        """Count a latency `count` times. Values are limited to the range from a microsecond to an hour."""
        value = min(max(round(latency_us), 1), HIGHEST_US)
        if value > self.max_us:
            self.max_us = value
        self._hdr.record_value(value, count)

    def add(self, other: "LatencyHistogram") -> None:
        self.max_us = max(self.max_us, other.max_us)
        if other.count:
            self._hdr.add(other._hdr)

    def percentile_us(self, percent: float) -> int | None:
        """Return the smallest latency in microseconds that `percent` percent (0 to 100) do not exceed.

        Returns None for an empty histogram.
        """
        if not self.count:
            return None
        # Rounding can put the product slightly above a whole number: 99.9 % of 1,000 is 999.
        return self.value_at_rank(int(np.ceil(self.count * percent / 100 - 1e-6)))

    def value_at_rank(self, rank: int) -> int:
        """Return the latency of a rank in microseconds, where rank 1 is the smallest. Requires a recorded latency."""
        ends = np.cumsum(self._counts())
        index = int(np.searchsorted(ends, min(max(rank, 1), self.count)))
        # HdrHistogram returns the top of the bucket, which can exceed every recorded value.
        return min(int(self._hdr.get_highest_equivalent_value(self._hdr.get_value_from_index(index))), self.max_us)

    def count_above(self, latency_us: float) -> int:
        """Return the number of latencies above a limit, exact to the histogram's three digits."""
        if latency_us >= self.max_us:
            return 0
        bucket = int(self._hdr._counts_index_for(max(int(latency_us), 1)))
        return int(self._counts()[bucket + 1 :].sum())

    def mean_us(self) -> float | None:
        """Return the mean in microseconds, or None for an empty histogram."""
        if not self.count:
            return None
        values, counts = self.recorded()
        return min(float(np.average(values, weights=counts)), float(self.max_us))

    def deviation_us(self) -> float:
        """Return the standard deviation in microseconds, or 0 for an empty histogram."""
        if not self.count:
            return 0.0
        values, counts = self.recorded()
        mean = np.average(values, weights=counts)
        return float(np.sqrt(np.average((values - mean) ** 2, weights=counts)))

    def recorded(self) -> tuple[Counts, Counts]:
        """Return the distinct latencies in microseconds, ascending, and their counts; both int64[n]."""
        counts = self._counts()
        indexes = np.flatnonzero(counts)
        # A vectorized HdrHistogram.get_value_from_index. The first bucket is twice as long as the next ones.
        half_bits = int(self._hdr.sub_bucket_half_count_magnitude)
        buckets = np.maximum((indexes >> half_bits) - 1, 0)
        return (indexes - (buckets << half_bits)) << buckets, counts[indexes]

    def encode(self) -> bytes:
        """Encode in HdrHistogram's compressed V2 format, in base64, which its tools in all languages read."""
        encoded: bytes = self._hdr.encode()
        return encoded

    @classmethod
    def merged(cls, histograms: "Iterable[LatencyHistogram]") -> Self:
        """Return the sum of histograms."""
        merged = cls()
        for histogram in histograms:
            merged.add(histogram)
        return merged

    @classmethod
    def decode(cls, encoded: bytes, max_us: int) -> Self:
        """Decode a histogram from `encode`.

        `max_us` is the largest latency, which the format rounds to three digits.
        """
        histogram = cls()
        histogram._hdr.decode_and_add(encoded)
        histogram.max_us = max_us
        return histogram

    def _counts(self) -> Counts:
        return np.frombuffer(self._hdr.counts, np.int64)


# Levels per halving of the distance to 100 %, the default of HdrHistogram's tools.
_TICKS: Final = 5


@dataclass(frozen=True, slots=True)
class Level:
    """A level: `count` requests, the share `part` (0 to 1) of all, took at most `latency_us`."""

    part: float
    latency_us: int
    count: int


def percentile_curve(histogram: LatencyHistogram) -> list[Level]:
    """Return levels from 0 to 1, ascending, or none for an empty histogram."""
    total = histogram.count
    if not total:
        return []
    found = []
    for part in [*_parts(total), 1.0]:
        latency_us = histogram.percentile_us(100 * part)
        assert latency_us is not None  # something was recorded
        found.append(Level(part, latency_us, total - histogram.count_above(latency_us)))
    return found


def _parts(total: int) -> Iterator[float]:
    distance = 1.0
    while True:
        for tick in range(_TICKS):
            left = distance * (1 - tick / (2 * _TICKS))
            if left * total < 1:
                return
            yield 1 - left
        distance /= 2
