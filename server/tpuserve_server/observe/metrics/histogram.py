"""Histogram with cheap additions: values wait in a queue and are counted a thousand or more at a time.

The bounds of all histograms, and exemplars of their buckets, are here too.
"""

import functools
import itertools
import threading
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, NamedTuple, Self, TypeAlias, TypeVar

import numpy as np

# Each bound is at most 2.5 times the one before it, which bounds the error of a percentile.
LATENCY_BOUNDS_S = (
    0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.003, 0.005, 0.007, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0,
)  # fmt: skip
ROW_BOUNDS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
PADDING_BOUNDS = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9)
# Actual time divided by expected time, with narrow buckets around 1.
RATIO_BOUNDS = (0.5, 0.75, 0.9, 0.95, 1.0, 1.05, 1.1, 1.25, 1.5, 2.0, 4.0)
# Actual time minus predicted time, in seconds. Late requests are above 0.
ERROR_BOUNDS_S = (-0.1, -0.05, -0.02, -0.01, -0.005, -0.002, -0.001, 0.0, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1)


def exponential(scale: float, growth: float, count: int) -> tuple[float, ...]:
    """Return TensorFlow's exponential buckets (tensorflow/core/lib/monitoring/sampler.cc), with the same rounding."""
    bounds = [scale]
    for _ in range(count - 1):
        bounds.append(bounds[-1] * growth)
    return tuple(bounds)


# TensorFlow Serving's bounds (servables/tensorflow/util.cc, batching/). Times are in microseconds.
UPSTREAM_LATENCY_BOUNDS_US = exponential(10, 1.8, 33)
UPSTREAM_QUEUE_BOUNDS_US = exponential(100, 1.2, 52)
UPSTREAM_EXAMPLE_BOUNDS = exponential(1, 2, 15)
UPSTREAM_ROW_BOUNDS = exponential(1, 2, 14)
# TensorFlow's bounds of runs (core/framework/metrics.cc).
UPSTREAM_RUN_BOUNDS_US = exponential(1000, 2, 20)

MICROSECONDS = 1e6
# The page omits shorter times that no value has.
MILLISECOND_S, MILLISECOND_US = 1e-3, 1e3
UPSTREAM_LATENCY_BOUNDS_S = tuple(bound / MICROSECONDS for bound in UPSTREAM_LATENCY_BOUNDS_US)
# One histogram serves both families: it counts by both sets of bounds, and a value is added once.
BOTH_LATENCY_BOUNDS_S = tuple(sorted({*LATENCY_BOUNDS_S, *UPSTREAM_LATENCY_BOUNDS_S}))


BucketCounts: TypeAlias = np.ndarray[tuple[int], np.dtype[np.int64]]
Bounds: TypeAlias = np.ndarray[tuple[int], np.dtype[np.float64]]

# Counting this many values at once takes about 50 us. Histograms that get values together have different lengths.
# Otherwise a dozen of them would count in the same moment, which may be on an event loop.
_LONG_QUEUE = 1000
_LONGER_BY, _LENGTHS = 64, 11
_numbers = itertools.count()
# Shorter arrays wait in the queue too, because counting an array takes about 10 us at any length.
_LONG_ARRAY = 200


@functools.cache
def _shared_array(bounds: tuple[float, ...]) -> Bounds:
    """Return the bounds as an array. The histograms of a thousand models have the same few bounds."""
    array = np.asarray(bounds, np.float64)
    array.setflags(write=False)
    return array


class Histogram:
    """Counts of values by upper bound. Thread-safe: a deque's append is atomic, and `_counting` guards the counts."""

    def __init__(self, bounds: Sequence[float]) -> None:
        """Create an empty histogram. `bounds` ascend, and include values equal to them, as in Prometheus."""
        self.bounds = _shared_array(tuple(bounds))
        self._queue: deque[float] = deque()
        self._longest = _LONG_QUEUE + _LONGER_BY * (next(_numbers) % _LENGTHS)
        self._counting = threading.Lock()
        self._counts = np.zeros(len(bounds) + 1, np.int64)
        self._number = 0
        self._sum = 0.0

    def add(self, value: float) -> None:
        """Add one value."""
        self._queue.append(value)
        if len(self._queue) >= self._longest:
            self._count()

    def add_all(self, values: Iterable[float]) -> None:
        """Add several values."""
        self._queue.extend(values)
        if len(self._queue) >= self._longest:
            self._count()

    def add_array(self, values: "np.ndarray[tuple[int], np.dtype[Any]]") -> None:
        """Add an array of values."""
        if len(values) < _LONG_ARRAY:
            self.add_all(values.tolist())
        else:
            with self._counting:
                self._add(values)

    def cumulative(self, bounds: Sequence[float] | None = None) -> tuple[list[int], float]:
        """Return the cumulative counts by bound, with the total count last, and the sum of the values.

        `bounds` selects some of the histogram's bounds, so that one histogram can serve two metrics.
        """
        counts, total = self._counted()
        chosen = slice(None) if bounds is None else [*np.searchsorted(self.bounds, bounds), len(self.bounds)]
        return np.cumsum(counts)[chosen].tolist(), total

    def counts(self) -> BucketCounts:
        """Return the count of each bucket, and that of the values above all bounds last."""
        return self._counted()[0]

    def total(self) -> int:
        """Return the number of values."""
        return self.number_and_sum()[0]

    def number_and_sum(self) -> tuple[int, float]:
        """Return the number and the sum of the values. Takes 0.3 us if no value is queued."""
        self._count()
        with self._counting:
            return self._number, self._sum

    def absorb(self, other: Self) -> None:
        """Add the counts of `other`, which has the same bounds."""
        counts, total = other._counted()
        with self._counting:
            self._counts += counts
            self._number += int(counts.sum())
            self._sum += total

    def _counted(self) -> tuple[BucketCounts, float]:
        self._count()
        with self._counting:
            return self._counts.copy(), self._sum

    def _count(self) -> None:
        if not self._queue:
            return
        with self._counting:
            values = np.array([self._queue.popleft() for _ in range(len(self._queue))])
            if values.size:
                self._add(values)

    def _add(self, values: "np.ndarray[tuple[int], np.dtype[Any]]") -> None:
        places = np.searchsorted(self.bounds, values, side="left")
        self._counts += np.bincount(places, minlength=len(self._counts))
        self._number += len(values)
        self._sum += float(values.sum())


Key = TypeVar("Key")


class TracedRequest(NamedTuple):
    """A traced request. `ended_s` counts from 1970."""

    trace_id: str
    latency_s: float
    ended_s: float


class Exemplars(Generic[Key]):
    """At most one request for each key and bucket. Thread-safe: each change is one operation on a dictionary."""

    def __init__(self, bounds: Sequence[float]) -> None:
        """Start without requests. `bounds` are the upper bounds of the buckets, except the infinite one."""
        self._bounds = bounds
        self._by_key: dict[Key, dict[int, TracedRequest]] = {}

    def add(self, key: Key, request: TracedRequest) -> None:
        """Keep a request in place of the last one in its bucket."""
        self._by_key.setdefault(key, {})[bisect_left(self._bounds, request.latency_s)] = request

    def by_bucket(self, key: Key) -> Mapping[int, TracedRequest]:
        """Return the requests of a key by the position of their bucket."""
        return dict(self._by_key.get(key, ()))

    def forget(self, is_gone: Callable[[Key], bool]) -> None:
        """Remove the keys that are gone."""
        for key in [key for key in list(self._by_key) if is_gone(key)]:
            self._by_key.pop(key, None)
