"""Histogram with cheap additions: values wait in a queue and are counted a thousand or more at a time."""

import itertools
import threading
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, Self, TypeAlias

import numpy as np

BucketCounts: TypeAlias = np.ndarray[tuple[int], np.dtype[np.int64]]

# Counting this many values at once takes about 50 us. Histograms that get values together have different lengths.
# Otherwise a dozen of them would count in the same moment, which may be on an event loop.
_LONG_QUEUE = 1000
_LONGER_BY, _LENGTHS = 64, 11
_numbers = itertools.count()
# Shorter arrays wait in the queue too, because counting an array takes about 10 us at any length.
_LONG_ARRAY = 200


class Histogram:
    """Counts of values by upper bound. Thread-safe: a deque's append is atomic, and `_counting` guards the counts."""

    def __init__(self, bounds: Sequence[float]) -> None:
        """Create an empty histogram. `bounds` ascend, and include values equal to them, as in Prometheus."""
        self.bounds = np.asarray(bounds, np.float64)
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
