"""Tests for metrics of other parts of the host on the page."""

import logging

import pytest

from tpuserve_server.metrics.prometheus import PrometheusMetrics


def failures(page: bytes) -> list[str]:
    return [line for line in page.decode().splitlines() if line.startswith("tpuserve_metrics_source_failures_total")]


def test_a_source_joins_the_page() -> None:
    metrics = PrometheusMetrics()
    metrics.sources.add("envoy", lambda: "# TYPE envoy_x gauge\nenvoy_x 5\n")
    page = metrics.render()[0]
    assert b"\nenvoy_x 5\n" in page
    assert failures(page) == ['tpuserve_metrics_source_failures_total{source="envoy"} 0.0']


def test_a_source_that_fails_is_omitted_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> str:
        raise OSError("no response")

    metrics = PrometheusMetrics()
    metrics.sources.add("envoy", fail)
    with caplog.at_level(logging.WARNING):
        for render in (metrics.render, metrics.render_open_metrics):
            page = render()[0]
            assert b"process_cpu_seconds_total" in page
    assert failures(page) == ['tpuserve_metrics_source_failures_total{source="envoy"} 2.0']
    assert [record.getMessage() for record in caplog.records] == ["The metrics page lacks those of envoy: no response"]
