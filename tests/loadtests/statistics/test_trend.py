"""Tests for slopes and their confidence, on series with known slopes."""

import numpy as np
import pytest

from tpuserve_loadtests.statistics.trend import find_trend

CONFIDENCE = 0.999


def noise(seed: int, count: int, correlation: float = 0.0) -> np.ndarray:
    """Return noise of standard deviation 1 with the given correlation between neighbours."""
    drawn = np.random.default_rng(seed).normal(size=count + 50)
    for number in range(1, len(drawn)):
        drawn[number] += correlation * drawn[number - 1]
    scaled: np.ndarray = drawn[50:] * np.sqrt(1 - correlation**2)
    return scaled


def test_the_slope_is_the_median_of_all_pairs_whatever_a_few_values_do() -> None:
    times = np.arange(20.0)
    values = 3 * times + 5
    values[[4, 11]] = 1000, -1000
    trend = find_trend(times.tolist(), values.tolist(), CONFIDENCE)
    assert trend is not None
    assert trend.slope == pytest.approx(3)
    assert trend.rises
    assert not trend.falls
    assert trend.low <= trend.slope <= trend.high


def test_falling_values_fall() -> None:
    trend = find_trend(range(30), [100 - n + 0.1 * (-1) ** n for n in range(30)], CONFIDENCE)
    assert trend is not None
    assert trend.falls
    assert not trend.rises
    assert trend.high < 0


def test_values_that_never_change_have_no_trend() -> None:
    trend = find_trend(range(12), [0.0] * 12, CONFIDENCE)
    assert trend is not None
    assert (trend.slope, trend.low, trend.high) == (0, 0, 0)
    assert not trend.rises
    assert not trend.falls


def test_too_few_values_tell_nothing() -> None:
    assert find_trend(range(9), range(9), CONFIDENCE) is None


@pytest.mark.parametrize("correlation", [0.0, 0.5])
def test_noise_is_no_trend_even_where_neighbours_are_alike(correlation: float) -> None:
    found = [find_trend(range(48), noise(seed, 48, correlation).tolist(), CONFIDENCE) for seed in range(300)]
    assert sum(trend is not None and (trend.rises or trend.falls) for trend in found) <= 3


def test_the_interval_holds_the_true_slope() -> None:
    times = np.linspace(0, 4, 48)
    found = [find_trend(times.tolist(), (2 * times + noise(seed, 48)).tolist(), CONFIDENCE) for seed in range(200)]
    assert sum(trend is not None and trend.low <= 2 <= trend.high for trend in found) >= 198
