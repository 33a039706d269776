"""Tests for the statistics of a version: totals of its requests and batches, and of no other's."""

import time

from tests.support.measured import ID, finish, run_batch
from tpuserve_server.core.terms.errors import Code
from tpuserve_server.core.terms.statistics import Total, VersionStatistics
from tpuserve_server.core.terms.types import ServableId, State
from tpuserve_server.observe.metrics.prometheus import PrometheusMetrics
from tpuserve_server.observe.metrics.version_statistics import version_statistics

OTHER = ServableId("m", 4)


def test_a_version_without_requests_has_zeros() -> None:
    assert version_statistics(PrometheusMetrics(), ID) == VersionStatistics()


def test_totals_of_requests_and_batches() -> None:
    metrics = PrometheusMetrics()
    before_ms = time.time() * 1000
    finish(metrics, latency_s=0.5, protocol="rest")
    finish(metrics, latency_s=0.25, method="ModelInfer")
    finish(metrics, latency_s=0.125, code=Code.INTERNAL)
    # Health checks and unknown versions have no version.
    finish(metrics, version=None)
    finish(metrics, version=OTHER.version)
    run_batch(metrics, task_rows=[1, 2], bucket=4, queue_waits_s=[0.1, 0.2], run_s=0.5)
    run_batch(metrics, task_rows=[4], bucket=4, queue_waits_s=[0.3], run_s=0.25)
    run_batch(metrics, task_rows=[8], bucket=8, queue_waits_s=[0.0], run_s=1.0)
    run_batch(metrics, servable=OTHER, task_rows=[3], bucket=4)
    found = version_statistics(metrics, ID)
    assert (found.rows, found.batches) == (15, 3)
    assert found.success == Total(2, 750_000_000)
    assert found.fail == Total(1, 125_000_000)
    assert found.queue == Total(2, 600_000_000)
    # The first batch counts for both of its requests.
    assert found.compute == Total(4, 2_250_000_000)
    assert found.sizes == ((4, Total(2, 750_000_000)), (8, Total(1, 1_000_000_000)))
    assert before_ms - 1 <= found.last_inference_ms <= time.time() * 1000 + 1


def test_the_statistics_of_an_ended_version_are_removed() -> None:
    metrics = PrometheusMetrics()
    finish(metrics)
    run_batch(metrics)
    metrics.version_changed(servable=ID, state=State.END)
    assert version_statistics(metrics, ID) == VersionStatistics()
