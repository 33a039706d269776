"""Latency by percentile at the levels that a number of requests supports, with HdrHistogram's spacing."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from tpuserve_loadtests.statistics.histogram import LatencyHistogram

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
    """Yield levels below 1, as long as at least one request lies above."""
    distance = 1.0
    while True:
        for tick in range(_TICKS):
            left = distance * (1 - tick / (2 * _TICKS))
            if left * total < 1:
                return
            yield 1 - left
        distance /= 2
