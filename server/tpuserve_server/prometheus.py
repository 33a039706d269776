"""Metrics for Prometheus: the one place that imports prometheus_client. The names are public API (docs/serving.md).

What a request or a batch measures is put into a queue, which costs it a tenth of prometheus_client's own locks and
label look-ups; the queues are emptied when the page is asked for, or when one is long.
"""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeAlias, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from tpuserve_server.core.errors import Code
from tpuserve_server.core.types import ServableId, State

_LATENCY_BUCKETS_S = (0.0005, 0.001, 0.002, 0.003, 0.005, 0.007, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)
_ROW_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
_PADDING_BUCKETS = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9)

# Measurements that wait in one queue at most: 10,000 floats.
_LONG_QUEUE = 10_000

_Measured = TypeVar("_Measured")
_RequestKey: TypeAlias = tuple[str, str, str, Code]
_BatchKey: TypeAlias = tuple[ServableId, str]
# Rows, bucket, queue waits in seconds, run time in seconds.
_Batch: TypeAlias = tuple[int, int, Sequence[float], float]


class PrometheusMetrics:
    """Counts and times into a registry of its own. Safe from any thread; never blocks for long.

    Appending to a queue needs no lock: deque's operations are atomic. `_emptying` lets one thread empty them at a time.
    """

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
        self._emptying = threading.Lock()
        self._measured_requests: dict[_RequestKey, deque[float]] = {}
        self._measured_batches: dict[_BatchKey, deque[_Batch]] = {}

    def request_finished(self, *, model: str, method: str, protocol: str, code: Code, latency_s: float) -> None:
        """A front-end answered."""
        key = (model, method, protocol, code)
        queue = self._measured_requests.get(key)
        if queue is None:
            queue = self._measured_requests.setdefault(key, deque())
        queue.append(latency_s)
        if len(queue) > _LONG_QUEUE:
            self._empty_queues()

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
        queue = self._measured_batches.get((servable, signature))
        if queue is None:
            queue = self._measured_batches.setdefault((servable, signature), deque())
        queue.append((rows, bucket, queue_waits_s, run_s))
        if len(queue) > _LONG_QUEUE:
            self._empty_queues()

    def task_dropped(self, *, servable: ServableId, reason: str) -> None:
        """A queued request left before it ran."""
        self._dropped.labels(servable.name, str(servable.version), reason).inc()

    def version_changed(self, *, servable: ServableId, state: State) -> None:
        """A version entered `state`."""
        self._state.labels(servable.name, str(servable.version)).set(state)

    def render(self) -> tuple[bytes, str]:
        """The exposition text and its content type."""
        self._empty_queues()
        return generate_latest(self.registry), CONTENT_TYPE_LATEST

    def _empty_queues(self) -> None:
        with self._emptying:
            for (model, method, protocol, code), latencies in list(self._measured_requests.items()):
                latency = self._latency.labels(model, method, protocol)
                count = _drain(latencies, latency.observe)
                self._requests.labels(model, method, protocol, code.name).inc(count)
            for (servable, signature), batches in list(self._measured_batches.items()):
                _drain(batches, self._batch_observer(servable, signature))

    def _batch_observer(self, servable: ServableId, signature: str) -> Callable[[_Batch], None]:
        labels = (servable.name, str(servable.version), signature)
        rows_, padding, run = self._rows.labels(*labels), self._padding.labels(*labels), self._run.labels(*labels)
        queue_wait = self._queue_wait.labels(*labels)

        def observe(batch: _Batch) -> None:
            rows, bucket, waits_s, run_s = batch
            rows_.observe(rows)
            padding.observe((bucket - rows) / bucket)
            run.observe(run_s)
            for wait_s in waits_s:
                queue_wait.observe(wait_s)

        return observe

    def _histogram(self, name: str, text: str, labels: Sequence[str], buckets: Sequence[float]) -> Histogram:
        return Histogram(f"tpuserve_{name}", text, labels, buckets=buckets, registry=self.registry)


def _drain(queue: deque[_Measured], observe: Callable[[_Measured], None]) -> int:
    """Observe what is in the queue now, and say how much that was; what comes meanwhile waits."""
    count = len(queue)
    for _ in range(count):
        observe(queue.popleft())
    return count
