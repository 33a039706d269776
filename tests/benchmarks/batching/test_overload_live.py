"""Tests for the figures of `python -m benchmarks overload`. The benchmark itself needs a quiet machine."""

from benchmarks.batching.deadline_load import Sent
from benchmarks.batching.overload_live import STEPS, Turn, is_reached, points


def turn(goodput_per_s: float, refused: int = 0) -> Turn:
    return Turn(Sent(goodput_per_s, 1000, refused, 10, 20.0, 30.0, 1.0, []), 0.5)


def test_shares_are_of_the_highest_median() -> None:
    peak, overloaded = STEPS[1], STEPS[2]
    turns = [(peak, turn(600)), (peak, turn(100)), (peak, turn(610)), (overloaded, turn(300, refused=500))]
    found = {point.step: point for point in points("grpc", turns)}
    assert found["1x"].goodput_per_s == 600
    assert (found["2x"].share, found["2x"].refused, found["2x"].late) == (0.5, 0.5, 0.01)
    assert not is_reached(list(found.values()))
    assert is_reached([found["1x"]])
