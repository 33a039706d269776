"""Tests for invariants of the real batcher and its device thread for any input order, on virtual time."""

import asyncio
from collections.abc import Hashable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from tests.support.fake_device import DOUBLE_WIDE
from tests.support.virtual_play import Cancel, Play, Request, Seen, Step, Submit, Wait, World
from tpuserve_server.core.batching.arrays import choose_bucket
from tpuserve_server.core.batching.parameters import BatchingMode, BatchingOptions, LatencyObjective, PaddingPolicy
from tpuserve_server.core.batching.policies import MOST_WAIT_S
from tpuserve_server.core.batching.sequences import find_sequences
from tpuserve_server.core.terms.errors import (
    DeadlineExceeded,
    Internal,
    InvalidArgument,
    ServingError,
    TooLate,
    Unavailable,
)
from tpuserve_server.core.terms.priority import Priority

LOW = Priority.LOW
waits = st.builds(Wait, st.sampled_from([0.25, 0.5, 1.0, 3.0]))
priorities = st.sampled_from([Priority.HIGH, Priority.HIGH, LOW])
rows = st.sampled_from([1, 1, 1, 2, 2, 3, 3, 4, 5, 9])
widths = st.sampled_from([1, 1, 1, 1, 1, 1, 2, 3])
well = st.builds(Submit, rows=rows, width=widths, priority=priorities)
ill = st.builds(
    Submit,
    rows=rows,
    width=widths,
    priority=priorities,
    poisoned=st.integers(0, 6).map(lambda dice: dice == 0),
    timeout_s=st.sampled_from([None, None, 0.5, 1.0, 1.25, 4.0]),
    alone=st.integers(0, 9).map(lambda dice: dice == 0),
)
mortal = ill.map(lambda step: replace(step, poisoned=False))
cancels = st.builds(Cancel, request=st.integers(0, 20))


def scripts(*steps: st.SearchStrategy[Step]) -> st.SearchStrategy[list[Step]]:
    """Draw scripts, including long ones. Hypothesis prefers short lists, whose queues are empty most of the time."""
    return st.integers(0, 40).flatmap(lambda length: st.lists(st.one_of(*steps), min_size=length, max_size=length + 10))


@st.composite
def batchings(draw: st.DrawFn) -> BatchingOptions:
    """Draw any batching options."""
    largest = draw(st.sampled_from([1, 3, 5, 6, 8, 9, 12]))
    sizes = sorted({*draw(st.sets(st.integers(1, largest), max_size=4)), largest})
    buckets = (*sorted(draw(st.sets(st.integers(1, 2), max_size=2))), 3) if draw(st.booleans()) else ()
    mode = draw(st.sampled_from(BatchingMode))
    objective = LatencyObjective(draw(st.sampled_from([4.0, 20.0, 60.0]))) if mode is BatchingMode.OBJECTIVE else None
    return BatchingOptions(
        max_batch_size=largest,
        allowed_batch_sizes=tuple(sizes) if objective or draw(st.integers(0, 3)) else (),
        timeout_s=draw(st.sampled_from([1.0, 2.5])) if mode is BatchingMode.TIMEOUT else 0.0,
        max_execution_batch_size=draw(st.one_of(st.none(), st.integers(1, largest))),
        pad_variable_length_inputs=not buckets and draw(st.booleans()),
        padding_policy=draw(st.sampled_from(PaddingPolicy)),
        sequence_buckets=buckets,
        sequences=find_sequences(DOUBLE_WIDE, buckets) if buckets else None,
        objective=objective,
    )


@st.composite
def crowded_batchings(draw: st.DrawFn) -> BatchingOptions:
    """Draw options that cut batches down, which requires several sizes."""
    largest = draw(st.sampled_from([6, 8, 12]))
    sizes = sorted({*draw(st.sets(st.integers(2, largest), min_size=2, max_size=4)), largest})
    policies = [PaddingPolicy.BATCH_DOWN, PaddingPolicy.MIN_COST]
    execution = draw(st.sampled_from([None, largest // 2, largest]))
    return BatchingOptions(
        largest, tuple(sizes), max_execution_batch_size=execution, padding_policy=draw(st.sampled_from(policies))
    )


@st.composite
def worlds(draw: st.DrawFn, *, faults: bool = True) -> World:
    batching = draw(st.one_of(batchings(), crowded_batchings()))
    believed = draw(st.lists(st.floats(0.1, 5.0), min_size=len(batching.buckets), max_size=len(batching.buckets)))
    return World(
        batching,
        max_enqueued_batches=draw(st.sampled_from([1, 3, 9, 9])),
        low_priority_max_enqueued_batches=draw(st.sampled_from([1, 3, 9, 9])),
        costs_s=dict(zip(batching.buckets, believed, strict=True)) if draw(st.integers(0, 3)) else {},
        t0_s=draw(st.sampled_from([0.5, 2.0, 5.0])),
        per_row_s=draw(st.sampled_from([0.0, 0.25])),
        max_in_flight=draw(st.sampled_from([1, 1, 2, 3])),
        faults=draw(st.frozensets(st.integers(0, 8), max_size=2)) if faults else frozenset(),
    )


def played(world: World, script: list[Step]) -> Play:
    play = Play(world)
    play.perform(script)
    event(f"runs: {min(len(play.seen), 5)}, refused: {bool(play.refused)}")
    return play


def key(world: World, request: Request) -> Hashable:
    """Return the key of requests that may share a batch. Requests with one key wait in order."""
    step, batching = request.step, world.batching
    if step.alone:
        return (step.priority, "alone", request.number)
    if batching.sequence_buckets:
        return (step.priority, choose_bucket(step.width, batching.sequence_buckets))
    if batching.pad_variable_length_inputs and step.rows <= batching.max_rows:
        return (step.priority, "padded")
    return (step.priority, step.width)


def check_answer(play: Play, request: Request) -> None:
    assert len(request.answers) == 1
    step, outcome = request.step, request.answers[0]
    failed = {value for seen in play.seen if seen.failed for value in seen.values}
    match outcome:
        case asyncio.CancelledError():
            assert request.gone == "cancelled"
        case DeadlineExceeded():
            assert step.timeout_s is not None
        case Internal():
            assert failed.intersection(request.values)
        case InvalidArgument():
            assert step.poisoned
        case BaseException():
            pytest.fail(f"nobody expects {outcome!r}")
        case _:
            assert not step.poisoned
            assert not failed.intersection(request.values)
            y = outcome["y"]
            np.testing.assert_array_equal(y[:, : step.width], request.x)
            # Sequence outputs are cut to the request's length. Other padding repeats the request's own first value.
            assert y.shape[1] == step.width or not play.world.batching.sequence_buckets
            assert (y[:, step.width :] == request.x[0, 0]).all()


def first_runs(play: Play) -> list[float]:
    """Return every row that has run, in the order of its first run."""
    return list(dict.fromkeys(value for seen in play.seen for value in seen.real))


@settings(max_examples=60, deadline=None)
@given(world=worlds(), script=scripts(ill, ill, ill, ill, cancels, waits))
def test_every_request_is_answered_once_with_its_own_rows_in_order(world: World, script: list[Step]) -> None:
    play = played(world, script)
    for request in play.requests:
        check_answer(play, request)
    assert not play.waiting
    # This includes runs of halves, a whole run later than the batch's formation.
    assert not any(reason for seen in play.seen for reason in seen.gone)


@settings(max_examples=60, deadline=None)
@given(world=worlds(faults=False), script=scripts(mortal, mortal, mortal, cancels, waits))
def test_what_nobody_waits_for_never_reaches_the_device_and_is_counted_once(world: World, script: list[Step]) -> None:
    play = played(world, script)
    for seen in play.seen:
        assert not any(seen.gone)
    ran = set(first_runs(play))
    dropped = [reason for reason in play.metrics.dropped if reason in ("expired", "cancelled")]
    # Requests that are on the device already are not dropped.
    gone = [request.gone for request in play.requests if request.gone and not ran.issuperset(request.values)]
    assert sorted(dropped) == sorted(gone)


@settings(max_examples=60, deadline=None)
@given(world=worlds(), script=scripts(ill, ill, ill, ill, cancels, waits))
def test_no_row_is_run_before_an_older_one_of_its_kind_and_priority(world: World, script: list[Step]) -> None:
    play = played(world, script)
    last: dict[Hashable, float] = {}
    for value in first_runs(play):
        kind = key(world, play.owner(value))
        assert last.get(kind, 0.0) < value
        last[kind] = value


@settings(max_examples=60, deadline=None)
@given(world=worlds(faults=False), script=scripts(well, well, well, well, cancels, waits))
def test_every_row_is_run_exactly_once_in_batches_of_the_sizes_allowed(world: World, script: list[Step]) -> None:
    play = played(world, script)
    batching = world.batching
    ran = [value for seen in play.seen for value in seen.real]
    assert len(set(ran)) == len(ran)
    kept = {value for request in play.requests if not request.gone for value in request.values}
    assert kept.issubset(ran)
    for seen in play.seen:
        assert len(seen.real) <= batching.max_rows
        assert len(seen.values) == choose_bucket(len(seen.real), batching.buckets)
        assert seen.width in batching.sequence_buckets or not batching.sequence_buckets
        assert len({key(world, play.owner(value))[1:] for value in seen.real}) == 1  # type: ignore[index]  # a tuple


def ready_s(world: World, play: Play, seen: Seen) -> float:
    """Return the time by which the batch must have started if the device was free."""
    waits_s = world.batching.timeout_s
    if world.batching.mode is BatchingMode.GREEDY:
        # Clients with a recent response may send again, and the batcher waits for them.
        waits_s = MOST_WAIT_S
    return min(play.owner(value).submitted_s for value in seen.real) + waits_s


@settings(max_examples=60, deadline=None)
@given(world=worlds(faults=False), script=scripts(well, well, well, well, waits))
def test_a_batch_leaves_when_it_may_and_the_device_is_free(world: World, script: list[Step]) -> None:
    play = played(world, script)
    free_s = 0.0
    for index, seen in enumerate(play.seen):
        if world.max_in_flight == 1:
            assert seen.at_s >= free_s
        # A batch is late only because of a running, an older or a higher-priority batch.
        if index == 0 or seen.at_s > free_s:
            assert seen.at_s <= ready_s(world, play, seen)
        free_s = max(free_s, seen.at_s) + world.t0_s + world.per_row_s * len(seen.values)


@settings(max_examples=60, deadline=None)
@given(world=worlds(faults=False), script=scripts(well, well, well, well, cancels, waits))
def test_low_priority_runs_where_high_leaves_room(world: World, script: list[Step]) -> None:
    play = played(world, script)
    for seen in play.seen:
        of_low = [value for value in seen.real if play.owner(value).step.priority is LOW]
        high = len(seen.real) - len(of_low)
        assert seen.real[high:] == of_low
        waiting = [play.owner(value) for value in seen.waiting]
        if not high:
            # No high-priority batch was ready.
            if not world.batching.timeout_s:
                assert all(request.step.priority is LOW for request in waiting)
            continue
        # Low-priority rows never enlarge a batch, and fill all rows that would be padding.
        assert len(seen.values) == choose_bucket(high, world.batching.buckets)
        kind = key(world, play.owner(seen.real[0]))[1:]  # type: ignore[index]  # a tuple
        if kind == ("padded",):
            # Such a row could lengthen all other rows.
            assert not of_low
            continue
        room = min(len(seen.values), world.batching.max_rows) - len(seen.real)
        waits_first = next((request for request in waiting if key(world, request) == (LOW, *kind)), None)
        if waits_first is not None and world.batching.buckets:
            left = [value for value in waits_first.values if value in seen.waiting]
            assert len(left) > room


@settings(max_examples=60, deadline=None)
@given(world=worlds(faults=False), script=scripts(well, well, well, well, waits))
def test_a_full_queue_of_one_priority_refuses_none_of_the_other(world: World, script: list[Step]) -> None:
    play = played(world, script)
    batching = world.batching
    for step, error, waiting in play.refused:
        if step.rows > batching.max_batch_size:
            assert type(error) is InvalidArgument
            continue
        if type(error) is TooLate:
            assert batching.objective is not None
            assert step.priority is Priority.HIGH
            continue
        assert type(error) is Unavailable
        limit = world.low_priority_max_enqueued_batches if step.priority is LOW else world.max_enqueued_batches
        same = [request for request in waiting if request.step.priority is step.priority]
        if batching.splits:
            assert same or step.rows > limit * batching.max_rows
        else:
            assert len(same) >= limit


def test_the_script_of_a_small_play() -> None:
    """Test the harness itself, because a faulty harness would satisfy every property above."""
    play = Play(World(BatchingOptions(4, (2, 4)), t0_s=1.0, per_row_s=0.0, faults=frozenset({1})))
    play.perform([Submit(1), Submit(2, priority=LOW), Wait(0.5), Submit(1, poisoned=True), Cancel(1), Submit(3)])
    assert [seen.real for seen in play.seen] == [[1.0], [2001.0, 3001.0, 3002.0, 3003.0]]
    outcomes = [type(request.answers[0]) for request in play.requests]
    assert outcomes == [dict, asyncio.CancelledError, Internal, Internal]
    assert isinstance(play.requests[2].answers[0], ServingError)
