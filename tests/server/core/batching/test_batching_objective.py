"""Tests that the real batcher with an objective serves every admitted request in time, on virtual time."""

import random
import re
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.virtual_time import ROW_TO_ROW, SILENT_METRICS, SimulatedDevice, VirtualClock, VirtualLoop
from tpuserve_server.core.batching.batcher import Batcher
from tpuserve_server.core.batching.cost_model import CostModel
from tpuserve_server.core.batching.parameters import BatchingOptions, BatchingParameters, LatencyObjective
from tpuserve_server.core.batching.services import BatchedVersion, DeviceServices
from tpuserve_server.core.batching.task import Task
from tpuserve_server.core.terms.deadline import Deadline
from tpuserve_server.core.terms.errors import TooLate
from tpuserve_server.core.terms.priority import Priority
from tpuserve_server.core.terms.types import ServableId

SIZES = (1, 2, 4, 8, 16, 32)
OBJECTIVE_S = 20.0


def cost_s(rows: int) -> float:
    """Return 8 s for 16 rows, of which two batches fit the objective, and 12 s for 32 rows."""
    return 4.0 + rows / 4


@dataclass(frozen=True)
class Request:
    """A request, `pause_s` after the previous request."""

    pause_s: float
    rows: int = 1
    priority: Priority = Priority.HIGH
    timeout_s: float | None = None
    # Requests of different kinds never share a batch.
    kind: int = 0


@dataclass
class Run:
    """The outcomes of requests, by their number."""

    waits_s: dict[int, float] = field(default_factory=dict)
    refusals: dict[int, TooLate] = field(default_factory=dict)
    batches: list[int] = field(default_factory=list)


def run(requests: list[Request]) -> Run:
    """Send the requests, and run the batcher until its queue is empty."""
    clock, found = VirtualClock(), Run()
    loop = VirtualLoop(clock)

    def measured_cost_s(rows: int) -> float:
        found.batches.append(rows)
        return cost_s(rows)

    costs = CostModel()
    for rows in SIZES:
        for _ in range(10):
            costs.learn(ROW_TO_ROW.name, rows, cost_s(rows))
    batcher = Batcher(
        BatchedVersion(
            ServableId("m", 1),
            SimulatedDevice(clock, measured_cost_s),
            {ROW_TO_ROW.name: BatchingOptions(32, SIZES, objective=LatencyObjective(OBJECTIVE_S))},
            costs,
        ),
        BatchingParameters(max_enqueued_batches=1000),
        DeviceServices(clock, SILENT_METRICS),
    )

    def ask(number: int, request: Request) -> None:
        at_s = clock.monotonic_s()
        future = loop.create_future()
        future.add_done_callback(lambda _: found.waits_s.update({number: clock.monotonic_s() - at_s}))
        deadline = Deadline.never() if request.timeout_s is None else Deadline(at_s + request.timeout_s)
        inputs = {"x": np.full((request.rows, 1), number, np.float32)}
        outputs = ("y",) * (1 + request.kind)
        task = Task(ROW_TO_ROW.name, outputs, inputs, request.rows, deadline, future, True, priority=request.priority)
        try:
            batcher.submit(task)
        except TooLate as error:
            found.refusals[number] = error

    at_s = 0.0
    for number, request in enumerate(requests):
        at_s += request.pause_s
        clock.at(at_s, ask, number, request)
    try:
        clock.run()
    finally:
        batcher.stop()
    return found


pauses = st.one_of(st.just(0.0), st.floats(0.01, 0.5), st.floats(0, 30))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(pauses, st.integers(1, 40)), max_size=12))
def test_whoever_is_admitted_is_answered_within_the_objective(crowds: list[tuple[float, int]]) -> None:
    requests = [Request(0.0 if number else pause_s) for pause_s, count in crowds for number in range(count)]
    found = run(requests)
    assert len(found.waits_s) + len(found.refusals) == len(requests)
    assert all(wait_s <= OBJECTIVE_S + 1e-6 for wait_s in found.waits_s.values())


@settings(max_examples=50, deadline=None)
@given(
    st.lists(
        st.builds(
            Request,
            pause_s=pauses,
            rows=st.integers(1, 16),
            priority=st.sampled_from([Priority.HIGH, Priority.HIGH, Priority.LOW]),
            timeout_s=st.one_of(st.none(), st.floats(1.0, 40.0)),
        ),
        max_size=40,
    )
)
def test_everybody_is_answered_or_refused_once(requests: list[Request]) -> None:
    found = run(requests)
    assert found.waits_s.keys() | found.refusals.keys() == set(range(len(requests)))
    assert not found.waits_s.keys() & found.refusals.keys()
    assert all(requests[number].priority is Priority.HIGH for number in found.refusals)
    assert all((error.retry_after_s or 0) > 0 for error in found.refusals.values())


def test_requests_further_apart_than_a_batch_takes_are_never_refused() -> None:
    found = run([Request(9.0)] * 30)
    assert not found.refusals
    assert found.batches == [1] * 30


def test_a_burst_is_admitted_as_far_as_it_can_be_answered() -> None:
    found = run([Request(0.0)] * 100)
    assert len(found.waits_s) == 32
    assert found.batches == [32]
    message = (
        r"would finish this request in 20\d{3}\.\d ms, later than its objective of 20000 ms "
        r"\(32 rows are queued before it\)"
    )
    assert re.search(message, found.refusals[99].message)


def test_low_priority_does_not_break_the_promise_to_high() -> None:
    flood = [Request(0.0, priority=Priority.LOW)] * 200
    promised = [Request(0.05), *[Request(1.7)] * 39]
    found = run(flood + promised)
    assert not found.refusals
    assert max(found.waits_s[number] for number in range(200, 240)) <= OBJECTIVE_S


def test_a_client_that_cannot_wait_is_told_at_once() -> None:
    found = run([Request(0.0, timeout_s=3.0), Request(0.0, timeout_s=9.0)])
    assert list(found.refusals) == [0]
    assert "the request's deadline in 3000.0 ms" in found.refusals[0].message


@pytest.mark.parametrize("rows", [2, 5, 16])
def test_requests_of_several_rows_are_admitted_by_their_rows(rows: int) -> None:
    found = run([Request(0.0, rows=rows)] * 100)
    assert len(found.waits_s) == 32 // rows
    assert max(found.waits_s.values()) <= OBJECTIVE_S


def test_a_batch_that_nobody_waits_for_any_more_does_not_keep_the_device_busy() -> None:
    low, gone = Request(0.0, priority=Priority.LOW), Request(0.1, priority=Priority.LOW, timeout_s=1.0)
    # The request is in time alone, but not in a batch of the planned size.
    found = run([low, gone, Request(20.0, timeout_s=6.0)])
    assert not found.refusals
    assert found.batches == [1, 1]


def test_the_promise_holds_where_requests_of_two_kinds_share_no_batch() -> None:
    dice = random.Random(1)
    # One kind alone would get 2 rows per second with batches of 16. With two kinds, twice as many batches wait.
    found = run([Request(dice.expovariate(2.5), kind=dice.randrange(2)) for _ in range(2000)])
    late = sum(wait_s > OBJECTIVE_S + 1e-6 for wait_s in found.waits_s.values())
    assert late <= 0.02 * len(found.waits_s)
    assert len(found.waits_s) > 1000
