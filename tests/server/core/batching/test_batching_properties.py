"""Tests that rows return to their owner, in order and exactly once, for any order of events."""

import asyncio
from dataclasses import dataclass, field, replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.fake_device import DOUBLE_WIDE, FakeClock, FakeServable, RecordingMetrics
from tpuserve_server.core.batching.batcher import Batcher
from tpuserve_server.core.batching.parameters import BatchingOptions, BatchingParameters, PaddingPolicy
from tpuserve_server.core.batching.sequences import find_sequences
from tpuserve_server.core.batching.services import BatchedVersion, DeviceServices
from tpuserve_server.core.batching.task import Outcome, Task
from tpuserve_server.core.terms.deadline import Deadline
from tpuserve_server.core.terms.errors import DeadlineExceeded, InvalidArgument, Unavailable
from tpuserve_server.core.terms.priority import Priority
from tpuserve_server.core.terms.types import Array, ServableId


@dataclass(frozen=True)
class Submit:
    rows: int
    width: int
    poisoned: bool
    timeout_s: float | None
    priority: Priority


@dataclass(frozen=True)
class Cancel:
    request: int


@dataclass(frozen=True)
class Wait:
    seconds: float


@dataclass(frozen=True)
class Gate:
    """Whether the device can finish its runs."""

    is_open: bool


submits = st.builds(
    Submit,
    rows=st.integers(1, 9),
    width=st.integers(1, 3),
    poisoned=st.integers(0, 9).map(lambda dice: dice == 0),
    timeout_s=st.one_of(st.none(), st.none(), st.floats(0.5, 5)),
    priority=st.sampled_from(Priority),
)
steps = st.lists(
    st.one_of(
        submits,
        submits,
        st.builds(Cancel, request=st.integers(0, 20)),
        st.builds(Wait, seconds=st.floats(0, 3)),
        st.builds(Gate, is_open=st.booleans()),
    ),
    max_size=30,
)


@st.composite
def options(draw: st.DrawFn) -> BatchingOptions:
    largest = draw(st.integers(1, 12))
    sizes = sorted({*draw(st.sets(st.integers(1, largest), max_size=3)), largest})
    buckets = (*sorted(draw(st.sets(st.integers(1, 3), max_size=2))), 4) if draw(st.booleans()) else ()
    return BatchingOptions(
        max_batch_size=largest,
        allowed_batch_sizes=tuple(sizes) if draw(st.booleans()) else (),
        timeout_s=draw(st.sampled_from([0.0, 1.0])),
        max_execution_batch_size=draw(st.one_of(st.none(), st.integers(1, largest))),
        pad_variable_length_inputs=not buckets and draw(st.booleans()),
        padding_policy=draw(st.sampled_from(PaddingPolicy)),
        sequence_buckets=buckets,
        sequences=find_sequences(DOUBLE_WIDE, buckets) if buckets else None,
    )


@dataclass
class Request:
    step: Submit
    x: Array
    task: Task
    cancelled: bool = False


@dataclass
class Play:
    """A run of the script against the real batcher, with real threads and virtual time."""

    batching: BatchingOptions
    num_batch_threads: int
    max_in_flight: int
    requests: list[Request] = field(default_factory=list)
    refused: int = 0

    def __post_init__(self) -> None:
        self.servable = FakeServable({DOUBLE_WIDE.name: DOUBLE_WIDE}, max_in_flight=self.max_in_flight)
        self.clock = FakeClock()
        self.metrics = RecordingMetrics()
        self.batcher = Batcher(
            BatchedVersion(ServableId("m", 1), self.servable, {DOUBLE_WIDE.name: self.batching}),
            BatchingParameters(max_enqueued_batches=6, num_batch_threads=self.num_batch_threads),
            DeviceServices(self.clock, self.metrics),
        )

    async def perform(self, script: list[Submit | Cancel | Wait | Gate]) -> list[Outcome | BaseException]:
        try:
            for step in script:
                self.take(step)
                await asyncio.sleep(0)
        finally:
            self.servable.gate.set()
            await asyncio.to_thread(self.batcher.stop)
        # All futures have results, which are on their way to this loop.
        async with asyncio.timeout(10):
            futures = [request.task.future for request in self.requests]
            return list(await asyncio.gather(*futures, return_exceptions=True))

    def take(self, step: Submit | Cancel | Wait | Gate) -> None:
        match step:
            case Submit():
                self.submit(step)
            case Cancel(request) if request < len(self.requests):
                chosen = self.requests[request]
                # Like the service: first the future, then the place in the queue.
                chosen.cancelled |= chosen.task.future.cancel()
                self.batcher.discard(chosen.task, "cancelled")
            case Wait(seconds):
                self.clock.advance(seconds)
            case Gate(is_open):
                (self.servable.gate.set if is_open else self.servable.gate.clear)()

    def submit(self, step: Submit) -> None:
        # All values differ, so that every row identifies its owner.
        first = 1000 * (len(self.requests) + 1)
        x = np.arange(first, first + step.rows * step.width, dtype=np.float64).reshape(step.rows, step.width)
        if step.poisoned:
            x[step.rows // 2] *= -1
        deadline = Deadline.never() if step.timeout_s is None else Deadline.after(step.timeout_s, self.clock)
        future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        task = Task(DOUBLE_WIDE.name, ("y",), {"x": x}, step.rows, deadline, future, True, priority=step.priority)
        try:
            self.batcher.submit(task)
        except InvalidArgument:
            assert step.rows > self.batching.max_batch_size
            self.refused += 1
        except Unavailable:
            self.refused += 1
        else:
            self.requests.append(Request(step, x, task))


def check_answer(request: Request, outcome: Outcome | BaseException, batching: BatchingOptions) -> None:
    match outcome:
        case asyncio.CancelledError():
            assert request.cancelled
        case DeadlineExceeded():
            assert request.step.timeout_s is not None
        case BaseException():
            assert request.step.poisoned
            assert type(outcome) is InvalidArgument
        case _:
            assert not request.step.poisoned
            y = outcome["y"]
            width = request.step.width
            np.testing.assert_array_equal(y[:, :width], request.x * 2)
            # Padding repeats the request's own first value, except where outputs are cut.
            assert (y[:, width:] == request.x.flat[0] * 2).all()
            assert not batching.sequence_buckets or y.shape[1] == width


@settings(max_examples=120, deadline=None)
@given(script=steps, batching=options(), num_batch_threads=st.integers(1, 3), max_in_flight=st.integers(1, 3))
def test_every_request_is_answered_with_its_own_rows_in_order(
    script: list[Submit | Cancel | Wait | Gate], batching: BatchingOptions, num_batch_threads: int, max_in_flight: int
) -> None:
    async def play() -> Play:
        play = Play(batching, num_batch_threads, max_in_flight)
        for request, outcome in zip(play.requests, await play.perform(script), strict=True):
            check_answer(request, outcome, batching)
        return play

    played = asyncio.run(play())
    for rows, bucket in played.metrics.batches:
        assert rows <= batching.max_rows
        assert bucket in batching.buckets or not batching.buckets
    for batch in played.servable.batches:
        assert batch["x"].shape[1] in batching.sequence_buckets or not batching.sequence_buckets
    dropped = [reason for reason in played.metrics.dropped if reason != "queue_full"]
    gone = sum(request.cancelled or request.step.timeout_s is not None for request in played.requests)
    assert len(dropped) <= gone


well = submits.map(lambda submit: replace(submit, poisoned=False, timeout_s=None))


@settings(max_examples=80, deadline=None)
@given(
    script=st.lists(
        st.one_of(well, well, st.builds(Wait, st.floats(0, 3)), st.builds(Gate, st.booleans())), max_size=30
    ),
    batching=options(),
    num_batch_threads=st.integers(1, 3),
    max_in_flight=st.integers(1, 3),
)
def test_every_row_is_run_exactly_once(
    script: list[Submit | Cancel | Wait | Gate], batching: BatchingOptions, num_batch_threads: int, max_in_flight: int
) -> None:
    async def play() -> Play:
        play = Play(batching, num_batch_threads, max_in_flight)
        await play.perform(script)
        return play

    played = asyncio.run(play())
    ran: list[float] = []
    for batch in played.servable.batches:
        values = batch["x"][:, 0]
        # Padding repeats the last row.
        ran += np.unique(values).tolist()
    owned = [value for request in played.requests for value in request.x[:, 0].tolist()]
    assert sorted(ran) == sorted(owned)
    assert sum(rows for rows, _ in played.metrics.batches) == len(owned)
