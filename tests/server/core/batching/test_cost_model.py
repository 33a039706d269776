from concurrent.futures import ThreadPoolExecutor

import pytest

from tpuserve_server.core.batching.cost_model import CostModel


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
