"""Tests for the table of LoadGen, whose MultiStream scenario runs 662 queries (p99 with one late query)."""

import numpy as np
import pytest

from tpuserve_loadtests.statistics.early_stopping import (
    late_allowed,
    late_probability,
    queries_needed,
    upper_bound_us,
)
from tpuserve_loadtests.statistics.histogram import LatencyHistogram

LATE = (0, 1, 2, 5, 10, 50, 100)
TABLE = {
    90: (44, 64, 81, 127, 197, 681, 1_246),
    99: (459, 662, 838, 1_307, 2_010, 6_898, 12_571),
    99.9: (4_603, 6_636, 8_403, 13_105, 20_140, 69_058, 125_826),
}
CELLS = [(percentile, late, n) for percentile, row in TABLE.items() for late, n in zip(LATE, row, strict=True)]


@pytest.mark.parametrize(("percentile", "late", "queries"), CELLS)
def test_so_many_queries_show_a_percentile(percentile: float, late: int, queries: int) -> None:
    assert queries_needed(percentile, late) == queries
    assert late_allowed(queries, percentile) == late
    assert late_allowed(queries - 1, percentile) == (late - 1 if late else None)


def test_the_probability_holds_for_millions_of_queries() -> None:
    # The expected share is late, 0.1 %, so the odds are about even.
    assert late_probability(10_000_000, 10_000, 0.999) == pytest.approx(0.5, abs=0.01)
    assert late_probability(10_000_000, 9_000, 0.999) < 1e-20
    assert late_probability(5, 5, 0.99) == 1


def test_the_bound_is_not_exceeded_as_often_as_it_says() -> None:
    random = np.random.default_rng(3)
    held = 0
    true_p99_us = 100_000 * -np.log(0.01)
    for _ in range(300):
        histogram = LatencyHistogram()
        for latency in random.exponential(100_000, 2_000):
            histogram.record(float(latency))
        bound = upper_bound_us(histogram, 99)
        assert bound is not None
        held += bound >= true_p99_us * 0.999
    assert held >= 293  # 99 % of 300 are 297. A correct bound gives fewer than 293 once in 30 such tests.


def test_too_few_requests_bound_nothing() -> None:
    histogram = LatencyHistogram()
    histogram.record(5, 458)
    assert upper_bound_us(histogram, 99) is None
    histogram.record(7)
    assert upper_bound_us(histogram, 99) == 7
