"""Exemplars: the last traced request in each bucket of each latency histogram."""

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from typing import Generic, NamedTuple, TypeVar

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
