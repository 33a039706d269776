import pytest

from benchmarks.batching.objective_live import ROWS, batch_costs, capacity, step
from benchmarks.batching.open_load import Seen
from benchmarks.harness.process_tree import ServerDied

PAGE = """
tpuserve_batch_cost_seconds{model_name="mlp",version="1",signature="deep",lengths="",bucket="8"} 0.002
tpuserve_batch_cost_seconds{model_name="mlp",version="1",signature="deep",lengths="",bucket="64"} 0.008
tpuserve_batch_cost_seconds{model_name="mlp",version="1",signature="deep",lengths="",bucket="128"} 0.014
tpuserve_batch_cost_seconds{model_name="mlp",version="1",signature="serving_default",lengths="",bucket="8"} 1e-05
"""


def test_costs_are_those_of_the_deep_signature() -> None:
    assert batch_costs(PAGE) == {8: 0.002, 64: 0.008, 128: 0.014}


def test_capacity_is_of_the_best_batch_that_can_run_twice_within_the_objective() -> None:
    # A batch of 128 rows costs less per row, but takes 28 ms, which exceeds the objective of 20 ms.
    assert capacity(batch_costs(PAGE)) == pytest.approx(64 / 0.008 / ROWS)


def test_a_machine_that_is_too_slow_is_said() -> None:
    with pytest.raises(ServerDied, match="No batch size can run twice within 20 ms"):
        capacity({8: 0.011})


def test_a_step_counts_what_is_late_and_what_is_refused_apart() -> None:
    seen = Seen(
        latencies_ms=[5.0, 10.0, 25.0], lags_ms=[0.1] * 5, codes={"OK": 3, "RESOURCE_EXHAUSTED": 1, "INTERNAL": 1}
    )
    found = step("objective", 50, 2.5, 2, seen)
    assert (found.offered_per_s, found.goodput_per_s, found.refused) == (2.5, 1.0, 0.2)
    assert found.within_objective == pytest.approx(2 / 3)
    assert (found.p50_ms, found.p99_ms, found.others) == (10.0, 25.0, {"INTERNAL": 1})
