"""Tests for the figures of the last seconds."""

import time
from pathlib import Path

import numpy as np
import pytest

from tests.support.fakes import FakeClock
from tests.support.measured import ID, finish, run_batch
from tpuserve_server.core.terms.errors import Code
from tpuserve_server.core.terms.statistics import Total, VersionStatistics
from tpuserve_server.core.terms.types import ServableId, State
from tpuserve_server.observe.metrics.live_measurements import (
    LiveMeasurements,
    RecentFigures,
    VersionOrigin,
    VersionTraffic,
    cpu_s,
    quantile,
    resident_bytes,
    version_statistics,
)
from tpuserve_server.observe.metrics.prometheus import PrometheusMetrics


class Gauge:
    name = "tpu:0"

    def __init__(self) -> None:
        self.busy = 0.0

    def busy_s(self) -> float:
        return self.busy

    def memory_bytes(self) -> dict[str, int]:
        return {"in_use": 1, "limit": 2}


class Measured:
    def __init__(self) -> None:
        self.clock, self.metrics, self.gauge = FakeClock(), PrometheusMetrics(), Gauge()
        self.metrics.devices.devices_opened(gauges=[self.gauge])
        self.live = LiveMeasurements(self.metrics, self.clock)
        self.window = self.live.open_window()

    def take_after(self, seconds: float) -> RecentFigures:
        self.clock.now_s += seconds
        return self.window.take()

    def traffic_after(self, seconds: float) -> VersionTraffic:
        versions = self.take_after(seconds).versions
        assert versions is not None
        return versions[ID]


@pytest.fixture
def measured() -> Measured:
    return Measured()


def test_one_measurement_has_no_rates(measured: Measured) -> None:
    finish(measured.metrics)
    assert measured.window.take().versions is None
    assert measured.window.take().cpu is None


def test_requests_and_batches_of_the_window(measured: Measured) -> None:
    finish(measured.metrics, latency_s=9.0)
    measured.window.take()
    for _ in range(6):
        finish(measured.metrics, latency_s=0.0015)
    finish(measured.metrics, latency_s=5.0, code=Code.INTERNAL, protocol="rest")
    finish(measured.metrics, version=None)
    run_batch(measured.metrics, task_rows=[1, 2], bucket=4, queue_waits_s=[0.1, 0.2], run_s=0.5)
    run_batch(measured.metrics, task_rows=[4], bucket=4, queue_waits_s=[0.3], run_s=0.25)
    traffic = measured.traffic_after(2.0)
    assert traffic.requests_per_s == pytest.approx(3.5)
    assert traffic.errors == {Code.INTERNAL: pytest.approx(0.5)}
    assert traffic.p50_s == pytest.approx(0.0015, rel=0.5)
    assert traffic.p99_s is not None
    assert traffic.p99_s < 0.003
    assert (traffic.batch_rows, traffic.batch_requests) == (3.5, 1.5)
    assert traffic.padding == pytest.approx(0.125)
    assert traffic.busy == pytest.approx(0.375)


def test_a_version_without_traffic_in_the_window_has_zeros(measured: Measured) -> None:
    finish(measured.metrics)
    measured.window.take()
    assert measured.traffic_after(1.0) == VersionTraffic(0.0)


def test_the_window_covers_the_last_five_seconds(measured: Measured) -> None:
    measured.window.take()
    finish(measured.metrics)
    rates = [measured.traffic_after(1.0).requests_per_s for _ in range(7)]
    assert rates == pytest.approx([1, 1 / 2, 1 / 3, 1 / 4, 1 / 5, 0, 0])


def test_a_version_that_is_loaded_again_counts_from_zero(measured: Measured) -> None:
    for _ in range(5):
        finish(measured.metrics)
    measured.window.take()
    measured.metrics.version_changed(servable=ID, state=State.END)
    finish(measured.metrics)
    assert measured.traffic_after(1.0).requests_per_s == 0


def test_devices_and_cpu(measured: Measured) -> None:
    measured.window.take()
    measured.gauge.busy += 1.0
    figures = measured.take_after(4.0)
    assert [(device.name, device.busy, device.memory_bytes) for device in figures.devices] == [
        ("tpu:0", 0.25, {"in_use": 1, "limit": 2})
    ]
    assert figures.cpu is not None
    assert figures.cpu >= 0


def test_a_window_sees_nothing_from_before_it(measured: Measured) -> None:
    measured.window.take()
    measured.window = measured.live.open_window()
    assert measured.take_after(100.0).versions is None


def test_origins_have_the_device_and_the_warm_up(measured: Measured) -> None:
    other = ServableId("m", 4)
    measured.metrics.devices.device_chosen(servable=ID, device="cpu", fallback="no_programs")
    measured.metrics.version_warmed(servable=other, path=Path("/m/4"), records=3, duration_s=0.5)
    assert measured.live.origins() == {ID: VersionOrigin("cpu", "no_programs"), other: VersionOrigin("", "", 0.5, 3)}


def test_cpu_time_grows() -> None:
    before_s = cpu_s()
    while cpu_s() == before_s:
        sum(range(1000))
    assert cpu_s() > before_s


def test_the_resident_memory_is_that_of_a_process_with_numpy() -> None:
    assert (resident_bytes() or 0) > 10 << 20


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


BOUNDS = np.array([1.0, 2.0, 4.0])


@pytest.mark.parametrize(
    ("cumulative", "share", "expected"),
    [
        ([0, 0, 0, 0], 0.5, None),
        ([4, 4, 4, 4], 0.5, 0.5),
        ([2, 4, 4, 4], 0.5, 1.0),
        ([2, 4, 4, 4], 0.75, 1.5),
        ([0, 0, 10, 10], 0.9, 3.8),
        ([0, 0, 0, 3], 0.5, 4.0),
        ([1, 1, 1, 2], 0.99, 4.0),
    ],
)
def test_values_are_spread_within_a_bucket(cumulative: list[int], share: float, expected: float | None) -> None:
    assert quantile(BOUNDS, np.array(cumulative), share) == (None if expected is None else pytest.approx(expected))
