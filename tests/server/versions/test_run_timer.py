import pytest

from tests.support.fakes import FakeClock
from tpuserve_server.core.batching.cost_model import CostModel
from tpuserve_server.core.batching.parameters import BatchingOptions, LatencyObjective
from tpuserve_server.core.terms.errors import InvalidArgument
from tpuserve_server.versions.run_timer import RunTimer, check_objectives


class SlowRuns:
    """Runs that each take `run_s`."""

    def __init__(self, clock: FakeClock, run_s: float) -> None:
        self.clock = clock
        self.run_s = run_s
        self.count = 0

    def __call__(self) -> None:
        self.count += 1
        self.clock.now_s += self.run_s


@pytest.mark.parametrize(("run_s", "count"), [(0.001, 5), (0.1, 3), (0.25, 1), (60.0, 1)])
def test_slow_shapes_are_run_less_often_but_at_least_once(run_s: float, count: int) -> None:
    clock, costs = FakeClock(), CostModel()
    run = SlowRuns(clock, run_s)
    RunTimer(costs, clock).time(run, "s", 8)
    assert run.count == count
    cost = costs.cost("s", 8)
    assert cost is not None
    assert cost.mean_s == pytest.approx(run_s)


def test_a_version_with_many_shapes_comes_to_an_end() -> None:
    clock, costs = FakeClock(), CostModel()
    timer = RunTimer(costs, clock)
    runs = [SlowRuns(clock, 0.1) for _ in range(30)]
    for rows, run in enumerate(runs, start=1):
        timer.time(run, "s", rows, (64,))
    counts = [run.count for run in runs]
    assert counts[:16] == [3] * 16
    assert counts[17:] == [1] * 13
    (curve,) = costs.snapshot()
    assert curve.lengths == (64,)
    assert len(curve.costs) == 30


def test_one_slow_run_is_left_out() -> None:
    clock, costs = FakeClock(), CostModel()
    runs_s = iter([0.010, 0.012, 0.200, 0.011, 0.011])

    def run() -> None:
        clock.now_s += next(runs_s)

    RunTimer(costs, clock).time(run, "s", 1)
    ((measured,),) = [curve.costs for curve in costs.snapshot()]
    assert measured.mean_s == pytest.approx(0.011)
    assert measured.spread_s < 0.001


def within(latency_s: float) -> dict[str, BatchingOptions]:
    return {"s": BatchingOptions(4, (1, 4), objective=LatencyObjective(latency_s))}


def costing(*runs_s: float, lengths: tuple[int, ...] = ()) -> CostModel:
    costs = CostModel()
    for run_s in runs_s:
        costs.learn("s", 1, run_s, lengths)
        costs.learn("s", 4, 2 * run_s, lengths)
    return costs


def test_an_objective_below_the_smallest_batch_is_refused_with_what_would_work() -> None:
    costs = costing(0.0062, 0.0072, 0.0082)
    with pytest.raises(InvalidArgument) as raised:
        check_objectives(within(0.005), costs)
    assert raised.value.message == (
        "latency_objective_ms is 5, but the fastest batch of signature 's', of 1 row, takes 7.2 ms ± 0.82 ms "
        "(fastest run: 6.2 ms). Set at least 17, twice that time, or remove latency_objective_ms"
    )
    check_objectives(within(0.017), costs)


def test_what_a_busy_machine_made_slow_is_not_impossible() -> None:
    check_objectives(within(0.005), costing(0.0300, 0.0045, 0.0700, 0.0400))
    with pytest.raises(InvalidArgument, match=r"takes 27\.7 ms ± .*fastest run: 5\.5 ms"):
        check_objectives(within(0.005), costing(0.0300, 0.0055, 0.0700, 0.0400))


def test_the_shortest_sequence_decides() -> None:
    costs = costing(0.100, lengths=(512,))
    costs.learn("s", 1, 0.001, (64,))
    check_objectives(within(0.005), costs)


def test_nothing_is_refused_without_a_measurement_or_an_objective() -> None:
    check_objectives(within(0.005), CostModel())
    check_objectives({"s": BatchingOptions(4, (1, 4))}, costing(10.0))
