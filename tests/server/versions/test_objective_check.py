import pytest

from tpuserve_server.core.batching.cost_model import CostModel
from tpuserve_server.core.batching.parameters import BatchingOptions, LatencyObjective
from tpuserve_server.core.terms.errors import InvalidArgument
from tpuserve_server.versions.objective_check import check_objectives


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
