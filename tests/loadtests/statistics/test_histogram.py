import math

import numpy as np
import pytest

from tpuserve_loadtests.statistics.histogram import HIGHEST_US, LatencyHistogram


def histogram_of(values: np.ndarray) -> LatencyHistogram:
    histogram = LatencyHistogram()
    for value, count in zip(*np.unique(values, return_counts=True), strict=True):
        histogram.record(float(value), int(count))
    return histogram


def test_percentiles_of_ten_million_latencies_are_within_a_percent_of_exact() -> None:
    random = np.random.default_rng(20)
    # Three kinds of requests, in microseconds: most take some milliseconds, some wait, few meet a pause.
    sizes = (9_000_000, 950_000, 50_000)
    means = (math.log(4_000), math.log(20_000), math.log(400_000))
    latencies = np.rint(np.concatenate([random.lognormal(m, 0.5, n) for m, n in zip(means, sizes, strict=True)]))
    histogram = histogram_of(latencies.astype(np.int64))
    assert histogram.count == 10_000_000
    latencies.sort()
    for percent in (1, 10, 50, 90, 95, 99, 99.9, 99.99, 99.999):
        exact = latencies[math.ceil(len(latencies) * percent / 100) - 1]
        assert histogram.percentile_us(percent) == pytest.approx(exact, rel=0.01)
    assert histogram.mean_us() == pytest.approx(latencies.mean(), rel=0.01)
    assert histogram.count_above(20_000) == pytest.approx((latencies > 20_000).sum(), rel=0.01)


def test_histograms_of_several_processes_add_up_to_the_one_of_all() -> None:
    random = np.random.default_rng(1)
    parts = [np.rint(random.lognormal(8 + number, 1, 5_000)).astype(np.int64) for number in range(3)]
    merged = LatencyHistogram()
    for part in parts:
        sent = histogram_of(part)
        merged.add(LatencyHistogram.decode(sent.encode(), sent.max_us))
    whole = histogram_of(np.concatenate(parts))
    assert merged.count == whole.count == 15_000
    assert merged.max_us == whole.max_us
    for percent in (0, 50, 99, 99.9, 100):
        assert merged.percentile_us(percent) == whole.percentile_us(percent)


def test_recorded_latencies_come_back_with_their_counts() -> None:
    histogram = LatencyHistogram()
    for value, count in {1: 3, 2047: 1, 2048: 2, 5_000: 4, 1_000_000: 1}.items():
        histogram.record(value, count)
    values, counts = histogram.recorded()
    assert counts.tolist() == [3, 1, 2, 4, 1]
    np.testing.assert_allclose(values, [1, 2047, 2048, 5_000, 1_000_000], rtol=1e-3)


def test_latencies_out_of_range_are_clamped() -> None:
    histogram = LatencyHistogram()
    histogram.record(0.2)
    histogram.record(10.0 * HIGHEST_US)
    assert histogram.value_at_rank(1) == 1
    assert histogram.value_at_rank(2) == histogram.max_us == HIGHEST_US


def test_an_empty_histogram_has_no_percentile_and_survives_its_encoding() -> None:
    empty = LatencyHistogram.decode(LatencyHistogram().encode(), 0)
    assert empty.count == 0
    assert empty.percentile_us(99) is None
    assert empty.mean_us() is None
    assert empty.count_above(1) == 0
