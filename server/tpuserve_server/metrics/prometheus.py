"""Metrics for Prometheus. Only this module imports prometheus_client.

The names are public API (docs/reference/metrics.md).

prometheus_client's own instruments take a lock and look up labels at every use. This module instead gives it the values
of cheaper histograms, when a client requests the page.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from tpuserve_server.core.types import ServableId
from tpuserve_server.metrics.batch_measurements import BatchKey, RunKey
from tpuserve_server.metrics.bounds import LATENCY_BOUNDS_S
from tpuserve_server.metrics.histogram import Histogram
from tpuserve_server.metrics.measurements import Measurements, RequestKey
from tpuserve_server.metrics.series import Key
from tpuserve_server.metrics.upstream import upstream_page

_REQUEST_LABELS = ("model_name", "version", "signature", "method", "protocol", "code")
_VERSION_LABELS = ("model_name", "version")
_BATCH_LABELS = (*_VERSION_LABELS, "signature")
_PADDING_TEXT = (
    "Rows of padding in a batch, divided by its rows with padding: 0 for a full batch, 0.25 for 6 rows in a batch of 8."
)
_FINISH_ERROR_TEXT = (
    "With a latency objective: actual finish of a request, minus the finish predicted at its arrival. Above 0, the "
    "request finished later than predicted. Values can be negative, so there is no sum, and the "
    "bucket +Inf is the count."
)
# Maximum number of sizes to show for a signature with batches of any size. Beyond it, only powers of two are shown.
_MOST_SIZES = 32


class PrometheusMetrics(Measurements, Collector):
    """Metrics page for Prometheus: this server's names, then TensorFlow Serving's. Dashboards for either work."""

    def __init__(self) -> None:
        """Create empty metrics and their registry."""
        super().__init__()
        self.registry = CollectorRegistry()
        self.registry.register(self)
        ProcessCollector(registry=self.registry)

    def render(self) -> tuple[bytes, str]:
        """Return the exposition text and its content type. Thread-safe."""
        return generate_latest(self.registry) + upstream_page(self).encode(), CONTENT_TYPE_LATEST

    def collect(self) -> Iterator[Metric]:
        """Yield this server's families with their current values. The registry calls this method."""
        yield from self._request_families()
        yield from self._batch_families()
        yield from self._cost_families()
        yield self._host_family()
        yield self._unwarmed_family()
        yield self._dropped_family()
        yield self._refused_family()
        yield from self._cache_families()
        yield self._states_family()
        yield self._warmups_family()
        yield from self._request_log_families()
        yield from self._device_families()

    def _request_families(self) -> Iterator[Metric]:
        requests = list(self.requests())
        counter = CounterMetricFamily(
            "tpuserve_requests", "Completed requests, by canonical code.", None, _REQUEST_LABELS
        )
        for key, histogram in requests:
            counter.add_metric(_request_labels(key), histogram.total())
        yield counter
        text = "Time from a request's arrival to its response."
        yield _histograms("request_latency_seconds", text, _REQUEST_LABELS, requests, _request_labels, LATENCY_BOUNDS_S)

    def _batch_families(self) -> Iterator[Metric]:
        batches = self.batches
        for series, name, text in (
            (batches.queue_wait, "queue_wait_seconds", "Time from a request's arrival to the start of its batch."),
            (batches.rows, "batch_rows", "Rows of a batch without padding."),
            (batches.padding, "batch_padding_ratio", _PADDING_TEXT),
            (
                batches.run_ratio,
                "batch_run_ratio",
                "Time of a batch on the device, divided by the expected time of its size.",
            ),
            (batches.finish_error, "finish_error_seconds", _FINISH_ERROR_TEXT),
        ):
            yield _histograms(name, text, _BATCH_LABELS, series.items(), _batch_labels)
        text = (
            "Time of a batch on the device. The label bucket is the number of rows with padding, or the next power of "
            "two for a signature without fixed sizes."
        )
        labels = (*_BATCH_LABELS, "bucket")
        yield _histograms("batch_run_seconds", text, labels, batches.run.items(), _run_labels)

    def _cost_families(self) -> Iterator[Metric]:
        """Yield the estimates of the cost model: for each size, and as a fitted line."""
        mean, spread, base, per_row = (
            GaugeMetricFamily(f"tpuserve_batch_cost_{name}", text, labels=[*_BATCH_LABELS, "lengths", *more])
            for name, text, more in (
                ("seconds", "Learned mean time of a batch of this size on the device.", ["bucket"]),
                ("spread_seconds", "Standard deviation of the time of a batch of this size.", ["bucket"]),
                ("base_seconds", "Constant part of the time of a batch, by the line fitted through the sizes.", []),
                ("row_seconds", "Time that each row adds to a batch, by the line fitted through the sizes.", []),
            )
        )
        for servable, curves in self.costs().items():
            for curve in curves:
                labels = [*_of(servable), curve.signature_name, ",".join(map(str, curve.lengths))]
                for cost in curve.shown(_MOST_SIZES):
                    mean.add_metric([*labels, str(cost.rows)], cost.mean_s)
                    spread.add_metric([*labels, str(cost.rows)], cost.spread_s)
                if curve.line is not None:
                    base.add_metric(labels, curve.line.t0_s)
                    per_row.add_metric(labels, curve.line.per_row_s)
        yield from (mean, spread, base, per_row)

    def _host_family(self) -> Metric:
        text = "Part of a latency objective that is reserved for work outside the batcher, learned from late responses."
        family = GaugeMetricFamily("tpuserve_objective_host_seconds", text, labels=_BATCH_LABELS)
        for key, host_s in self.host_allowances().items():
            family.add_metric(_batch_labels(key), host_s)
        return family

    def _unwarmed_family(self) -> Metric:
        text = "Runs with shapes or outputs that warm-up did not run. A device that compiles has to compile for each."
        family = CounterMetricFamily("tpuserve_unwarmed_runs", text, labels=_BATCH_LABELS)
        for (servable, signature), count in self.unwarmed().items():
            family.add_metric([*_of(servable), signature], count)
        return family

    def _dropped_family(self) -> Metric:
        text = (
            "Requests that did not run. expired, cancelled: they left the queue. queue_full: the limit of waiting "
            "batches was reached. too_late: their predicted finish was after their deadline or the latency objective. "
            "hung: they waited behind a run that hangs."
        )
        labels = ["model_name", "version", "reason", "priority"]
        family = CounterMetricFamily("tpuserve_dropped_requests", text, labels=labels)
        for (servable, reason, priority), count in self.dropped().items():
            family.add_metric([*_of(servable), reason, priority.name.lower()], count)
        return family

    def _refused_family(self) -> Metric:
        text = (
            "Requests refused under overload by their deadline, before their message was read and their model known. "
            "server: the predicted finish was too late. envoy: a share of the requests, which the server sets."
        )
        family = CounterMetricFamily("tpuserve_refused_requests", text, labels=["by"])
        for refuser, count in self.refused().items():
            family.add_metric([refuser], count)
        return family

    def _cache_families(self) -> Iterator[Metric]:
        hits, misses, evictions = (
            CounterMetricFamily(f"tpuserve_response_cache_{name}", text, labels=_VERSION_LABELS)
            for name, text in (
                ("hits", "Requests that the response cache answered without a run."),
                ("misses", "Requests that were not in the response cache."),
                ("evictions", "Responses that the cache dropped for newer ones of any version of the model."),
            )
        )
        text = "Memory of the responses of a version in the cache."
        size = GaugeMetricFamily("tpuserve_response_cache_bytes", text, labels=_VERSION_LABELS)
        for servable, counts in self.caches().items():
            hits.add_metric(_of(servable), counts.hits)
            misses.add_metric(_of(servable), counts.misses)
            evictions.add_metric(_of(servable), counts.evictions)
            size.add_metric(_of(servable), counts.size_bytes)
        yield from (hits, misses, evictions, size)

    def _states_family(self) -> Metric:
        text = "State of a version: 10 START, 20 LOADING, 30 AVAILABLE, 40 UNLOADING, 50 END."
        family = GaugeMetricFamily("tpuserve_version_state", text, labels=["model_name", "version"])
        for servable, state in self.states().items():
            family.add_metric(_of(servable), state)
        return family

    def _warmups_family(self) -> Metric:
        text = "Duration of a version's warm-up."
        family = GaugeMetricFamily("tpuserve_warmup_seconds", text, labels=["model_name", "version"])
        for servable, warmup in self.warmups().items():
            family.add_metric(_of(servable), warmup.duration_s)
        return family

    def _request_log_families(self) -> Iterator[Metric]:
        written = CounterMetricFamily("tpuserve_request_log_records", "Logged requests.", labels=["model_name"])
        text = "Requests selected for the log but not written: queue_full, write_failed."
        dropped = CounterMetricFamily("tpuserve_request_log_dropped", text, labels=["model_name", "reason"])
        for (model, outcome), count in self.logged().items():
            if outcome == "written":
                written.add_metric([model], count)
            else:
                dropped.add_metric([model, outcome], count)
        yield written
        yield dropped

    def _device_families(self) -> Iterator[Metric]:
        text = "1. The labels are the device of the version, and the reason if it is not on a better device."
        chosen = GaugeMetricFamily("tpuserve_version_device", text, labels=[*_VERSION_LABELS, "device", "fallback"])
        for servable, choice in self.devices.choices().items():
            chosen.add_metric([*_of(servable), choice.device, choice.fallback], 1)
        text = "Time to compile a version's device programs, or to load them from the compilation cache."
        compiled = GaugeMetricFamily("tpuserve_compile_seconds", text, labels=_VERSION_LABELS)
        for servable, duration_s in self.devices.compile_s().items():
            compiled.add_metric(_of(servable), duration_s)
        text = "Time in which a device program ran. Its rate is the duty cycle."
        busy = CounterMetricFamily("tpuserve_device_busy_seconds", text, labels=["device"])
        text = "Memory in_use, its peak and its limit, if the device reports them."
        memory = GaugeMetricFamily("tpuserve_device_memory_bytes", text, labels=["device", "kind"])
        for gauge in self.devices.gauges():
            busy.add_metric([gauge.name], gauge.busy_s())
            for kind, size_bytes in gauge.memory_bytes().items():
                memory.add_metric([gauge.name, kind], size_bytes)
        yield from (chosen, compiled, busy, memory)


def _histograms(
    name: str,
    text: str,
    labels: Sequence[str],
    items: Iterable[tuple[Key, Histogram]],
    values: Callable[[Key], Sequence[str]],
    bounds: Sequence[float] | None = None,
) -> HistogramMetricFamily:
    """Return a family of histograms with the given bounds, or with all their bounds."""
    family = HistogramMetricFamily(f"tpuserve_{name}", text, labels=labels)
    for key, histogram in items:
        counts, total = histogram.cumulative(bounds)
        shown = histogram.bounds if bounds is None else bounds
        limits = [*(repr(float(bound)) for bound in shown), "+Inf"]
        family.add_metric(values(key), list(zip(limits, counts, strict=True)), total)
    return family


def _request_labels(key: RequestKey) -> tuple[str, ...]:
    version = "" if key.version is None else str(key.version)
    return (key.model, version, key.signature, key.method, key.protocol, key.code.name)


def _batch_labels(key: BatchKey) -> tuple[str, ...]:
    return (*_of(key.servable), key.signature)


def _run_labels(key: RunKey) -> tuple[str, ...]:
    return (*_of(key.servable), key.signature, str(key.bucket))


def _of(servable: ServableId) -> tuple[str, str]:
    return servable.name, str(servable.version)
