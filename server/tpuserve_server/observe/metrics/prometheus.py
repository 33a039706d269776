"""Metrics for Prometheus: this server's names and TensorFlow Serving's.

prometheus_client's own instruments take a lock and look up labels at every use. This module instead reads cheaper
histograms when a client requests the page.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Literal, TypeVar

from prometheus_client import ProcessCollector

from tpuserve_server.core.models.response_cache import CacheCounts
from tpuserve_server.core.system.threads import let_others_run
from tpuserve_server.core.terms.types import ServableId, State
from tpuserve_server.observe.metrics import catalogue
from tpuserve_server.observe.metrics.batch_measurements import BatchKey, RunKey
from tpuserve_server.observe.metrics.exposition import OPEN_METRICS, PLAIN, TextFormat, parts_of, write_family
from tpuserve_server.observe.metrics.families import Collected, Family
from tpuserve_server.observe.metrics.histogram import Histogram
from tpuserve_server.observe.metrics.measurements import Measurements
from tpuserve_server.observe.metrics.request_measurements import RequestKey
from tpuserve_server.observe.metrics.series import MOST_SERIES, Key, servable_labels, version_label
from tpuserve_server.observe.metrics.triton import TRITON_FAMILIES
from tpuserve_server.observe.metrics.upstream import UPSTREAM_FAMILIES, upstream_lines

# Maximum number of sizes to show for a signature with batches of any size. Beyond it, only powers of two are shown.
_MOST_SIZES = 32


class PrometheusMetrics(Measurements):
    """Metrics page for Prometheus: this server's names, then TensorFlow Serving's. Dashboards for either work."""

    def __init__(self, *, with_triton: bool = False) -> None:
        """Create empty metrics. `with_triton`: the page also has Triton's names."""
        super().__init__()
        self._upstream_families = (*UPSTREAM_FAMILIES, *TRITON_FAMILIES) if with_triton else UPSTREAM_FAMILIES
        self._process = ProcessCollector(registry=None)

    def render(self) -> tuple[Iterator[bytes], str]:
        """Return the parts of the page in the text format 0.0.4, and its content type.

        The parts are made while they are read, on a worker thread that lets others run once a millisecond.
        """
        return parts_of(self._lines(PLAIN), let_others_run), PLAIN.content_type

    def render_open_metrics(self) -> tuple[Iterator[bytes], str]:
        """Return the parts of the page as OpenMetrics 1.0.0, with exemplars, and its content type."""
        return parts_of(self._lines(OPEN_METRICS), let_others_run), OPEN_METRICS.content_type

    def collect(self) -> Iterator[Collected]:
        """Yield this server's families with their current values. Read each before the next one."""
        omitted = dict[str, int]()
        for collected in self._families():
            # The keys of counters and histograms are limited. A sum of gauges would mean nothing.
            yield _limited(collected, omitted) if collected.family.kind == "gauge" else collected
        yield catalogue.OMITTED.valued(((name,), count) for name, count in omitted.items())
        yield catalogue.FOLDED.valued(((name,), count) for name, count in self.models.folded().items())
        for metric in self._process.collect():
            kind: Literal["counter", "gauge"] = "counter" if metric.type == "counter" else "gauge"
            family = Family(metric.samples[0].name, kind, (), metric.documentation)
            yield family.valued(((), sample.value) for sample in metric.samples)

    def _lines(self, form: TextFormat) -> Iterator[str]:
        for collected in self.collect():
            yield from write_family(collected, form)
        yield from upstream_lines(self, self._upstream_families, form)
        yield form.end

    def _families(self) -> Iterator[Collected]:
        yield from self._request_families()
        yield from self._batch_families()
        yield from self._cost_families()
        yield from self._cache_families()
        yield from self._version_families()
        yield from self._trace_families()
        yield from self._device_families()
        yield from self._server_families()
        yield from self._page_families()

    def _request_families(self) -> Iterator[Collected]:
        requests = list(self.requests())
        yield catalogue.REQUESTS.valued((_request_labels(key), histogram.total()) for key, histogram in requests)
        yield catalogue.FAILED.valued(
            ((model, version_label(version), method, code.name, fault), count)
            for (model, version, method, code, fault), count in self.failed.all().items()
        )
        yield catalogue.REQUEST_LATENCY.counted(
            (_request_labels(key), histogram, self.exemplars(key)) for key, histogram in requests
        )
        yield catalogue.IN_FLIGHT.valued(((protocol,), count) for protocol, count in self.server.in_flight().items())
        yield catalogue.STAGE_SECONDS.valued((key, seconds) for key, seconds in self.stages_s.all().items())
        yield catalogue.STAGE_REQUESTS.valued((key, count) for key, count in self.stage_requests.all().items())
        yield catalogue.DROPPED.valued(
            ((*servable_labels(servable), reason, priority.name.lower()), count)
            for (servable, reason, priority), count in self.dropped.all().items()
        )
        yield catalogue.REFUSED.valued(((reason,), count) for reason, count in self.server.refused().items())

    def _batch_families(self) -> Iterator[Collected]:
        batches, queued = self.batches, self.server.queued()
        demand = self.demand
        yield catalogue.DEMAND_SECONDS.valued(
            ((model, priority.name.lower()), seconds) for (model, priority), seconds in demand.seconds.all().items()
        )
        yield catalogue.MODEL_DEMAND.valued(((model,), ratio) for model, ratio in demand.model_ratios().items())
        yield catalogue.DEMAND.valued([((), demand.ratio())])
        loop_s = demand.loop_s()
        yield catalogue.LOOP_BUSY.valued(() if loop_s is None else [((), loop_s)])
        waiting = sum(queue.requests for queue in queued.values())
        yield catalogue.SERVER_QUEUE.valued([((), waiting)])
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

    def _cost_families(self) -> Iterator[Collected]:
        """Yield the estimates of the cost model: for each size, and as a fitted line."""
        curves = [
            ((*servable_labels(servable), curve.signature_name, ",".join(map(str, curve.lengths))), curve)
            for servable, costs in _with_pauses(self.costs().items())
            for curve in costs.snapshot()
        ]
        sizes = [((*labels, str(cost.rows)), cost) for labels, curve in curves for cost in curve.shown(_MOST_SIZES)]
        lines = [(labels, curve.line) for labels, curve in curves if curve.line is not None]
        yield catalogue.COST.valued((labels, cost.mean_s) for labels, cost in sizes)
        yield catalogue.COST_SPREAD.valued((labels, cost.spread_s) for labels, cost in sizes)
        yield catalogue.COST_BASE.valued((labels, line.t0_s) for labels, line in lines)
        yield catalogue.COST_ROW.valued((labels, line.per_row_s) for labels, line in lines)
        yield catalogue.OBJECTIVE_HOST.valued((_batch_labels(key), s) for key, s in self.host_allowances().items())

    def _cache_families(self) -> Iterator[Collected]:
        caches = self.caches()

        def of(family: Family, figure: Callable[[CacheCounts], int]) -> Collected:
            return _by_version(family, {servable: figure(counts) for servable, counts in caches.items()})

        yield of(catalogue.CACHE_HITS, lambda counts: counts.hits)
        yield of(catalogue.CACHE_MISSES, lambda counts: counts.misses)
        yield of(catalogue.CACHE_EVICTIONS, lambda counts: counts.evictions)
        yield of(catalogue.CACHE_BYTES, lambda counts: counts.size_bytes)

    def _version_families(self) -> Iterator[Collected]:
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

    def _trace_families(self) -> Iterator[Collected]:
        traced = self.traced.all()
        yield catalogue.TRACES_EXPORTED.valued([((), traced.pop("exported", 0))])
        yield catalogue.TRACES_DROPPED.valued(((reason,), count) for reason, count in traced.items())

    def _device_families(self) -> Iterator[Collected]:
        gauges = self.devices.gauges()
        yield catalogue.DEVICE_BUSY.valued(((gauge.name,), gauge.busy_s()) for gauge in gauges)
        yield catalogue.DEVICE_MEMORY.valued(
            ((gauge.name, kind), size_bytes) for gauge in gauges for kind, size_bytes in gauge.memory_bytes().items()
        )

    def _server_families(self) -> Iterator[Collected]:
        build = self.server.build()
        builds = () if build is None else (((build.version, build.python), 1),)
        yield catalogue.SERVER_STATE.valued(((state.value,), is_in) for state, is_in in self.server.states().items())
        yield catalogue.BUILD_INFO.valued(builds)
        sha256 = self.server.configuration()
        yield catalogue.CONFIGURATION_INFO.valued((((sha256,), 1),) if sha256 else ())
        yield catalogue.HTTP_REQUESTS.valued(((version,), count) for version, count in self.server.requests().items())
        most = self.server.max_connections()
        yield catalogue.MAX_CONNECTIONS.valued(() if most is None else (((), most),))
        yield catalogue.BUDGET_BYTES.valued((key, count) for key, count in self.server.budget_bytes().items())
        yield catalogue.BUDGET_REFUSALS.valued(((key,), count) for key, count in self.server.budget_refusals().items())
        memory = self.server.model_memory()
        yield catalogue.MODEL_MEMORY.valued(((each.name, str(each.version)), size) for each, size in memory.items())
        loads = self.server.on_demand_loads()
        yield catalogue.ON_DEMAND_LOADS.valued(() if loads is None else (((), loads),))
        unloads = self.server.on_demand_unloads()
        yield catalogue.ON_DEMAND_UNLOADS.valued(((reason,), count) for reason, count in unloads.items())
        yield catalogue.CUT_RESPONSES.valued(((key,), count) for key, count in self.server.cut_responses().items())
        certificates = self.server.certificates()
        expiries = {} if certificates is None else certificates.expires_unix_s
        yield catalogue.CERTIFICATE_EXPIRY.valued(((name,), end_s) for name, end_s in expiries.items())
        yield catalogue.CERTIFICATE_RELOAD_FAILED.valued(
            () if certificates is None else (((), bool(certificates.reload_failure)),)
        )
        dropped = self.server.dropped_events()
        yield catalogue.LOG_EVENTS_DROPPED.valued(() if dropped is None else (((), dropped),))

    def _page_families(self) -> Iterator[Collected]:
        logged = self.logged.all()
        yield catalogue.LOG_RECORDS.valued(
            ((model,), count) for (model, outcome), count in logged.items() if outcome == "written"
        )
        yield catalogue.LOG_DROPPED.valued((key, count) for key, count in logged.items() if key[1] != "written")


_Item = TypeVar("_Item")


def _with_pauses(items: Iterable[_Item]) -> Iterator[_Item]:
    """Yield the items, each of which takes a while, and let other threads run between them."""
    for item in items:
        let_others_run()
        yield item


def _by_version(family: Family, values: Mapping[ServableId, float]) -> Collected:
    return family.valued((servable_labels(servable), value) for servable, value in values.items())


def _histograms(
    family: Family, items: Iterable[tuple[Key, Histogram]], labels: Callable[[Key], Sequence[str]]
) -> Collected:
    return family.counted((labels(key), histogram, {}) for key, histogram in items)


def _limited(collected: Collected, omitted: dict[str, int]) -> Collected:
    """Return a gauge with at most MOST_SERIES samples. The number of the others is added to `omitted` at the end."""

    def samples() -> Iterator[tuple[Sequence[str], float]]:
        for number, sample in enumerate(collected.values):
            if number < MOST_SERIES:
                yield sample
            else:
                omitted[collected.family.name] = number + 1 - MOST_SERIES

    return collected.family.valued(samples())


def _request_labels(key: RequestKey) -> tuple[str, ...]:
    return (key.model, version_label(key.version), key.signature, key.method, key.protocol, key.code.name)


def _batch_labels(key: BatchKey) -> tuple[str, ...]:
    return (*servable_labels(key.servable), key.signature)


def _run_labels(key: RunKey) -> tuple[str, ...]:
    return (*servable_labels(key.servable), key.signature, str(key.bucket))
