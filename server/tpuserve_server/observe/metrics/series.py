"""Histograms and counts by label values, created on first use, up to a limit."""

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Generic, TypeVar

from tpuserve_server.core.terms.types import ServableId
from tpuserve_server.observe.metrics.histogram import Histogram

# Maximum number of series of one metric, plus a few with OTHER. A model may have thousands of signatures.
MOST_SERIES: Final = 1000
# Label value of all models, versions and signatures beyond the limit. No version has the number.
OTHER: Final = "other"
OTHER_VERSION: Final = -1
OTHER_SERVABLE: Final = ServableId(OTHER, OTHER_VERSION)


def version_label(version: int | None) -> str:
    """Return the label value of a version, which is None if the server found none."""
    if version is None:
        return ""
    return OTHER if version == OTHER_VERSION else str(version)


def servable_labels(servable: ServableId) -> tuple[str, str]:
    """Return the label values of a model and its version."""
    return servable.name, version_label(servable.version)


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


class Counts(Generic[Key]):
    """A count or a sum for each key, up to a limit. Thread-safe: `_lock` guards the counts."""

    def __init__(self, other: Callable[[Key], Key]) -> None:
        """Count nothing. `other` returns the key that a new key shares with others beyond the limit."""
        self._lock = threading.Lock()
        self._other = other
        self._by_key: dict[Key, float] = {}

    def add(self, key: Key, count: float = 1) -> None:
        """Add to the count of a key."""
        with self._lock:
            if key not in self._by_key and len(self._by_key) >= MOST_SERIES:
                key = self._other(key)
            self._by_key[key] = self._by_key.get(key, 0) + count

    def all(self) -> dict[Key, float]:
        """Return the count of each key."""
        with self._lock:
            return dict(self._by_key)

    def forget(self, is_gone: Callable[[Key], bool]) -> None:
        """Remove the keys that are gone."""
        with self._lock:
            for key in [key for key in self._by_key if is_gone(key)]:
                del self._by_key[key]
