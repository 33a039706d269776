"""Histograms by label values, made as they are first needed."""

from collections.abc import Callable, Iterable, Sequence
from typing import Generic, TypeVar

from tpuserve_server.metrics.histogram import Histogram

Key = TypeVar("Key")
_Group = TypeVar("_Group")


class Series(Generic[Key]):
    """One histogram for each key. Safe from any thread."""

    def __init__(self, bounds: Sequence[float]) -> None:
        """`bounds` as Histogram's."""
        self._bounds = bounds
        self._by_key: dict[Key, Histogram] = {}

    def __getitem__(self, key: Key) -> Histogram:
        """The key's histogram, new and empty if there was none."""
        found = self._by_key.get(key)
        # Two threads may make it at once; both get the one that was there first.
        return found if found is not None else self._by_key.setdefault(key, Histogram(self._bounds))

    def items(self) -> Sequence[tuple[Key, Histogram]]:
        """All of them as they are now."""
        return list(self._by_key.items())

    def values(self) -> Sequence[Histogram]:
        """The histograms as they are now."""
        return list(self._by_key.values())

    def take(self, is_gone: Callable[[Key], bool]) -> list[tuple[Key, Histogram]]:
        """Remove and return those whose key `is_gone`."""
        return [(key, self._by_key.pop(key)) for key in list(self._by_key) if is_gone(key)]


def summed(
    histograms: Iterable[tuple[Key, Histogram]], bounds: Sequence[float], group: Callable[[Key], _Group | None]
) -> dict[_Group, Histogram]:
    """Histograms over the same `bounds` added up by what `group` makes of their keys; None leaves one out."""
    sums: dict[_Group, Histogram] = {}
    for key, histogram in histograms:
        into = group(key)
        if into is not None:
            sums.setdefault(into, Histogram(bounds)).absorb(histogram)
    return sums
