"""Metrics for Prometheus: the one place that imports prometheus_client. The names are public API (docs/serving.md)."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from tpuserve_server.core.errors import Code
from tpuserve_server.core.types import ServableId, State

_LATENCY_BUCKETS_S = (0.0005, 0.001, 0.002, 0.003, 0.005, 0.007, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)
_ROW_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
_PADDING_BUCKETS = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9)

_Child = TypeVar("_Child")


class PrometheusMetrics:
    """Counts and times into a registry of its own. Safe from any thread; never blocks for long."""

    def __init__(self) -> None:
        """Nothing measured yet."""
        # The time a series began, beside each: nobody asks for it, and it doubles the page.
        disable_created_metrics()  # type: ignore[no-untyped-call]  # without annotations upstream
        self.registry = CollectorRegistry()
        request = ("model_name", "method", "protocol")
        batch = ("model_name", "version", "signature")
        self._requests = Counter(
            "tpuserve_requests", "Requests answered, by canonical code.", (*request, "code"), registry=self.registry
        )
        self._latency = self._histogram("request_latency_seconds", "Request to response.", request, _LATENCY_BUCKETS_S)
        self._queue_wait = self._histogram("queue_wait_seconds", "Arrival to batch.", batch, _LATENCY_BUCKETS_S)
        self._run = self._histogram("batch_run_seconds", "A batch on the device.", batch, _LATENCY_BUCKETS_S)
        self._rows = self._histogram("batch_rows", "Real rows of a batch.", batch, _ROW_BUCKETS)
        self._padding = self._histogram("batch_padding_ratio", "Padded share of a batch.", batch, _PADDING_BUCKETS)
        self._dropped = Counter(
            "tpuserve_dropped_requests",
            "Requests that left the queue before they ran: expired, cancelled, queue_full.",
            ("model_name", "version", "reason"),
            registry=self.registry,
        )
        self._state = Gauge(
            "tpuserve_version_state",
            "State of a version: 10 START, 20 LOADING, 30 AVAILABLE, 40 UNLOADING, 50 END.",
            ("model_name", "version"),
            registry=self.registry,
        )
        # prometheus_client looks a child up under a lock, by strings, at every use: 2 us that the hot path can keep.
        self._children: dict[tuple[object, ...], object] = {}

    def request_finished(self, *, model: str, method: str, protocol: str, code: Code, latency_s: float) -> None:
        """A front-end answered."""
        counter = self._child(self._requests.labels, model, method, protocol, code.name)
        counter.inc()
        latency = self._child(self._latency.labels, model, method, protocol)
        latency.observe(latency_s)

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
        labels = (servable.name, str(servable.version), signature)
        self._child(self._rows.labels, *labels).observe(rows)
        self._child(self._padding.labels, *labels).observe((bucket - rows) / bucket)
        self._child(self._run.labels, *labels).observe(run_s)
        queue_wait = self._child(self._queue_wait.labels, *labels)
        for wait_s in queue_waits_s:
            queue_wait.observe(wait_s)

    def task_dropped(self, *, servable: ServableId, reason: str) -> None:
        """A queued request left before it ran."""
        self._child(self._dropped.labels, servable.name, str(servable.version), reason).inc()

    def version_changed(self, *, servable: ServableId, state: State) -> None:
        """A version entered `state`."""
        self._state.labels(servable.name, str(servable.version)).set(state)

    def render(self) -> tuple[bytes, str]:
        """The exposition text and its content type."""
        return generate_latest(self.registry), CONTENT_TYPE_LATEST

    def _histogram(self, name: str, text: str, labels: Sequence[str], buckets: Sequence[float]) -> Histogram:
        return Histogram(f"tpuserve_{name}", text, labels, buckets=buckets, registry=self.registry)

    def _child(self, labels: Callable[..., _Child], *values: str) -> _Child:
        key = (labels.__self__, *values)  # type: ignore[attr-defined]  # a bound method, whose owner tells metrics apart
        found = self._children.get(key)
        if found is None:
            found = self._children[key] = labels(*values)
        return found  # type: ignore[return-value]  # filled by the same key alone
