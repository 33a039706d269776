"""Measurements of batches, for both families of metrics. A batch is recorded when it ends, and counted later."""

import itertools
import threading
from collections import deque
from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np

from tpuserve_server.core.terms.types import ServableId
from tpuserve_server.observe.metrics import catalogue
from tpuserve_server.observe.metrics.families import Family
from tpuserve_server.observe.metrics.histogram import (
    ERROR_BOUNDS_S,
    LATENCY_BOUNDS_S,
    MICROSECONDS,
    PADDING_BOUNDS,
    RATIO_BOUNDS,
    ROW_BOUNDS,
    UPSTREAM_LATENCY_BOUNDS_US,
    UPSTREAM_QUEUE_BOUNDS_US,
    UPSTREAM_ROW_BOUNDS,
    UPSTREAM_RUN_BOUNDS_US,
)
from tpuserve_server.observe.metrics.series import OTHER, ModelPlaces, Places, Series, fold_servable

# Number of batches to count at once, on the device thread that recorded the last. This takes 0.1 ms, or 0.3 ms if each
# batch had 32 requests.
_MOST_NOTED = 64


class BatchKey(NamedTuple):
    """Key of a series of batches."""

    servable: ServableId
    signature: str


class RunKey(NamedTuple):
    """Key of a series of runs. For batches of any size, `bucket` is the next power of two, which limits the series."""

    servable: ServableId
    signature: str
    bucket: int


class FinishedBatch(NamedTuple):
    """Measurements of one batch; see Metrics.batch_finished. `ended_s` counts from 1970."""

    servable: ServableId
    signature: str
    api: str
    task_rows: Sequence[int]
    bucket: int
    queue_waits_s: Sequence[float]
    run_s: float
    expected_s: float
    has_buckets: bool
    ended_s: float


class BatchMeasurements:
    """Histograms of batches. Thread-safe: a deque's append is atomic, and `_counting` guards the count."""

    def __init__(self, models: ModelPlaces) -> None:
        """Create empty histograms."""

        def of_signatures(bounds: Sequence[float], family: Family) -> Series[BatchKey]:
            return Series(bounds, Places(family.name, _model_of, fold_batch, models))

        self._noted: deque[FinishedBatch] = deque()
        self._counting = threading.Lock()
        # Sums over the requests of a version: each counts the duration of its batch.
        self._compute_s: dict[BatchKey, float] = {}
        self._last_ended_s: dict[ServableId, float] = {}
        self.queue_wait = of_signatures(LATENCY_BOUNDS_S, catalogue.QUEUE_WAIT)
        self.run = Series[RunKey](LATENCY_BOUNDS_S, Places(catalogue.BATCH_RUN.name, _model_of, _fold_run, models))
        self.run_ratio = of_signatures(RATIO_BOUNDS, catalogue.BATCH_RUN_RATIO)
        self.finish_error = of_signatures(ERROR_BOUNDS_S, catalogue.FINISH_ERROR)
        self.rows = of_signatures(ROW_BOUNDS, catalogue.BATCH_ROWS)
        self.padding = of_signatures(PADDING_BOUNDS, catalogue.BATCH_PADDING)
        # Upstream's histograms of batches, in its units: by model and API, by padded size, or without a key.
        self.runtime = Series[tuple[str, str]](
            UPSTREAM_LATENCY_BOUNDS_US,
            Places(catalogue.UPSTREAM_RUNTIME, lambda key: key[0], lambda key, model: (model, key[1]), models),
        )
        self.queuing = Series[None](UPSTREAM_QUEUE_BOUNDS_US)
        self.padding_rows = Series[int](UPSTREAM_ROW_BOUNDS)
        self.request_rows = Series[None](UPSTREAM_ROW_BOUNDS)
        self.batch_rows = Series[None](UPSTREAM_ROW_BOUNDS)
        self.graph_runs = Series[None](UPSTREAM_RUN_BOUNDS_US)

    def note(self, batch: FinishedBatch) -> None:
        """Record one batch. Cheap, because the dozen histograms are updated for many batches at a time."""
        self._noted.append(batch)
        if len(self._noted) >= _MOST_NOTED:
            self.count()

    def count(self) -> None:
        """Update the histograms with the batches recorded so far."""
        with self._counting:
            groups: dict[tuple[ServableId, str, str], list[FinishedBatch]] = {}
            for _ in range(len(self._noted)):
                batch = self._noted.popleft()
                groups.setdefault(batch[:3], []).append(batch)
            for (servable, signature, api), batches in groups.items():
                self._count_group(servable, signature, api, batches)

    def forget(self, removed: Collection[ServableId]) -> None:
        """Remove the series of these versions. Upstream's metrics stay, because they are by model and must not fall."""
        self.count()
        for series in (self.queue_wait, self.run_ratio, self.finish_error, self.rows, self.padding):
            series.take(lambda key: key.servable in removed)
        self.run.take(lambda key: key.servable in removed)
        with self._counting:
            for key in [key for key in self._compute_s if key.servable in removed]:
                del self._compute_s[key]
            for servable in removed:
                self._last_ended_s.pop(servable, None)

    def last_ended_s(self, servable: ServableId) -> float:
        """Return when the last batch of a version ended, in seconds since 1970, or 0."""
        with self._counting:
            return self._last_ended_s.get(servable, 0.0)

    def busy_s(self) -> dict[ServableId, float]:
        """Return the seconds in which batches of each version ran."""
        busy_s: dict[ServableId, float] = {}
        for key, histogram in self.run.items():
            busy_s[key.servable] = busy_s.get(key.servable, 0.0) + histogram.number_and_sum()[1]
        return busy_s

    def compute_s(self) -> dict[BatchKey, float]:
        """Return the durations of batches in seconds, each multiplied by the number of its requests."""
        with self._counting:
            return dict(self._compute_s)

    def _count_group(self, servable: ServableId, signature: str, api: str, batches: Sequence[FinishedBatch]) -> None:
        key = BatchKey(servable, signature)
        buckets = np.array([batch.bucket for batch in batches])
        rows = np.array([sum(batch.task_rows) for batch in batches])
        runs_s = np.array([batch.run_s for batch in batches])
        expected_s = np.array([batch.expected_s for batch in batches])
        waits_s = _flat([batch.queue_waits_s for batch in batches])
        latencies_s = waits_s + np.repeat(runs_s, [len(batch.queue_waits_s) for batch in batches])
        self._last_ended_s[servable] = max(self._last_ended_s.get(servable, 0.0), batches[-1].ended_s)
        compute_s = float(latencies_s.sum() - waits_s.sum())
        self._compute_s[key] = self._compute_s.get(key, 0.0) + compute_s
        self.rows[key].add_array(rows)
        self.padding[key].add_array((buckets - rows) / np.maximum(buckets, 1))
        self.queue_wait[key].add_array(waits_s)
        self.run_ratio[key].add_array(runs_s[expected_s > 0] / expected_s[expected_s > 0])
        self.runtime[servable.name, api].add_array(latencies_s * MICROSECONDS)
        self.queuing[None].add_array(waits_s * MICROSECONDS)
        self.request_rows[None].add_array(_flat([batch.task_rows for batch in batches]))
        self.batch_rows[None].add_array(buckets)
        self.graph_runs[None].add_array(runs_s * MICROSECONDS)
        for bucket in {batch.bucket for batch in batches}:
            chosen = buckets == bucket
            label = bucket if batches[0].has_buckets else _power_of_two(bucket)
            self.run[RunKey(servable, signature, label)].add_array(runs_s[chosen])
            self.padding_rows[label].add_array(bucket - rows[chosen])


def fold_batch(_: BatchKey, model: str) -> BatchKey:
    """Return the key of all further signatures of a model, or of all further models."""
    return BatchKey(fold_servable(model), OTHER)


def _fold_run(key: RunKey, model: str) -> RunKey:
    return RunKey(fold_servable(model), OTHER, _power_of_two(key.bucket))


def _model_of(key: BatchKey | RunKey) -> str:
    return key.servable.name


def _flat(lists: Sequence[Sequence[float]]) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
    return np.fromiter(itertools.chain.from_iterable(lists), np.float64)


def _power_of_two(rows: int) -> int:
    """Return the lowest power of two that is at least `rows`; 0 for no rows."""
    return 1 << (rows - 1).bit_length() if rows > 0 else 0
