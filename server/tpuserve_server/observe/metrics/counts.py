"""Counts by label values, created on first use."""

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from tpuserve_server.observe.metrics.limit import MOST_SERIES

Key = TypeVar("Key")


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
