"""Tests for the number of rows that run next, and for a policy that only this file has.

TensorFlow's cases are from its batch_scheduler_utils_test.cc.
"""

import itertools
from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.virtual_time import ROW_TO_ROW, SILENT_METRICS, SimulatedDevice, VirtualClock, VirtualLoop
from tpuserve_server.core.batching.arrays import choose_bucket
from tpuserve_server.core.batching.batch import Batch, BatchPolicy
from tpuserve_server.core.batching.batcher import Batcher
from tpuserve_server.core.batching.cost_model import CostModel
from tpuserve_server.core.batching.device_queue import DeadlineCheck
from tpuserve_server.core.batching.parameters import BatchingMode, BatchingOptions, BatchingParameters, PaddingPolicy
from tpuserve_server.core.batching.policies import POLICIES, BatchPlan
from tpuserve_server.core.batching.services import BatchedVersion, DeviceServices
from tpuserve_server.core.batching.task import Task
from tpuserve_server.core.terms.batch_run import Departure
from tpuserve_server.core.terms.deadline import Deadline
from tpuserve_server.core.terms.types import ServableId

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


class TripletPolicy(BatchPolicy):
    """Runs whole triplets of rows, and whatever waits once its oldest request has waited a second."""

    waits = True

    def __init__(self, name: str, options: BatchingOptions, costs: CostModel, deadlines: DeadlineCheck) -> None:
        super().__init__(deadlines)
        self.departure = Departure.TIMEOUT
        self.most_whole_rows = 0.0

    def until_s(self, batch: Batch) -> float:
        return batch.oldest_s + (0.0 if batch.rows >= 3 else 1.0)

    def rows_to_run(self, batches: Sequence[Batch], now_s: float) -> int:
        rows = batches[0].rows
        return rows - rows % 3 or rows


def test_a_new_policy_needs_its_class_and_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(POLICIES, BatchingMode.GREEDY, TripletPolicy)
    clock, sizes, waits_s = VirtualClock(), list[int](), dict[float, float]()
    loop = VirtualLoop(clock)

    def run_s(rows: int) -> float:
        sizes.append(rows)
        return 0.1

    version = BatchedVersion(ServableId("m", 1), SimulatedDevice(clock, run_s), {ROW_TO_ROW.name: BatchingOptions(9)})
    batcher = Batcher(version, BatchingParameters(), DeviceServices(clock, SILENT_METRICS))

    def ask(at_s: float) -> None:
        future = loop.create_future()
        future.add_done_callback(lambda _: waits_s.update({at_s: clock.monotonic_s() - at_s}))
        inputs = {"x": np.zeros((1, 1), np.float32)}
        batcher.submit(Task(ROW_TO_ROW.name, ("y",), inputs, 1, Deadline.never(), future, shareable=True))

    for at_s in (0.0, 0.2, 0.4, 0.41, 0.42, 0.43, 0.44):
        clock.at(at_s, ask, at_s)
    try:
        clock.run()
    finally:
        batcher.stop()
    # The fourth to the sixth arrive during the first run, and the last one is alone.
    assert sizes == [3, 3, 1]
    assert waits_s[0.0] == pytest.approx(0.5)
    assert waits_s[0.43] == pytest.approx(0.17)
    assert waits_s[0.44] == pytest.approx(1.1)
