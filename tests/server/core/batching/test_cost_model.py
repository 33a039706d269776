import random
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpuserve_server.core.batching.cost_model import CostCurve, CostModel, Line, fit_line


def test_signatures_and_lengths_are_learned_apart() -> None:
    costs = CostModel()
    costs.learn("a", 1, 0.001)
    costs.learn("a", 2, 0.002)
    costs.learn("a", 1, 0.010, (128,))
    costs.learn("b", 1, 0.100)
    means = [costs.cost("a", 1), costs.cost("a", 1, (128,)), costs.cost("b", 1)]
    assert [cost and cost.mean_s for cost in means] == [0.001, 0.010, 0.100]
    line = costs.line("a")
    assert line is not None
    assert line.at(3) == pytest.approx(0.003)
    assert costs.line("b") is None


def test_what_never_ran_has_no_cost() -> None:
    assert CostModel().cost("a", 1) is None
    assert CostModel().line("a") is None
    assert CostModel().snapshot() == ()


def test_a_snapshot_has_every_size_in_order() -> None:
    costs = CostModel()
    for rows in (4, 1, 4):
        costs.learn("a", rows, rows / 1000)
    (curve,) = costs.snapshot()
    assert (curve.signature_name, curve.lengths) == ("a", ())
    assert [(cost.rows, cost.runs, cost.mean_s) for cost in curve.costs] == [(1, 1, 0.001), (4, 2, 0.004)]
    assert curve.line is not None
    assert curve.line.per_row_s == pytest.approx(0.001)


def test_threads_may_learn_at_once() -> None:
    costs = CostModel()

    def learn(_: int) -> None:
        for run in range(1000):
            costs.learn("a", 1 + run % 3, 0.001)
            costs.cost("a", 5)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(learn, range(4)))
    (curve,) = costs.snapshot()
    assert sum(cost.runs for cost in curve.costs) == 4000


def test_lengths_without_end_do_not_fill_the_memory() -> None:
    costs = CostModel()
    for length in range(3000):
        costs.learn("a", 1, 0.001, (length,))
    assert len(costs.snapshot()) == 1024


def warmed(t0_s: float, per_row_s: float, noise: float = 0.0) -> CostCurve:
    """Return a curve after five runs of each size up to 64, which cost t0 + per_row * rows plus noise."""
    chance = random.Random(1)
    curve = CostCurve()
    for rows in (1, 2, 4, 8, 16, 32, 64):
        for _ in range(5):
            curve.learn(rows, (t0_s + per_row_s * rows) * (1 + chance.uniform(-noise, noise)))
    return curve


def mean_s(curve: CostCurve, rows: int) -> float:
    cost = curve.cost(rows)
    assert cost is not None
    return cost.mean_s


def spread_s(curve: CostCurve, rows: int) -> float:
    cost = curve.cost(rows)
    assert cost is not None
    return cost.spread_s


def test_nothing_is_known_before_the_first_run() -> None:
    assert CostCurve().cost(1) is None
    assert CostCurve().line() is None


def test_first_runs_count_alike() -> None:
    curve = CostCurve()
    assert [curve.learn(4, run_s) for run_s in (0.010, 0.012, 0.014)] == pytest.approx([0, 0.010, 0.011])
    assert mean_s(curve, 4) == pytest.approx(0.012)
    assert spread_s(curve, 4) == pytest.approx(0.002 * (2 / 3) ** 0.5)


def test_one_size_says_nothing_of_others() -> None:
    curve = CostCurve()
    curve.learn(4, 0.01)
    assert curve.line() is None
    assert curve.cost(8) is None


def test_one_run_leaves_a_wide_spread() -> None:
    curve = CostCurve()
    curve.learn(4, 0.01)
    assert spread_s(curve, 4) == pytest.approx(0.001)


def test_steady_runs_keep_a_narrow_spread_and_never_none() -> None:
    curve = CostCurve()
    for _ in range(1000):
        curve.learn(4, 0.01)
    assert spread_s(curve, 4) == pytest.approx(0.0001)


def test_the_line_is_found_under_noise() -> None:
    line = warmed(0.001, 0.00004, noise=0.05).line()
    assert line is not None
    assert line.t0_s == pytest.approx(0.001, rel=0.05)
    assert line.per_row_s == pytest.approx(0.00004, rel=0.15)


def test_sizes_that_never_ran_cost_what_the_line_says() -> None:
    assert mean_s(warmed(0.001, 0.00004), 48) == pytest.approx(0.001 + 48 * 0.00004)
    assert spread_s(warmed(0.001, 0.00004), 48) == pytest.approx(0.02 * (0.001 + 48 * 0.00004))


@given(
    st.dictionaries(st.integers(1, 4096), st.floats(0, 10), min_size=2, max_size=40),
)
def test_no_line_is_negative_anywhere(points: dict[int, float]) -> None:
    line = fit_line(list(points.items()))
    assert line is not None
    assert line.t0_s >= 0
    assert line.per_row_s >= 0


def test_larger_batches_that_cost_less_make_a_flat_line() -> None:
    line = fit_line([(1, 0.003), (2, 0.002), (4, 0.001)])
    assert line is not None
    assert line.per_row_s == 0
    assert 0.001 < line.t0_s < 0.002


def test_a_cost_that_more_than_doubles_makes_a_line_through_nothing() -> None:
    line = fit_line([(1, 0.001), (2, 0.003), (4, 0.009)])
    assert line is not None
    assert line.t0_s == 0
    assert line.at(2) == pytest.approx(2 * line.per_row_s)


def test_a_point_is_no_line() -> None:
    assert fit_line([(4, 0.01)]) is None
    assert fit_line([(1, 0.5), (2, 1.0)]) == Line(0.0, 0.5)


def test_fewer_rows_never_cost_more() -> None:
    curve = warmed(0.001, 0.00004)
    for _ in range(5):
        curve.learn(6, 0.5)
    assert mean_s(curve, 6) == mean_s(curve, 8)
    assert next(cost.mean_s for cost in curve.measured() if cost.rows == 6) == 0.5


def test_one_late_run_hardly_counts() -> None:
    curve = warmed(0.001, 0.00004, noise=0.02)
    before_s, spread_before_s = mean_s(curve, 8), spread_s(curve, 8)
    for _ in range(20):
        curve.learn(8, before_s)
    curve.learn(8, 1.0)
    for _ in range(20):
        curve.learn(8, before_s)
    assert mean_s(curve, 8) == pytest.approx(before_s, rel=0.02)
    assert spread_s(curve, 8) < 2 * spread_before_s


@pytest.mark.parametrize("factor", [3.0, 0.3])
def test_a_lasting_change_is_learned(factor: float) -> None:
    curve = warmed(0.001, 0.00004)
    for _ in range(1000):
        curve.learn(8, mean_s(warmed(0.001, 0.00004), 8))
    for _ in range(300):
        curve.learn(8, factor * 0.00132)
    assert mean_s(curve, 8) == pytest.approx(min(factor * 0.00132, 0.00164), rel=0.02)
    assert next(cost.mean_s for cost in curve.measured() if cost.rows == 8) == pytest.approx(factor * 0.00132, rel=0.02)


def test_what_became_fast_again_is_believed_soon() -> None:
    curve = warmed(0.001, 0.00004)
    for _ in range(300):
        curve.learn(64, 0.0356)
    for _ in range(15):
        curve.learn(64, 0.00356)
    # A weight of 0.02 would have left three quarters of the difference.
    assert mean_s(curve, 64) < 0.5 * 0.0356


def test_a_size_that_is_not_run_is_given_another_chance() -> None:
    curve = warmed(0.001, 0.00004)
    for _ in range(300):
        curve.learn(8, 3 * 0.00132)
        curve.learn(64, 3 * 0.00356)
    assert mean_s(curve, 64) == pytest.approx(3 * 0.00356, rel=0.02)
    for _ in range(10_000):
        curve.learn(8, 0.00132)
        curve.cost(8)
    assert mean_s(curve, 64) == pytest.approx(0.00356, rel=0.02)
    # The curve never forgets the lowest cost.
    assert mean_s(curve, 64) >= 0.00356


def test_runs_that_took_no_time_are_no_trouble() -> None:
    curve = CostCurve()
    for rows in (1, 2):
        for _ in range(20):
            curve.learn(rows, 0.0)
    assert mean_s(curve, 4) == 0
    for _ in range(300):
        curve.learn(2, 0.001)
    assert mean_s(curve, 2) == pytest.approx(0.001, rel=0.05)


def test_sizes_are_bounded() -> None:
    curve = CostCurve()
    for rows in range(1, 5000):
        curve.learn(rows, 0.001 + rows * 1e-6)
    assert len(curve.measured()) == 1024
    assert mean_s(curve, 4999) == pytest.approx(0.001 + 4999e-6, rel=0.01)


def test_one_late_run_among_the_first_counts_as_little_as_can_be() -> None:
    curve = CostCurve()
    for run_s in (0.005, 0.005, 0.005, 0.005, 1.0, 0.005):
        curve.learn(8, run_s)
    assert mean_s(curve, 8) < 0.0065


def test_fastest_run_is_the_least_of_all_sizes_and_0_without_runs() -> None:
    costs = CostModel()
    assert costs.fastest_s(["a"]) == costs.fastest_s([]) == 0.0
    costs.learn("a", 4, 0.3)
    costs.learn("a", 1, 0.1)
    for _ in range(100):
        # A slow neighbour.
        costs.learn("a", 1, 5.0)
    costs.learn("b", 1, 0.2, (16,))
    assert costs.fastest_s(["a"]) == 0.1
    assert costs.fastest_s(["a", "b"]) == 0.1
    assert costs.fastest_s(["a", "c"]) == 0.0
