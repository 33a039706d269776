"""Pushes of metrics to an OTLP receiver while loads run. A receiver that is down never disturbs a load.

The load generator counts anyway, so this module makes OpenTelemetry's metrics data from its counts. Instruments of the
SDK would record each request a second time, at ten microseconds each.
The process must call give_process_to_gevent (traffic/gevent_setup.py) before it imports this module.
"""

import logging
import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib import metadata
from typing import Any, Final, Self
from uuid import uuid4

import gevent
import requests
from gevent.event import Event
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceResponse
from opentelemetry.sdk.metrics import export
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from tpuserve_formats.counted import counted
from tpuserve_loadtests.arrivals.load import Load
from tpuserve_loadtests.measurement.live_figures import LiveFigures, LivePeriod
from tpuserve_loadtests.measurement.measured import Measured
from tpuserve_loadtests.measurement.recorder import Counts
from tpuserve_loadtests.traffic.target import Runs, Watch

_PATH: Final = "/v1/metrics"
_TIMEOUT_S: Final = 5.0
# Limits for the last push, which delays the report: of a receiver that answered the push before, and of another one.
_LAST_S: Final = 3.0
_LAST_OF_FAILING_S: Final = 0.5
_FIRST_REDIRECT: Final = 300
_PROTOBUF: Final = "application/x-protobuf"


class OtlpPush:
    """Pusher for use in a `with` statement around the runs. Belongs to the main greenlet.

    It pushes every `interval_s` from its own greenlet, and once more at the end of the block. The counters grow over
    all runs. `on_problem` receives the first problem.
    """

    def __init__(self, url: str, interval_s: float, model: str, on_problem: Callable[[str], None]) -> None:
        """Set up the exporter for an OTLP base URL, to which the path of metrics is added."""
        # The exporter logs each failure, which this class reports once.
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
        self._url = url
        self._interval_s = interval_s
        self._on_problem = on_problem
        self._session = _Session()
        address = url if url.endswith(_PATH) else f"{url.rstrip('/')}{_PATH}"
        self._exporter = OTLPMetricExporter(address, session=self._session, timeout=_TIMEOUT_S)
        self._metrics = OtlpMetrics(find_resource(), {"model": model}, time.time_ns())
        self._period = LivePeriod(0.0)
        self._past, self._past_s = Counts(), 0.0
        self._counts, self._measured_s = Counts(), 0.0
        self._pushes = self._succeeded = 0
        # Problem of the last push, and of the last push that failed.
        self._problem = self._reason = ""
        self._over = Event()

    def __enter__(self) -> Self:
        self._greenlet = gevent.spawn(self._keep_pushing)
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        with suppress(gevent.Timeout), gevent.Timeout(_LAST_OF_FAILING_S if self._problem else _LAST_S):
            self._greenlet.join()
            self._push()
        self._greenlet.kill()
        self._exporter.shutdown()

    @property
    def notes(self) -> tuple[str, ...]:
        """A note if pushes failed, complete after the block."""
        failed = self._pushes - self._succeeded
        if not failed:
            return ()
        reason = self._reason or self._session.problem or "no response at the end"
        return (f"{failed:,} of {self._pushes:,} pushes of metrics to {self._url} failed: {reason}",)

    def update(self, measured_s: float, counts: Counts) -> None:
        """Take the counts of the current run, `measured_s` seconds after its warm-up. Cheap."""
        if measured_s > 0:
            self._counts, self._measured_s = self._past + counts, self._past_s + measured_s

    def end_run(self, measured: Measured) -> None:
        """Take the final counts of a run. Those of the next run are added to them."""
        self.update(measured.span_s, measured.recorder.counts())
        self._past, self._past_s = self._counts, self._measured_s

    def _keep_pushing(self) -> None:
        while not self._over.wait(self._interval_s):
            self._push()

    def _push(self) -> None:
        figures = self._period.advance(self._measured_s, self._counts)
        data = self._metrics.data(self._counts, figures, time.time_ns())
        self._pushes += 1
        is_exported = self._exporter.export(data) is export.MetricExportResult.SUCCESS
        self._problem = self._session.problem or ("" if is_exported else "the metrics could not be encoded")
        self._succeeded += not self._problem
        if self._problem and not self._reason:
            self._on_problem(f"Cannot push metrics to {self._url}: {self._problem}. The load continues.")
        self._reason = self._problem or self._reason


class PushedRuns:
    """Runner that reports the counts of another runner's loads to an OtlpPush."""

    def __init__(self, runs: Runs, push: OtlpPush) -> None:
        self._runs, self._push = runs, push
        self.interrupted, self.hurried = runs.interrupted, runs.hurried

    def run(self, load: Load, watch: Watch) -> Measured:
        def update_and_watch(elapsed_s: float, counts: Counts) -> str:
            self._push.update(elapsed_s - load.warm_up_s, counts)
            return watch(elapsed_s, counts)

        measured = self._runs.run(load, update_and_watch)
        self._push.end_run(measured)
        return measured


class _Session(requests.Session):
    """HTTP session that keeps the problem of its last request, or an empty string.

    The exporter reports only that a request failed. It ignores redirects and partial success.
    """

    problem = ""

    def send(self, request: requests.PreparedRequest, **options: Any) -> requests.Response:  # noqa: ANN401  the parent's
        self.problem = ""
        try:
            response = super().send(request, **options)
        except Exception as error:
            self.problem = _reason(error)
            raise
        self.problem = _problem(response)
        return response


def _problem(response: requests.Response) -> str:
    if response.status_code >= _FIRST_REDIRECT:
        return f"HTTP {response.status_code} {response.reason}".rstrip()
    if not response.headers.get("content-type", "").startswith(_PROTOBUF):
        return ""
    partial = ExportMetricsServiceResponse.FromString(response.content).partial_success
    if not partial.rejected_data_points:
        return ""
    rejected = counted(partial.rejected_data_points, "data point")
    return f"the receiver rejected {rejected}: {partial.error_message}".rstrip(": ")


def _reason(error: BaseException) -> str:
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.strerror:
            return cause.strerror
        cause = cause.__cause__ or cause.__context__
    return str(error) or type(error).__name__


NAME: Final = "tpuserve-loadtest"
# Bounds of the histogram: powers of two from 1/16 ms to 65.5 s. Live latencies know their counts exactly.
_EXPONENTS: Final = range(-4, 17)
_BOUNDS_S: Final = [2**exponent / 1000 for exponent in _EXPONENTS]
_CUMULATIVE: Final = export.AggregationTemporality.CUMULATIVE


def find_resource() -> Resource:
    """Return the description of this process. OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES override it."""
    own: Mapping[str, str | int] = {
        "service.name": NAME,
        "service.version": metadata.version("tpuserve-loadtests"),
        "service.instance.id": str(uuid4()),
        "process.pid": os.getpid(),
    }
    return Resource(own).merge(OTELResourceDetector().detect())


class OtlpMetrics:
    """Metrics of one command, whose counters start at `start_ns` in Unix nanoseconds."""

    def __init__(self, resource: Resource, attributes: Mapping[str, str], start_ns: int) -> None:
        self._resource = resource
        self._scope = InstrumentationScope(NAME, metadata.version("tpuserve-loadtests"))
        self._attributes = dict(attributes)
        self._start_ns = start_ns

    def data(self, counts: Counts, figures: LiveFigures | None, now_ns: int) -> export.MetricsData:
        """Return all metrics. `figures` are those of the period since the previous push, or None without any."""
        metrics = [self._requests(counts, now_ns), self._latencies(counts, now_ns)]
        if figures is not None:
            metrics += self._gauges(figures, now_ns)
        scope = export.ScopeMetrics(self._scope, metrics, "")
        return export.MetricsData([export.ResourceMetrics(self._resource, [scope], self._resource.schema_url)])

    def _requests(self, counts: Counts, now_ns: int) -> export.Metric:
        outcomes = {"success": counts.requests - counts.failures, "failure": counts.failures}
        points = [self._number(count, now_ns, outcome=outcome) for outcome, count in outcomes.items()]
        total = export.Sum(points, _CUMULATIVE, is_monotonic=True)
        return export.Metric("tpuserve.loadtest.requests", "Measured requests by outcome.", "{request}", total)

    def _latencies(self, counts: Counts, now_ns: int) -> export.Metric:
        upto = counts.latencies.cumulative(_EXPONENTS)
        count = counts.latencies.count
        buckets = [later - earlier for earlier, later in zip([0, *upto], [*upto, count], strict=True)]
        unknown: Any = None  # both are optional in OTLP
        point = export.HistogramDataPoint(
            self._attributes,
            self._start_ns,
            now_ns,
            count,
            counts.latencies.sum_us / 1e6,
            buckets,
            _BOUNDS_S,
            min=unknown,
            max=unknown,
        )
        words = "Latency of successful requests."
        return export.Metric("tpuserve.loadtest.latency", words, "s", export.Histogram([point], _CUMULATIVE))

    def _gauges(self, figures: LiveFigures, now_ns: int) -> list[export.Metric]:
        recent = "since the previous push"
        rate = export.Gauge([self._number(figures.rate_per_s, now_ns)])
        words = f"Successful responses per second {recent}."
        found = [export.Metric("tpuserve.loadtest.throughput", words, "{request}/s", rate)]
        quantiles = {"0.5": figures.p50_ms, "0.99": figures.p99_ms}
        points = [
            self._number(value / 1000, now_ns, quantile=name) for name, value in quantiles.items() if value is not None
        ]
        if points:
            words = f"Latency quantiles {recent}."
            found.append(export.Metric("tpuserve.loadtest.latency.quantile", words, "s", export.Gauge(points)))
        return found

    def _number(self, value: float, now_ns: int, **attributes: str) -> export.NumberDataPoint:
        return export.NumberDataPoint({**self._attributes, **attributes}, self._start_ns, now_ns, value)
