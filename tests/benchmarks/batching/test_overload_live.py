"""Tests for the figures of `python -m benchmarks overload`. The benchmark itself needs a quiet machine."""

from benchmarks.batching.deadline_load import Sent, joined
from benchmarks.batching.overload_live import STEPS, Turn, is_reached, points
from benchmarks.batching.refusal_cost import RefusalCost


def turn(goodput_per_s: float, refused: int = 0) -> Turn:
    return Turn(Sent(goodput_per_s, 1000, refused, 10, 20.0, 30.0, 1.0, []), 0.5)


def test_shares_are_of_the_highest_median() -> None:
    peak, overloaded = STEPS[1], STEPS[2]
    turns = [(peak, turn(600)), (peak, turn(100)), (peak, turn(610)), (overloaded, turn(300, refused=500))]
    found = {point.step: point for point in points("grpc", turns)}
    assert found["1x"].goodput_per_s == 600
    assert (found["2x"].share, found["2x"].refused, found["2x"].late) == (0.5, 0.5, 0.01)
    assert not is_reached(list(found.values()), [])
    assert is_reached([found["1x"]], [])


def test_the_cost_of_a_refusal_is_compared_round_by_round() -> None:
    cheap, dear = RefusalCost("grpc", (100, 300, 100), (20, 30, 50)), RefusalCost("rest", (100,), (31,))
    assert cheap.share == 0.2
    assert str(cheap) == "grpc: a refusal costs 30 us of CPU, 0.20 of a request (100 us)"
    assert is_reached([], [cheap])
    assert not is_reached([], [cheap, dear])


def test_processes_that_send_at_the_same_time_have_one_result() -> None:
    parts = [Sent(300, 1000, 500, 10, 20.0, 30.0, 1.0, []), Sent(310, 1100, 600, 20, 25.0, 28.0, 9.0, ["busy"])]
    assert joined(parts) == Sent(610, 2100, 1100, 30, 25.0, 30.0, 9.0, ["busy"])
