import pytest

from benchmarks.batching.simulated_grid import Point, fixed_settings, goals, greedy_setting, objective_setting
from benchmarks.batching.simulated_paper import TABLE_4
from benchmarks.batching.simulation import Device, Result, bursts, poisson, simulate

DEVICE = Device("d", 5e-3, 5e-5, 256, 20e-3)


def test_capacity_is_that_of_the_largest_batch_of_which_two_fit() -> None:
    # 64 rows take 8.2 ms; 128 rows take 11.4 ms.
    assert DEVICE.capacity == pytest.approx(64 / 8.2e-3)


def test_arrivals_have_the_requested_rate() -> None:
    for arrivals in (poisson, bursts(0.02)):
        times = arrivals(1000.0, 20_000, 3)
        assert times == sorted(times)
        assert len(times) == 20_000
        assert len(times) / times[-1] == pytest.approx(1000, rel=0.15)
        assert times == arrivals(1000.0, 20_000, 3)


def test_bursts_are_burstier_than_poisson() -> None:
    def most_in_10_ms(times: list[float]) -> int:
        counts: dict[int, int] = {}
        for at_s in times:
            counts[int(at_s * 100)] = counts.get(int(at_s * 100), 0) + 1
        return max(counts.values())

    assert most_in_10_ms(bursts(0.02)(5000.0, 5000, 1)) > 1.5 * most_in_10_ms(poisson(5000.0, 5000, 1))


@pytest.mark.parametrize("load", [0.5, 0.9])
def test_below_capacity_the_objective_answers_everybody_in_time(load: float) -> None:
    result = simulate(DEVICE, objective_setting(DEVICE), poisson(load * DEVICE.capacity, 3000, 7))
    assert result.refused == 0
    assert result.in_time == 3000


@pytest.mark.parametrize("load", [1.2, 2.0])
@pytest.mark.parametrize("arrivals", [poisson, bursts(DEVICE.latency_s)])
def test_under_overload_the_objective_holds_for_whom_it_admits(load: float, arrivals: object) -> None:
    assert callable(arrivals)
    times = arrivals(load * DEVICE.capacity, 4000, 7)
    result = simulate(DEVICE, objective_setting(DEVICE), times)
    greedy = simulate(DEVICE, greedy_setting(DEVICE), times)
    assert result.refused
    assert result.p99_s <= DEVICE.latency_s
    assert result.goodput > greedy.goodput


def test_the_percentile_holds_on_a_device_whose_costs_vary() -> None:
    device = Device("d", 5e-3, 5e-5, 256, 20e-3, jitter=0.05)
    result = simulate(device, objective_setting(device), poisson(1.2 * device.capacity, 6000, 7))
    assert result.late_share <= 0.01


def test_a_run_is_the_same_every_time() -> None:
    device = Device("d", 5e-3, 5e-5, 256, 20e-3, jitter=0.1)
    times = poisson(1.5 * device.capacity, 1000, 7)
    first, second = (simulate(device, objective_setting(device), times, seed=3) for _ in range(2))
    assert (first.refused, first.in_time, first.p99_s) == (second.refused, second.in_time, second.p99_s)


def test_slower_devices_give_the_same_figures() -> None:
    slow = Device("d", 5.0, 5e-2, 256, 20.0)
    times = poisson(1.2 * DEVICE.capacity, 2000, 7)
    ours = simulate(DEVICE, objective_setting(DEVICE), times)
    theirs = simulate(slow, objective_setting(slow), [1000 * at_s for at_s in times])
    assert theirs.refused == pytest.approx(ours.refused, abs=3)
    assert theirs.p99_s == pytest.approx(1000 * ours.p99_s, rel=0.01)


def test_the_grid_has_every_size_with_every_timeout_and_queue() -> None:
    names = [setting.name for setting in fixed_settings(DEVICE)]
    assert len(names) == len(set(names)) == len(DEVICE.sizes) * 9


def test_devices_of_the_paper_have_its_rates() -> None:
    for paper in TABLE_4:
        device = paper.device
        assert device.max_rows / device.cost_s(device.max_rows) == pytest.approx(paper.most, rel=0.01)


def result(goodput: float, p99_s: float = 0.01, in_time: int = 100) -> Result:
    return Result(100, 0, in_time, goodput, p99_s, 1.0, 1.0)


def test_goals_are_missed_where_a_point_misses_them() -> None:
    def point(load: float, ours: Result, best: float) -> Point:
        return Point(DEVICE, "Poisson", load, ours, result(1.0), result(best), "fixed")

    fine = [point(0.5, result(50.0), 50.0), point(2.0, result(95.0), 90.0)]
    assert all(goal.reached for goal in goals(fine))
    bad = [point(0.9, result(85.0, 0.021, 98), 90.0), point(2.0, result(70.0), 60.0)]
    assert [goal.reached for goal in goals(bad)] == [False, False, False, False]
