"""Metrics of a running load as OpenTelemetry's metrics data, without the instruments of its SDK.

The load generator counts anyway. Instruments would record each request a second time, at ten microseconds each.
"""

import os
from collections.abc import Mapping
from importlib import metadata
from typing import Any, Final
from uuid import uuid4

from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from tpuserve_loadtests.measurement.live_figures import LiveFigures
from tpuserve_loadtests.measurement.recorder import Counts

NAME: Final = "tpuserve-loadtest"
# Bounds of the histogram: powers of two from 1/16 ms to 65.5 s. Live latencies know their counts exactly.
_EXPONENTS: Final = range(-4, 17)
_BOUNDS_S: Final = [2**exponent / 1000 for exponent in _EXPONENTS]
_CUMULATIVE: Final = AggregationTemporality.CUMULATIVE


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

    def data(self, counts: Counts, figures: LiveFigures | None, now_ns: int) -> MetricsData:
        """Return all metrics. `figures` are those of the period since the previous push, or None without any."""
        metrics = [self._requests(counts, now_ns), self._latencies(counts, now_ns)]
        if figures is not None:
            metrics += self._gauges(figures, now_ns)
        scope = ScopeMetrics(self._scope, metrics, "")
        return MetricsData([ResourceMetrics(self._resource, [scope], self._resource.schema_url)])

    def _requests(self, counts: Counts, now_ns: int) -> Metric:
        outcomes = {"success": counts.requests - counts.failures, "failure": counts.failures}
        points = [self._number(count, now_ns, outcome=outcome) for outcome, count in outcomes.items()]
        total = Sum(points, _CUMULATIVE, is_monotonic=True)
        return Metric("tpuserve.loadtest.requests", "Measured requests by outcome.", "{request}", total)

    def _latencies(self, counts: Counts, now_ns: int) -> Metric:
        upto = counts.latencies.cumulative(_EXPONENTS)
        count = counts.latencies.count
        buckets = [later - earlier for earlier, later in zip([0, *upto], [*upto, count], strict=True)]
        unknown: Any = None  # both are optional in OTLP
        point = HistogramDataPoint(
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
        return Metric("tpuserve.loadtest.latency", words, "s", Histogram([point], _CUMULATIVE))

    def _gauges(self, figures: LiveFigures, now_ns: int) -> list[Metric]:
        rate = Gauge([self._number(figures.rate_per_s, now_ns)])
        quantiles = {"0.5": figures.p50_ms, "0.99": figures.p99_ms}
        points = [
            self._number(value / 1000, now_ns, quantile=name) for name, value in quantiles.items() if value is not None
        ]
        recent = "since the previous push"
        return [
            Metric("tpuserve.loadtest.throughput", f"Successful responses per second {recent}.", "{request}/s", rate),
            *(
                [Metric("tpuserve.loadtest.latency.quantile", f"Latency quantiles {recent}.", "s", Gauge(points))]
                if points
                else []
            ),
        ]

    def _number(self, value: float, now_ns: int, **attributes: str) -> NumberDataPoint:
        return NumberDataPoint({**self._attributes, **attributes}, self._start_ns, now_ns, value)
