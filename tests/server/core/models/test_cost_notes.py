from tpuserve_server.core.batching.cost_model import CostModel
from tpuserve_server.core.models.model_record import describe_costs


def test_costs_are_told_by_size_and_as_a_line() -> None:
    costs = CostModel()
    for _ in range(10):
        costs.learn("serving_default", 1, 0.00094)
        costs.learn("serving_default", 8, 0.0012)
        costs.learn("other", 1, 1.5)
    costs.learn("other", 1, 0.00000125, (64, 128))
    assert describe_costs(costs) == [
        "serving_default: 1 row in 0.94 ms ± 0.0094 ms, 8 rows in 1.2 ms ± 0.012 ms; about 0.903 ms + 0.0371 ms per "
        "row",
        "other: 1 row in 1500 ms ± 15 ms",
        "other at length 64 x 128: 1 row in 0.00125 ms ± 0.001 ms",
    ]


def test_dozens_of_sizes_and_signatures_do_not_fill_the_status() -> None:
    costs = CostModel()
    for rows in range(1, 65):
        costs.learn("a", rows, 0.001)
    for number in range(20):
        costs.learn(f"s{number}", 1, 0.001)
    lines = describe_costs(costs)
    assert lines[0].count("row in") + lines[0].count("rows in") == 7
    assert len(lines) == 9
    assert lines[-1] == "13 more signatures or lengths: see the metric tpuserve_batch_cost_seconds"


def test_nothing_is_told_of_what_never_ran() -> None:
    assert describe_costs(CostModel()) == []
