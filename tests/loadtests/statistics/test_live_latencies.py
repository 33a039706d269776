"""Tests for the buckets of live latencies, against LatencyHistogram and numpy."""

import math

import msgpack  # type: ignore[import-untyped]  # ships no annotations
import numpy as np
import pytest

from tpuserve_loadtests.statistics.histogram import HIGHEST_US
from tpuserve_loadtests.statistics.live_latencies import LiveLatencies, LiveLatencyRecorder


def recorded(latencies_us: np.ndarray) -> LiveLatencies:
    recorder = LiveLatencyRecorder()
    for latency_us in latencies_us.tolist():
        recorder.record(latency_us)
    return recorder.state()


def latencies_us(count: int = 5000) -> np.ndarray:
    return np.random.default_rng(1).lognormal(9, 1.5, count)


@pytest.mark.parametrize("percent", [1, 50, 90, 99, 99.9, 100])
def test_percentiles_are_within_0_6_percent(percent: float) -> None:
    values = latencies_us()
    rank = math.ceil(len(values) * percent / 100 - 1e-6)
    expected_ms = np.sort(values)[rank - 1] / 1000
    assert recorded(values).percentile_ms(percent) == pytest.approx(expected_ms, rel=0.006)


def test_no_latency_has_no_percentile() -> None:
    assert LiveLatencies().percentile_ms(50) is None
    assert LiveLatencies().count == 0


def test_counts_up_to_a_power_of_two_milliseconds_are_exact() -> None:
    values = np.concatenate([latencies_us(), [1000.0, 2000.0, 500.0]])
    exponents = range(-4, 17)
    assert recorded(values).cumulative(exponents) == [int((values <= 1000 * 2.0**each).sum()) for each in exponents]


def test_values_beyond_the_range_are_counted_at_its_ends() -> None:
    latencies = recorded(np.array([0.2, 1.0, 2.0 * HIGHEST_US]))
    assert latencies.count == 3
    assert latencies.percentile_ms(100) == pytest.approx(HIGHEST_US / 1000, rel=0.006)


def test_a_period_is_the_difference_of_two_states() -> None:
    recorder = LiveLatencyRecorder()
    recorder.record(1_000_000)
    before = recorder.state()
    recorder.record(2_000)
    period = recorder.state().since(before)
    assert period.count == 1
    assert period.percentile_ms(99) == pytest.approx(2, rel=0.006)
    assert before.count == 1


def test_workers_add_up_to_one_recorder_over_the_wire() -> None:
    values = latencies_us()
    parts = [recorded(part) for part in np.array_split(values, 3)]
    received = [LiveLatencies.from_wire(msgpack.unpackb(msgpack.packb(part.to_wire()))) for part in parts]
    together, whole = sum(received, LiveLatencies()), recorded(values)
    assert together.counts.tolist() == whole.counts.tolist()
    assert together.count == len(values)
    assert whole.sum_us == int(np.rint(values).sum())
