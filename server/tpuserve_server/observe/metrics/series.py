"""Histograms by label values, created on first use."""

from collections.abc import Callable, Iterable, Sequence
from typing import Generic, TypeVar

from tpuserve_server.observe.metrics.histogram import Histogram
from tpuserve_server.observe.metrics.limit import MOST_SERIES

Key = TypeVar("Key")
_Group = TypeVar("_Group")


class Series(Generic[Key]):
    """One histogram for each key, up to a limit. Thread-safe."""

    def __init__(self, bounds: Sequence[float], other: Callable[[Key], Key] | None = None) -> None:
        """Create an empty series. `bounds` are those of each histogram.

        `other` returns the key that a new key shares with others beyond the limit. None: the keys are few.
        """
        self._bounds = bounds
        self._other = other
        self._by_key: dict[Key, Histogram] = {}
        # Returns the histogram of a key that has one, else None. Faster than indexing, for every request.
        self.find = self._by_key.get

    def __getitem__(self, key: Key) -> Histogram:
        """Return the key's histogram. A new key gets an empty one, or shares one beyond the limit."""
        found = self._by_key.get(key)
        return found if found is not None else self._by_key.setdefault(self.counted_as(key), Histogram(self._bounds))

    def counted_as(self, key: Key) -> Key:
        """Return the key, or the one that it shares with others."""
        if self._other is None or key in self._by_key or len(self._by_key) < MOST_SERIES:
            return key
        return self._other(key)

    def items(self) -> Sequence[tuple[Key, Histogram]]:
        """Return a snapshot of the keys and their histograms."""
        return list(self._by_key.items())

    def values(self) -> Sequence[Histogram]:
        """Return a snapshot of the histograms."""
        return list(self._by_key.values())

    def take(self, is_gone: Callable[[Key], bool]) -> list[tuple[Key, Histogram]]:
        """Remove and return the histograms whose key `is_gone`."""
        return [(key, self._by_key.pop(key)) for key in list(self._by_key) if is_gone(key)]


def summed(
    histograms: Iterable[tuple[Key, Histogram]], bounds: Sequence[float], group: Callable[[Key], _Group | None]
) -> dict[_Group, Histogram]:
    """Return the sums of histograms with the same `bounds`, by the `group` of each key. None omits a histogram."""
    sums: dict[_Group, Histogram] = {}
    for key, histogram in histograms:
        into = group(key)
        if into is not None:
            sums.setdefault(into, Histogram(bounds)).absorb(histogram)
    return sums
