"""QueueWaits: the mean wait since the last reading."""

import pytest

from tests.support.measured import ID, run_batch
from tpuserve_server.core.terms.types import State
from tpuserve_server.observe.metrics.prometheus import PrometheusMetrics
from tpuserve_server.observe.metrics.queue_waits import QueueWaits


def test_the_mean_counts_the_requests_since_the_last_reading() -> None:
    metrics = PrometheusMetrics()
    waits = QueueWaits(metrics)
    assert waits.take_mean_s() == 0
    run_batch(metrics, queue_waits_s=(0.1, 0.3))
    assert waits.take_mean_s() == pytest.approx(0.2)
    assert waits.take_mean_s() == 0
    run_batch(metrics, queue_waits_s=(0.5,))
    assert waits.take_mean_s() == pytest.approx(0.5)


def test_a_version_that_ends_takes_its_waits_with_it() -> None:
    metrics = PrometheusMetrics()
    waits = QueueWaits(metrics)
    run_batch(metrics, queue_waits_s=(0.1, 0.3))
    waits.take_mean_s()
    metrics.version_changed(servable=ID, state=State.END)
    assert waits.take_mean_s() == 0
