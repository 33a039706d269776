"""Tests for intervals of medians, against Le Boudec's table and simulated values."""

import numpy as np
import pytest

from tpuserve_loadtests.statistics.median_interval import median_interval, values_needed


# Ranks of the interval of a 95 % confidence (Le Boudec, table A.1).
@pytest.mark.parametrize(
    ("count", "ranks"),
    [(6, (1, 6)), (7, (1, 7)), (8, (1, 8)), (9, (2, 8)), (10, (2, 9)), (12, (3, 10)), (20, (6, 15)), (31, (10, 22))],
)
def test_ranks_are_those_of_the_table(count: int, ranks: tuple[int, int]) -> None:
    values = [float(value) for value in np.random.default_rng(count).permutation(count) + 1]
    found = median_interval(values)
    assert found is not None
    assert [found.low, found.high] == list(ranks)
    assert found.median == (count + 1) / 2


def test_six_values_are_needed_for_95_percent_and_eight_for_99() -> None:
    assert values_needed() == 6
    assert values_needed(0.99) == 8
    assert median_interval([1.0] * 5) is None
    assert median_interval([1.0] * 7, 0.99) is None
    assert median_interval([1.0] * 8, 0.99) is not None


@pytest.mark.parametrize("count", [6, 9, 15])
def test_the_interval_covers_the_median_as_often_as_it_claims(count: int) -> None:
    runs = np.random.default_rng(count).lognormal(2.0, 0.7, (4000, count))
    found = [median_interval(values.tolist()) for values in runs]
    covered = np.mean([each is not None and each.low <= np.exp(2.0) <= each.high for each in found])
    assert covered >= 0.94


def test_the_distance_is_that_of_the_farther_end() -> None:
    found = median_interval([8.0, 9.0, 10.0, 10.0, 10.0, 13.0])
    assert found is not None
    assert found.distance == pytest.approx(0.3)
    zero = median_interval([0.0] * 6)
    assert zero is not None
    assert zero.distance == float("inf")
