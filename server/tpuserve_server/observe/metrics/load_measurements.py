"""Loads of versions by their path, for TensorFlow's metrics: attempts, their time, and the time in the executor."""

import threading
from collections.abc import Collection
from dataclasses import dataclass, replace

from tpuserve_server.core.terms.types import ServableId
from tpuserve_server.observe.metrics.histogram import MICROSECONDS, UPSTREAM_LATENCY_BOUNDS_US, Histogram


@dataclass(frozen=True, slots=True)
class VersionLoads:
    """The attempts to load a version. `path` is its directory, or its address in a store.

    `duration_s` is the time of all attempts without warm-up. `restores_us` has the executor's time of each attempt that
    succeeded, in microseconds.
    """

    path: str
    restores_us: Histogram
    succeeded: int = 0
    failed: int = 0
    duration_s: float = 0.0

    def plus(self, other: "VersionLoads") -> "VersionLoads":
        """Return the attempts of both, which have the same path."""
        restores_us = Histogram(UPSTREAM_LATENCY_BOUNDS_US)
        for loads in (self, other):
            restores_us.absorb(loads.restores_us)
        return VersionLoads(
            self.path,
            restores_us,
            self.succeeded + other.succeeded,
            self.failed + other.failed,
            self.duration_s + other.duration_s,
        )


class LoadMeasurements:
    """The attempts of each version, until `forget`. Thread-safe: `_lock` guards the records."""

    def __init__(self) -> None:
        """Start without attempts."""
        self._lock = threading.Lock()
        self._by_version: dict[ServableId, VersionLoads] = {}

    def loaded(self, servable: ServableId, path: str, *, duration_s: float, restore_s: float) -> None:
        """Record an attempt that succeeded."""
        with self._lock:
            loads = self._loads(servable, path)
            loads.restores_us.add(restore_s * MICROSECONDS)
            self._by_version[servable] = replace(
                loads, succeeded=loads.succeeded + 1, duration_s=loads.duration_s + duration_s
            )

    def failed(self, servable: ServableId, path: str, *, duration_s: float) -> None:
        """Record an attempt that failed."""
        with self._lock:
            loads = self._loads(servable, path)
            self._by_version[servable] = replace(
                loads, failed=loads.failed + 1, duration_s=loads.duration_s + duration_s
            )

    def forget(self, removed: Collection[ServableId]) -> None:
        """Remove the attempts of these versions."""
        with self._lock:
            for servable in removed:
                self._by_version.pop(servable, None)

    def by_path(self) -> list[VersionLoads]:
        """Return the attempts for each path. Several models may have the same versions."""
        with self._lock:
            versions = list(self._by_version.values())
        merged: dict[str, VersionLoads] = {}
        for loads in versions:
            known = merged.get(loads.path)
            merged[loads.path] = loads if known is None else known.plus(loads)
        return list(merged.values())

    def _loads(self, servable: ServableId, path: str) -> VersionLoads:
        """Return the attempts of a version, or none if its path has changed."""
        known = self._by_version.get(servable)
        return known if known and known.path == path else VersionLoads(path, Histogram(UPSTREAM_LATENCY_BOUNDS_US))
