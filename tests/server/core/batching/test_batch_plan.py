"""Tests for the number of rows that run next. TensorFlow's cases are from its batch_scheduler_utils_test.cc."""

import itertools
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpuserve_server.core.batching.arrays import choose_bucket
from tpuserve_server.core.batching.lane import BatchPlan
from tpuserve_server.core.batching.parameters import PaddingPolicy

PAD_UP, BATCH_DOWN, MIN_COST = PaddingPolicy.PAD_UP, PaddingPolicy.BATCH_DOWN, PaddingPolicy.MIN_COST
SIZES = (2, 4, 8, 16, 32)


def plan(policy: PaddingPolicy, costs: Mapping[int, float] | None = None, sizes: tuple[int, ...] = SIZES) -> BatchPlan:
    known = costs or {}
    return BatchPlan(sizes, policy, lambda rows, lengths: known.get(rows))


@pytest.mark.parametrize(
    ("policy", "rows", "chosen"),
    [
        (PAD_UP, 3, 3),
        (PAD_UP, 18, 18),
        (BATCH_DOWN, 3, 2),
        (BATCH_DOWN, 18, 16),
        # Already a size, or no smaller size.
        (BATCH_DOWN, 16, 16),
        (BATCH_DOWN, 1, 1),
    ],
)
def test_policies_that_need_no_costs(policy: PaddingPolicy, rows: int, chosen: int) -> None:
    assert plan(policy).choose(rows) == chosen


def test_requests_that_do_not_end_at_the_size_below_are_not_left_waiting() -> None:
    # Whole requests of 10 and 8 rows cannot fill 16.
    assert plan(BATCH_DOWN).choose(18, [10, 18]) == 18
    assert plan(BATCH_DOWN).choose(18, [10, 16, 18]) == 16


@pytest.mark.parametrize(
    ("costs", "rows", "chosen"),
    [
        # 16 of 18 rows in 1 s, or all in 3 s.
        ({16: 1.0, 32: 3.0}, 18, 16),
        ({16: 1.0, 32: 1.05}, 18, 18),
        # Less than the noise: more rows run now.
        ({16: 0.99 * 16 / 18, 32: 1.0}, 18, 18),
        # Sizes without a known cost are not chosen.
        ({32: 3.0}, 18, 18),
        ({16: 1.0}, 18, 18),
        ({}, 18, 18),
        # Two sizes down is cheapest.
        ({8: 0.1, 16: 1.0, 32: 3.0}, 18, 8),
        ({8: 0.1, 16: 1.0}, 16, 8),
        # No smaller size.
        ({2: 1.0}, 1, 1),
    ],
)
def test_the_cheapest_for_each_row(costs: Mapping[int, float], rows: int, chosen: int) -> None:
    assert plan(MIN_COST, costs).choose(rows) == chosen


def test_whole_requests_are_counted_with_the_padding_that_they_leave() -> None:
    costs = {2: 1.0, 4: 1.0, 8: 1.0, 16: 1.0, 32: 1.7}
    # By rows alone 16 would be cheapest, but only 10 of its rows can run: 0.1 s per row, and 0.094 for all.
    assert plan(MIN_COST, costs).choose(18) == 16
    assert plan(MIN_COST, costs).choose(18, [10, 18]) == 18
    assert plan(MIN_COST, costs).choose(18, [14, 18]) == 14


def test_the_first_request_is_never_cut_by_its_size() -> None:
    costs = {2: 0.001, 4: 0.001, 8: 9.0}
    assert plan(MIN_COST, costs).choose(6, [5, 6]) == 6


def test_lengths_have_costs_of_their_own() -> None:
    costs: dict[tuple[tuple[int, ...], int], float] = {
        ((64,), 16): 1.0,
        ((64,), 32): 3.0,
        ((128,), 16): 3.0,
        ((128,), 32): 3.0,
    }
    chooses = BatchPlan(SIZES, MIN_COST, lambda rows, lengths: costs.get((lengths, rows)))
    assert [chooses.choose(18, None, lengths) for lengths in ((64,), (128,), ())] == [16, 18, 18]


def test_costs_that_change_change_the_choice_before_long() -> None:
    costs = {16: 1.0, 32: 3.0}
    chooses = plan(MIN_COST, costs)
    assert chooses.choose(18) == 16
    costs[32] = 1.0
    assert 18 in [chooses.choose(18) for _ in range(100)]


@given(
    policy=st.sampled_from(PaddingPolicy),
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=12),
    whole=st.booleans(),
    buckets=st.sets(st.integers(1, 500), max_size=6),
    times=st.lists(st.floats(0.0, 10.0), min_size=7, max_size=7),
)
def test_a_choice_is_never_nothing_and_never_dearer_than_all(
    policy: PaddingPolicy, sizes: list[int], whole: bool, buckets: set[int], times: list[float]
) -> None:
    ends = list(itertools.accumulate(sizes))
    rows = ends[-1]
    allowed = tuple(sorted({*buckets, 500}))
    costs = dict(zip(allowed, times, strict=False))
    chosen = plan(policy, costs, allowed).choose(rows, ends if whole else None)
    assert 0 < chosen <= rows
    assert chosen in ends or not whole
    # The chosen rows fill their size, or cost less per row than all rows.
    if policy is MIN_COST:
        assert costs[choose_bucket(chosen, allowed)] / chosen <= costs[choose_bucket(rows, allowed)] / rows
    elif chosen < rows:
        assert policy is BATCH_DOWN
        assert chosen in allowed
