"""Histograms by label values, created on first use."""

from collections.abc import Callable, Iterable, Sequence
from typing import Generic, TypeVar

from tpuserve_server.metrics.histogram import Histogram

Key = TypeVar("Key")
_Group = TypeVar("_Group")


class Series(Generic[Key]):
    """One histogram for each key. Thread-safe."""

    def __init__(self, bounds: Sequence[float]) -> None:
        """Create an empty series. `bounds` are those of each histogram."""
        self._bounds = bounds
        self._by_key: dict[Key, Histogram] = {}

    def __getitem__(self, key: Key) -> Histogram:
        """Return the key's histogram. A new key gets an empty one."""
        found = self._by_key.get(key)
        # Two threads may create it at the same time. Both get the one that was inserted first.
        return found if found is not None else self._by_key.setdefault(key, Histogram(self._bounds))

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
