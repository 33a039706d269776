"""Tests that the text of families is that of prometheus_client's own functions."""

import math

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import generate_latest
from prometheus_client.openmetrics import exposition as open_metrics
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar

from tpuserve_server.observe.metrics.prometheus import open_metrics_page, text_page


class Families(Collector):
    """Families of each kind, with values and labels that need care."""

    def collect(self) -> list[Metric]:
        counter = CounterMetricFamily("a_things", 'Things with a \\ and a "word".\nTwo lines.', labels=["z", "b"])
        counter.add_metric(['quo"te', "back\\slash\nline\u2028"], 3)
        counter.add_metric(["", "é"], 1e21)
        gauge = GaugeMetricFamily("b_level", "A level.")
        for value in (math.inf, -math.inf, 0.1, 2**40, 1e-7):
            gauge.add_metric([], value)
        histogram = HistogramMetricFamily("c_seconds", "Times.", labels=["m"])
        exemplar = Exemplar({"trace_id": "ab" * 16}, 0.25, 1700000000.123)
        histogram.add_metric(["x"], [("0.1", 1), ("0.5", 2, exemplar), ("+Inf", 3)], 1.75)
        histogram.add_metric(["below zero"], [("-0.5", 1), ("+Inf", 3)], None)
        return [counter, gauge, histogram, GaugeMetricFamily("d_empty", "None.", labels=["m"])]


def registry() -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(Families())
    return registry


def test_the_text_format_is_prometheus_clients() -> None:
    assert text_page(Families().collect()) == generate_latest(registry()).decode()


def test_open_metrics_are_prometheus_clients() -> None:
    expected: bytes = open_metrics.generate_latest(registry())  # type: ignore[no-untyped-call]  # untyped library
    assert open_metrics_page(Families().collect()) + "# EOF\n" == expected.decode()
