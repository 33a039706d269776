import pytest

from benchmarks.batching import simulated_overload
from benchmarks.batching.simulated_overload import MACHINES, POLICIES, SCENARIOS, SERVER, Outcome, simulate

SECONDS = 0.5
HOST = MACHINES[1]
BY_NAME = {scenario.name: scenario for scenario in SCENARIOS}


@pytest.mark.parametrize("scenario", ["2x", "10x", "storm 1.5x"])
def test_under_overload_the_server_keeps_its_goodput(scenario: str) -> None:
    assert simulate(HOST, SERVER, BY_NAME[scenario], SECONDS).goodput >= simulated_overload.LEAST_SHARE_OF_PEAK


def test_first_come_first_served_answers_nobody_in_time() -> None:
    assert simulate(HOST, "first come", BY_NAME["2x"], SECONDS).goodput < 0.1


@pytest.mark.parametrize("queue", POLICIES)
def test_every_queue_keeps_up_with_its_capacity(queue: str) -> None:
    assert simulate(HOST, queue, BY_NAME["1x"], SECONDS).goodput > 0.9


def test_a_run_is_the_same_every_time() -> None:
    first, second = (simulate(HOST, SERVER, BY_NAME["mixed 1.2x"], SECONDS) for _ in range(2))
    assert first == second


def outcome(machine: str, queue: str, goodput: float) -> Outcome:
    return Outcome(machine, queue, "2x", goodput, (goodput,), 0.0, 0.0, 0.1)


def test_the_goal_is_missed_where_the_server_misses_it() -> None:
    fine = [outcome(HOST.name, SERVER, 0.95), outcome(HOST.name, "first come", 0.0)]
    assert simulated_overload.is_reached(fine)
    assert not simulated_overload.is_reached([*fine, outcome(HOST.name, SERVER, 0.85)])
    # The host itself is the bottleneck there.
    assert simulated_overload.is_reached([*fine, outcome(MACHINES[-1].name, SERVER, 0.85)])
