"""Tests for the order of the cases of a benchmark, and for the figures of their turns."""

from collections import Counter
from itertools import pairwise

import pytest

from benchmarks.harness.load_tools import Load
from benchmarks.harness.measurement import Point, joined
from benchmarks.harness.turns import in_turn


@pytest.mark.parametrize("cases", ["ab", "abcde"])
def test_no_case_always_follows_the_same_other_one(cases: str) -> None:
    rounds = [in_turn(cases, number) for number in range(40)]
    assert all(sorted(order) == sorted(cases) for order in rounds)
    follows = Counter(pairwise(case for order in rounds for case in order))
    for case in cases:
        before = {first: count for (first, second), count in follows.items() if second == case}
        assert len(before) > 1
        assert max(before.values()) <= 0.55 * sum(before.values())


def test_turns_count_by_their_requests() -> None:
    few = Point("server", "grpc", 1, Load(100, 1, 2.0, 1.0, 4.0, 0.5, 1000), 0.3)
    many = Point("server", "grpc", 1, Load(300, 0, 2.0, 2.0, 8.0, 0.5, 3000), 0.1)
    both = joined([few, many])
    assert both.load == Load(400, 1, 4.0, 1.75, 7.0, 0.5, 4000)
    assert both.cpu_s_per_1000 == pytest.approx(0.15)
