"""The windows at a run's start that its figures omit."""

import numpy as np
import pytest

from tpuserve_loadtests.statistics.warm_up import windows_to_drop

WINDOWS = 40


def steady(seed: int, noise: float = 0.1, correlation: float = 0.4) -> list[float]:
    random = np.random.default_rng(seed)
    values = [0.0]
    for _ in range(WINDOWS):
        values.append(correlation * values[-1] + float(random.normal()) * (1 - correlation**2) ** 0.5)
    return [float(np.exp(noise * value)) for value in values[1:]]


@pytest.mark.parametrize(
    ("slow", "factor"),
    [(1, 10.0), (13, 2.0), (13, 0.5), (20, 1.5)],
    ids=["one slow window", "a slow first third", "a fast first third", "a slow first half"],
)
def test_start_that_differs_is_dropped_as_a_whole(slow: int, factor: float) -> None:
    found = [
        windows_to_drop([value * (factor if at < slow else 1) for at, value in enumerate(steady(seed))])
        for seed in range(50)
    ]
    assert sum(slow - 1 <= each <= slow + 3 for each in found) >= 45


def test_gradual_warm_up_is_dropped_until_it_is_lost_in_noise() -> None:
    found = windows_to_drop([value * (1 + 3 * 0.75**at) for at, value in enumerate(steady(7, noise=0.05))])
    assert 8 <= found <= 18


def test_steady_runs_keep_their_start() -> None:
    assert sum(windows_to_drop(steady(seed, noise=0.3)) > 0 for seed in range(200)) <= 6


def test_change_after_half_of_the_run_is_no_warm_up() -> None:
    assert windows_to_drop([1.0, 1.1] * 15 + [5.0, 5.1] * 5) == 0


def test_windows_without_a_figure_count_among_the_dropped() -> None:
    values: list[float | None] = [*steady(3)]
    assert windows_to_drop([None, None, 9.0, 9.5, *values]) == 4


def test_constant_run_and_short_run_keep_their_start() -> None:
    assert windows_to_drop([2.0] * 40) == 0
    assert windows_to_drop([9.0, *([1.0] * 9)]) == 0


def test_constant_run_loses_a_start_of_any_other_value() -> None:
    assert windows_to_drop([3.0, *([2.0] * 39)]) == 1
