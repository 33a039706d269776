"""Metrics for Prometheus: this server's names and TensorFlow Serving's.

prometheus_client's own instruments take a lock and look up labels at every use. This module instead fills its families
with the values of cheaper histograms, when a client requests the page.
"""

import functools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

from prometheus_client import CollectorRegistry, Metric, ProcessCollector
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar, Sample
from prometheus_client.utils import floatToGoString

from tpuserve_server.core.models.response_cache import CacheCounts
from tpuserve_server.core.terms.types import ServableId, State
from tpuserve_server.observe.metrics import catalogue
from tpuserve_server.observe.metrics.batch_measurements import BatchKey, RunKey
from tpuserve_server.observe.metrics.catalogue import Bucket, Family
from tpuserve_server.observe.metrics.histogram import LATENCY_BOUNDS_S, Histogram, TracedRequest
from tpuserve_server.observe.metrics.measurements import Measurements
from tpuserve_server.observe.metrics.request_measurements import RequestKey
from tpuserve_server.observe.metrics.series import MOST_SERIES, Key, servable_labels, version_label
from tpuserve_server.observe.metrics.upstream import upstream_page

# The text of metric families, for Prometheus' text format 0.0.4 and for OpenMetrics 1.0.0.
#
# prometheus_client's own functions give the same text in two to three times the time. Requests wait for the
# interpreter's lock meanwhile.

# Label values that occur on most lines: names of models, signatures, methods, codes and bounds.
_REMEMBERED: Final = 4096


def text_page(families: Iterable[Metric]) -> str:
    """Return families in the text format."""
    return "".join(line for family in families for line in _text_lines(family))


def open_metrics_page(families: Iterable[Metric]) -> str:
    """Return families as OpenMetrics, with exemplars and without the end mark."""
    return "".join(line for family in families for line in _open_metrics_lines(family))


def _text_lines(family: Metric) -> Iterator[str]:
    name = f"{family.name}_total" if family.type == "counter" else family.name
    text = family.documentation.replace("\\", r"\\").replace("\n", r"\n")
    yield f"# HELP {name} {text}\n# TYPE {name} {family.type}\n"
    for sample in family.samples:
        yield f"{_series(sample)} {_number(sample.value)}\n"


def _open_metrics_lines(family: Metric) -> Iterator[str]:
    yield f"# HELP {family.name} {_escaped(family.documentation)}\n# TYPE {family.name} {family.type}\n"
    for sample in family.samples:
        exemplar = "" if sample.exemplar is None else _exemplar(sample.exemplar)
        yield f"{_series(sample)} {_number(sample.value)}{exemplar}\n"


def _series(sample: Sample) -> str:
    if not sample.labels:
        return sample.name
    labels = ",".join([f'{label}="{_escaped(value)}"' for label, value in sorted(sample.labels.items())])
    return f"{sample.name}{{{labels}}}"


def _exemplar(exemplar: Exemplar) -> str:
    labels = ",".join(f'{label}="{_escaped(value)}"' for label, value in exemplar.labels.items())
    return f" # {{{labels}}} {_number(exemplar.value)} {exemplar.timestamp}"


def _number(value: float) -> str:
    text: str = floatToGoString(value)  # type: ignore[no-untyped-call]  # untyped library
    return text


@functools.lru_cache(maxsize=_REMEMBERED)
def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


# Pages in Prometheus' text format 0.0.4 as parts of an OpenMetrics page.
#
# The page is upstream's, which has only TYPE lines and samples. OpenMetrics requires that counters end in `_total`, so
# others become `unknown`, which keeps their names. Prometheus treats both alike.

CONTENT_TYPE: Final = "application/openmetrics-text; version=1.0.0; charset=utf-8"
END: Final = "# EOF\n"
_TYPE: Final = re.compile(r"# TYPE (\S+) (\S+)")
_BOUND: Final = re.compile(r'\ble="(\d+(?:\.\d+)?(?:e[+-]?\d+)?)"')


def as_open_metrics(page: str) -> str:
    """Return a page of Prometheus' text format without HELP lines as OpenMetrics, without the end mark."""
    # Label values may contain other line separators, so `splitlines` would not do.
    return "".join(f"{line}\n" for line in _lines(page.removesuffix("\n").split("\n")) if line)


def _lines(lines: Iterable[str]) -> Iterator[str]:
    for line in lines:
        found = _TYPE.fullmatch(line)
        if found is None:
            # OpenMetrics writes whole bounds with a fraction.
            yield _BOUND.sub(lambda bound: f'le="{float(bound[1])!r}"', line)
        elif found[2] != "counter":
            yield line
        elif found[1].endswith("_total"):
            yield f"# TYPE {found[1].removesuffix('_total')} counter"
        else:
            yield f"# TYPE {found[1]} unknown"


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
        """Return the page in the text format 0.0.4, and its content type."""
        return f"{text_page(self.registry.collect())}{upstream_page(self)}".encode(), CONTENT_TYPE_PLAIN_0_0_4

    def render_open_metrics(self) -> tuple[bytes, str]:
        """Return the page as OpenMetrics 1.0.0, with exemplars, and its content type."""
        others = as_open_metrics(upstream_page(self))
        own = open_metrics_page(self.registry.collect())
        return f"{own}{others}{END}".encode(), CONTENT_TYPE

    def collect(self) -> Iterator[Metric]:
        """Yield this server's families with their current values. The registry calls this method."""
        omitted = {}
        for family in self._families():
            # The keys of counters and histograms are limited. A sum of gauges would mean nothing.
            if family.type == "gauge" and len(family.samples) > MOST_SERIES:
                omitted[family.name] = len(family.samples) - MOST_SERIES
                del family.samples[MOST_SERIES:]
            yield family
        yield catalogue.OMITTED.valued(((name,), count) for name, count in omitted.items())

    def _families(self) -> Iterator[Metric]:
        yield from self._request_families()
        yield from self._batch_families()
        yield from self._cost_families()
        yield from self._cache_families()
        yield from self._version_families()
        yield from self._trace_families()
        yield from self._device_families()
        yield from self._server_families()
        yield from self._page_families()

    def _request_families(self) -> Iterator[Metric]:
        requests = list(self.requests())
        yield catalogue.REQUESTS.valued((_request_labels(key), histogram.total()) for key, histogram in requests)
        yield catalogue.REQUEST_LATENCY.counted(
            (_request_labels(key), *_buckets(histogram, LATENCY_BOUNDS_S, self.exemplars(key)))
            for key, histogram in requests
        )
        yield catalogue.IN_FLIGHT.valued(((protocol,), count) for protocol, count in self.server.in_flight().items())
        yield catalogue.STAGE_SECONDS.valued((key, seconds) for key, seconds in self.stages_s.all().items())
        yield catalogue.STAGE_REQUESTS.valued((key, count) for key, count in self.stage_requests.all().items())
        yield catalogue.DROPPED.valued(
            ((*servable_labels(servable), reason, priority.name.lower()), count)
            for (servable, reason, priority), count in self.dropped.all().items()
        )
        yield catalogue.REFUSED.valued(((reason,), count) for reason, count in self.server.refused().items())

    def _batch_families(self) -> Iterator[Metric]:
        batches, queued = self.batches, self.server.queued()
        yield _by_version(catalogue.QUEUE_REQUESTS, {key: queue.requests for key, queue in queued.items()})
        yield _by_version(catalogue.QUEUE_ROWS, {key: queue.rows for key, queue in queued.items()})
        for family, series in (
            (catalogue.QUEUE_WAIT, batches.queue_wait),
            (catalogue.BATCH_ROWS, batches.rows),
            (catalogue.BATCH_PADDING, batches.padding),
            (catalogue.BATCH_RUN_RATIO, batches.run_ratio),
            (catalogue.FINISH_ERROR, batches.finish_error),
        ):
            yield _histograms(family, series.items(), _batch_labels)
        yield _histograms(catalogue.BATCH_RUN, batches.run.items(), _run_labels)
        yield catalogue.UNWARMED.valued((_batch_labels(key), count) for key, count in self.unwarmed.all().items())
        yield catalogue.UNTRIED.valued((_batch_labels(key), count) for key, count in self.untried.all().items())
        yield catalogue.REFUSED_RUNS.valued(
            (_batch_labels(key), count) for key, count in self.refused_runs.all().items()
        )
        yield _by_version(catalogue.HUNG_RUNS, self.hung.all())
        yield _by_version(catalogue.VERSION_BUSY, batches.busy_s())

    def _cost_families(self) -> Iterator[Metric]:
        """Yield the estimates of the cost model: for each size, and as a fitted line."""
        curves = [
            ((*servable_labels(servable), curve.signature_name, ",".join(map(str, curve.lengths))), curve)
            for servable, of_servable in self.costs().items()
            for curve in of_servable
        ]
        sizes = [((*labels, str(cost.rows)), cost) for labels, curve in curves for cost in curve.shown(_MOST_SIZES)]
        lines = [(labels, curve.line) for labels, curve in curves if curve.line is not None]
        yield catalogue.COST.valued((labels, cost.mean_s) for labels, cost in sizes)
        yield catalogue.COST_SPREAD.valued((labels, cost.spread_s) for labels, cost in sizes)
        yield catalogue.COST_BASE.valued((labels, line.t0_s) for labels, line in lines)
        yield catalogue.COST_ROW.valued((labels, line.per_row_s) for labels, line in lines)
        yield catalogue.OBJECTIVE_HOST.valued((_batch_labels(key), s) for key, s in self.host_allowances().items())

    def _cache_families(self) -> Iterator[Metric]:
        caches = self.caches()

        def of(family: Family, figure: Callable[[CacheCounts], int]) -> Metric:
            return _by_version(family, {servable: figure(counts) for servable, counts in caches.items()})

        yield of(catalogue.CACHE_HITS, lambda counts: counts.hits)
        yield of(catalogue.CACHE_MISSES, lambda counts: counts.misses)
        yield of(catalogue.CACHE_EVICTIONS, lambda counts: counts.evictions)
        yield of(catalogue.CACHE_BYTES, lambda counts: counts.size_bytes)

    def _version_families(self) -> Iterator[Metric]:
        # Ended versions are the first that the limit omits.
        states = sorted(self.states().items(), key=lambda item: item[1] is State.END)
        yield _by_version(catalogue.VERSION_STATE, dict(states))
        yield catalogue.MODEL_AVAILABLE.valued(((name,), is_in) for name, is_in in self.server.available().items())
        yield catalogue.VERSION_LOADS.valued((key, count) for key, count in self.loads.all().items())
        yield _by_version(catalogue.VERSION_LOAD, self.load_s())
        yield _by_version(catalogue.WARMUP, {key: warmup.duration_s for key, warmup in self.warmups().items()})
        yield _by_version(catalogue.COMPILE, self.devices.compile_s())
        yield catalogue.VERSION_DEVICE.valued(
            ((*servable_labels(servable), choice.device, choice.fallback), 1)
            for servable, choice in self.devices.choices().items()
        )

    def _trace_families(self) -> Iterator[Metric]:
        traced = self.traced.all()
        yield catalogue.TRACES_EXPORTED.valued([((), traced.pop("exported", 0))])
        yield catalogue.TRACES_DROPPED.valued(((reason,), count) for reason, count in traced.items())

    def _device_families(self) -> Iterator[Metric]:
        gauges = self.devices.gauges()
        yield catalogue.DEVICE_BUSY.valued(((gauge.name,), gauge.busy_s()) for gauge in gauges)
        yield catalogue.DEVICE_MEMORY.valued(
            ((gauge.name, kind), size_bytes) for gauge in gauges for kind, size_bytes in gauge.memory_bytes().items()
        )

    def _server_families(self) -> Iterator[Metric]:
        build = self.server.build()
        builds = () if build is None else (((build.version, build.python), 1),)
        yield catalogue.SERVER_STATE.valued(((state.value,), is_in) for state, is_in in self.server.states().items())
        yield catalogue.BUILD_INFO.valued(builds)
        yield catalogue.HTTP_REQUESTS.valued(((version,), count) for version, count in self.server.requests().items())
        most = self.server.max_connections()
        yield catalogue.MAX_CONNECTIONS.valued(() if most is None else (((), most),))
        yield catalogue.BUDGET_BYTES.valued((key, count) for key, count in self.server.budget_bytes().items())
        yield catalogue.BUDGET_REFUSALS.valued(((key,), count) for key, count in self.server.budget_refusals().items())
        yield catalogue.CUT_RESPONSES.valued(((key,), count) for key, count in self.server.cut_responses().items())
        certificates = self.server.certificates()
        expiries = {} if certificates is None else certificates.expires_unix_s
        yield catalogue.CERTIFICATE_EXPIRY.valued(((name,), end_s) for name, end_s in expiries.items())
        yield catalogue.CERTIFICATE_RELOAD_FAILED.valued(
            () if certificates is None else (((), bool(certificates.reload_failure)),)
        )
        dropped = self.server.dropped_events()
        yield catalogue.LOG_EVENTS_DROPPED.valued(() if dropped is None else (((), dropped),))

    def _page_families(self) -> Iterator[Metric]:
        logged = self.logged.all()
        yield catalogue.LOG_RECORDS.valued(
            ((model,), count) for (model, outcome), count in logged.items() if outcome == "written"
        )
        yield catalogue.LOG_DROPPED.valued((key, count) for key, count in logged.items() if key[1] != "written")


def _by_version(family: Family, values: Mapping[ServableId, float]) -> Metric:
    return family.valued((servable_labels(servable), value) for servable, value in values.items())


def _histograms(
    family: Family, items: Iterable[tuple[Key, Histogram]], labels: Callable[[Key], Sequence[str]]
) -> Metric:
    return family.counted((labels(key), *_buckets(histogram)) for key, histogram in items)


def _buckets(
    histogram: Histogram,
    bounds: Sequence[float] | None = None,
    exemplars: Mapping[int, TracedRequest] | None = None,
) -> tuple[list[Bucket], float]:
    """Return the buckets with the given bounds, or with all bounds of the histogram, and the sum of its values."""
    counts, total = histogram.cumulative(bounds)
    shown = histogram.bounds if bounds is None else bounds
    limits = [*(repr(float(bound)) for bound in shown), "+Inf"]
    buckets: list[Bucket] = list(zip(limits, counts, strict=True))
    for position, traced in (exemplars or {}).items():
        exemplar = Exemplar({"trace_id": traced.trace_id}, traced.latency_s, round(traced.ended_s, 3))
        buckets[position] = (limits[position], counts[position], exemplar)
    return buckets, total


def _request_labels(key: RequestKey) -> tuple[str, ...]:
    return (key.model, version_label(key.version), key.signature, key.method, key.protocol, key.code.name)


def _batch_labels(key: BatchKey) -> tuple[str, ...]:
    return (*servable_labels(key.servable), key.signature)


def _run_labels(key: RunKey) -> tuple[str, ...]:
    return (*servable_labels(key.servable), key.signature, str(key.bucket))
