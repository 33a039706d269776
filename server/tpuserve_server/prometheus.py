"""Metrics for Prometheus: the one place that imports prometheus_client. The names are public API (docs/serving.md).

prometheus_client's own instruments take a lock and look labels up at every use. These are collected by it instead, when
the page is asked for, from histograms that are cheap to add to.
"""

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, TypeAlias, TypeVar

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from tpuserve_server.core.errors import Code
from tpuserve_server.core.types import ServableId, State
from tpuserve_server.histogram import Histogram

_LATENCY_BOUNDS_S = (0.0005, 0.001, 0.002, 0.003, 0.005, 0.007, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)
_ROW_BOUNDS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
_PADDING_BOUNDS = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9)

_REQUEST_LABELS = ("model_name", "method", "protocol")
_BATCH_LABELS = ("model_name", "version", "signature")

_RequestKey: TypeAlias = tuple[str, str, str]
_BatchKey: TypeAlias = tuple[ServableId, str]
_Key = TypeVar("_Key")


class _Series(Generic[_Key]):
    """One histogram for each key."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._by_key: dict[_Key, Histogram] = {}

    def __getitem__(self, key: _Key) -> Histogram:
        found = self._by_key.get(key)
        # Two threads may make it at once; both get the one that was there first.
        return found if found is not None else self._by_key.setdefault(key, Histogram(self._bounds))

    def forget(self, is_gone: Callable[[_Key], bool]) -> None:
        for key in [key for key in list(self._by_key) if is_gone(key)]:
            self._by_key.pop(key, None)

    def family(
        self, name: str, text: str, labels: Sequence[str], values: Callable[[_Key], Sequence[str]]
    ) -> HistogramMetricFamily:
        family = HistogramMetricFamily(f"tpuserve_{name}", text, labels=labels)
        for key, histogram in list(self._by_key.items()):
            counts, total = histogram.cumulative()
            bounds = [*(repr(float(bound)) for bound in histogram.bounds), "+Inf"]
            family.add_metric(values(key), list(zip(bounds, counts, strict=True)), total)
        return family


class PrometheusMetrics(Collector):
    """Counts and times. Safe from any thread; never blocks for long. `_lock` guards the counters.

    What belongs to a version goes with it: a server that lives for a thousand roll-outs shows what it serves.
    """

    def __init__(self) -> None:
        """Nothing measured yet."""
        self.registry = CollectorRegistry()
        self.registry.register(self)
        self._lock = threading.Lock()
        self._requests: Counter[tuple[str, str, str, Code]] = Counter()
        self._dropped: Counter[tuple[ServableId, str]] = Counter()
        self._states: dict[ServableId, State] = {}
        self._latency = _Series[_RequestKey](_LATENCY_BOUNDS_S)
        self._queue_wait = _Series[_BatchKey](_LATENCY_BOUNDS_S)
        self._run = _Series[_BatchKey](_LATENCY_BOUNDS_S)
        self._rows = _Series[_BatchKey](_ROW_BOUNDS)
        self._padding = _Series[_BatchKey](_PADDING_BOUNDS)

    def request_finished(self, *, model: str, method: str, protocol: str, code: Code, latency_s: float) -> None:
        """A front-end answered."""
        with self._lock:
            self._requests[model, method, protocol, code] += 1
        self._latency[model, method, protocol].add(latency_s)

    def batch_finished(
        self,
        *,
        servable: ServableId,
        signature: str,
        rows: int,
        bucket: int,
        queue_waits_s: Sequence[float],
        run_s: float,
    ) -> None:
        """A batch ran."""
        key = (servable, signature)
        self._rows[key].add(rows)
        self._padding[key].add((bucket - rows) / bucket if bucket else 0.0)
        self._run[key].add(run_s)
        self._queue_wait[key].add_all(queue_waits_s)

    def task_dropped(self, *, servable: ServableId, reason: str) -> None:
        """A queued request left before it ran."""
        with self._lock:
            self._dropped[servable, reason] += 1

    def version_changed(self, *, servable: ServableId, state: State) -> None:
        """A version entered `state`; at its end its series end too, but for one that says so."""
        with self._lock:
            self._states[servable] = state
            if state is not State.END:
                return
            for key in [key for key in self._dropped if key[0] == servable]:
                del self._dropped[key]
            for older in [id_ for id_ in self._ended() if id_.name == servable.name and id_ != servable]:
                del self._states[older]
        for series in (self._queue_wait, self._run, self._rows, self._padding):
            series.forget(lambda key: key[0] == servable)

    def render(self) -> tuple[bytes, str]:
        """The exposition text and its content type."""
        return generate_latest(self.registry), CONTENT_TYPE_LATEST

    def collect(self) -> Iterator[Metric]:
        """Every family as it is now. Called by the registry."""
        yield self._requests_family()
        yield self._latency.family("request_latency_seconds", "Request to response.", _REQUEST_LABELS, lambda key: key)
        for series, name, text in (
            (self._queue_wait, "queue_wait_seconds", "Arrival to batch."),
            (self._run, "batch_run_seconds", "A batch on the device."),
            (self._rows, "batch_rows", "Real rows of a batch."),
            (self._padding, "batch_padding_ratio", "Padded share of a batch."),
        ):
            yield series.family(name, text, _BATCH_LABELS, lambda key: (*_of(key[0]), key[1]))
        yield self._dropped_family()
        yield self._states_family()

    def _ended(self) -> list[ServableId]:
        return [servable for servable, state in self._states.items() if state is State.END]

    def _requests_family(self) -> Metric:
        text = "Requests answered, by canonical code."
        family = CounterMetricFamily("tpuserve_requests", text, labels=[*_REQUEST_LABELS, "code"])
        with self._lock:
            counts = dict(self._requests)
        for (model, method, protocol, code), count in counts.items():
            family.add_metric([model, method, protocol, code.name], count)
        return family

    def _dropped_family(self) -> Metric:
        text = "Requests that left the queue before they ran: expired, cancelled, queue_full."
        family = CounterMetricFamily("tpuserve_dropped_requests", text, labels=["model_name", "version", "reason"])
        with self._lock:
            counts = dict(self._dropped)
        for (servable, reason), count in counts.items():
            family.add_metric([*_of(servable), reason], count)
        return family

    def _states_family(self) -> Metric:
        text = "State of a version: 10 START, 20 LOADING, 30 AVAILABLE, 40 UNLOADING, 50 END."
        family = GaugeMetricFamily("tpuserve_version_state", text, labels=["model_name", "version"])
        with self._lock:
            states = dict(self._states)
        for servable, state in states.items():
            family.add_metric(_of(servable), state)
        return family


def _of(servable: ServableId) -> tuple[str, str]:
    return servable.name, str(servable.version)
