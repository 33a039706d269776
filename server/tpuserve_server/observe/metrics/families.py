"""Families: metrics with samples, and the buckets of a histogram that the metrics page shows."""

import functools
import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from tpuserve_server.observe.metrics.histogram import Histogram, TracedRequest


class Sample(NamedTuple):
    """A value on the page, with the names and values of its labels."""

    name: str
    labels: dict[str, str]
    value: float


class Buckets(NamedTuple):
    """The buckets of a histogram on the page: upper bounds as label values, cumulative counts, the sum of the values.

    `first` is the position of the first bucket in the histogram. The sum is None if values may be negative: it could
    fall, so Prometheus' formats forbid it.
    """

    limits: Sequence[str]
    counts: Sequence[int]
    first: int
    total: float | None


def shown_buckets(
    bounds: Sequence[float],
    limits: Sequence[str],
    counts: Sequence[int],
    total: float | None,
    omit_below: float,
) -> Buckets:
    """Return the buckets to show of a histogram, with cumulative `counts` by `limits`. None without a value.

    Buckets below the lowest value are omitted if their bound is below `omit_below`, except the last of them, in which
    that value's bucket begins. Decision 95 has the reasons for keeping the others.
    """
    if not counts[-1]:
        return Buckets((), (), 0, total)
    first = max(min(bisect_right(counts, 0) - 1, bisect_left(bounds, omit_below)), 0)
    return Buckets(limits[first:], counts[first:], first, total)


@functools.cache
def _limits(bounds: tuple[float, ...]) -> tuple[str, ...]:
    return (*(repr(float(bound)) for bound in bounds), "+Inf")


@dataclass(frozen=True, slots=True)
class Family:
    """A metric with a name that is public API. The names of counters end in `_total`.

    `bounds` selects some of the bounds of its histograms, so that one histogram can serve two metrics. None: all. The
    page omits buckets without a value whose bound is below `omit_below`.
    """

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    labels: tuple[str, ...]
    text: str
    bounds: tuple[float, ...] | None = None
    omit_below: float = -math.inf

    def buckets(self, histogram: Histogram) -> Buckets:
        """Return the buckets of one of its histograms."""
        bounds = self.bounds or tuple(histogram.bounds.tolist())
        counts, total = histogram.cumulative(self.bounds)
        return shown_buckets(bounds, _limits(bounds), counts, None if bounds[0] < 0 else total, self.omit_below)

    def valued(self, samples: Iterable[tuple[Sequence[str], float]]) -> "Collected":
        """Return the family as a counter or a gauge, with label values and a value for each sample."""
        return Collected(self, values=samples)

    def counted(self, samples: Iterable[tuple[Sequence[str], Histogram, Mapping[int, TracedRequest]]]) -> "Collected":
        """Return the family as histograms: label values, a histogram, and the exemplars of its buckets by position."""
        return Collected(self, histograms=samples)


@dataclass(frozen=True, slots=True)
class Collected:
    """A family with its samples. They may be read once, and are made meanwhile."""

    family: Family
    values: Iterable[tuple[Sequence[str], float]] = ()
    histograms: Iterable[tuple[Sequence[str], Histogram, Mapping[int, TracedRequest]]] = ()

    def samples(self) -> Iterator[Sample]:
        """Yield each value. The metrics page has a faster way for its lines."""
        family, name = self.family, self.family.name
        for values, value in self.values:
            yield Sample(name, dict(zip(family.labels, values, strict=True)), value)
        for values, histogram, _ in self.histograms:
            labels = dict(zip(family.labels, values, strict=True))
            buckets = self.family.buckets(histogram)
            for limit, count in zip(buckets.limits, buckets.counts, strict=True):
                yield Sample(f"{name}_bucket", {**labels, "le": limit}, count)
            if buckets.counts and buckets.total is not None:
                yield Sample(f"{name}_sum", labels, buckets.total)
                yield Sample(f"{name}_count", labels, buckets.counts[-1])
