"""Tests for the record of each batch: why it left the queue, its size, and its times."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator

import numpy as np
import pytest

from tests.support.fake_device import DOUBLE, FakeClock, FakeServable, RecordingMetrics
from tpuserve_server.core.batching.batcher import Batcher
from tpuserve_server.core.batching.cost_model import CostModel
from tpuserve_server.core.batching.device_queue import DeadlineCheck, DeviceQueue, HostDelay
from tpuserve_server.core.batching.parameters import BatchingOptions, BatchingParameters
from tpuserve_server.core.batching.queue import BatchQueue
from tpuserve_server.core.batching.services import BatchedVersion, DeviceServices
from tpuserve_server.core.batching.task import Outcome, Task
from tpuserve_server.core.terms.batch_run import BatchRun, Departure
from tpuserve_server.core.terms.deadline import Deadline
from tpuserve_server.core.terms.errors import InvalidArgument
from tpuserve_server.core.terms.priority import Priority
from tpuserve_server.core.terms.types import ServableId


class Waiting:
    """A queue with a clock that the test sets."""

    def __init__(self, options: BatchingOptions | None) -> None:
        deadlines = DeadlineCheck(ServableId("m", 1), DeviceQueue(1), HostDelay())
        batched = {DOUBLE.name: options} if options else {}
        self.queue = BatchQueue({DOUBLE.name: DOUBLE}, batched, 4, CostModel(), deadlines)
        self.loop = asyncio.new_event_loop()

    def add(self, rows: int, at_s: float, priority: Priority = Priority.HIGH) -> Task:
        future: asyncio.Future[Outcome] = self.loop.create_future()
        x = {"x": np.zeros((rows, 2), np.float32)}
        task = Task(DOUBLE.name, ("y",), x, rows, Deadline.never(), future, rows > 0, at_s, priority)
        self.queue.add(task)
        return task

    def take(self, now_s: float) -> BatchRun:
        """Return the record that the tasks of the next batch share."""
        (run,) = {task.run for task in self.queue.take(now_s)}
        assert run is not None
        return run


@pytest.fixture
def waiting(request: pytest.FixtureRequest) -> Iterator[Waiting]:
    made = Waiting(request.param)
    yield made
    made.loop.close()


@pytest.mark.parametrize("waiting", [BatchingOptions(4), None], indirect=True)
def test_a_batch_without_a_timeout_is_ready_from_its_first_request(waiting: Waiting) -> None:
    waiting.add(1, 1.0)
    run = waiting.take(9.0)
    assert (run.departure, run.ready_s) == (Departure.AT_ONCE, 1.0)


@pytest.mark.parametrize("waiting", [BatchingOptions(4, timeout_s=5)], indirect=True)
def test_a_full_batch_is_ready_from_its_last_request(waiting: Waiting) -> None:
    for at_s in (1.0, 2.0, 3.0, 4.0):
        waiting.add(1, at_s)
    run = waiting.take(9.0)
    assert (run.departure, run.ready_s) == (Departure.FULL, 4.0)


@pytest.mark.parametrize("waiting", [BatchingOptions(4, timeout_s=5)], indirect=True)
def test_a_closed_batch_is_ready_from_the_request_that_did_not_fit(waiting: Waiting) -> None:
    waiting.add(3, 1.0)
    waiting.add(2, 2.0)
    run = waiting.take(9.0)
    assert (run.departure, run.ready_s) == (Departure.CLOSED, 2.0)


@pytest.mark.parametrize("waiting", [BatchingOptions(4, timeout_s=5)], indirect=True)
def test_any_other_batch_is_ready_after_its_timeout(waiting: Waiting) -> None:
    waiting.add(1, 1.0)
    waiting.add(1, 2.0)
    run = waiting.take(9.0)
    assert (run.departure, run.ready_s) == (Departure.TIMEOUT, 6.0)


@pytest.mark.parametrize("waiting", [BatchingOptions(4, (1, 2, 4))], indirect=True)
def test_a_task_of_low_priority_shares_the_record_of_the_batch_that_it_fills(waiting: Waiting) -> None:
    waiting.add(3, 1.0)
    waiting.add(1, 2.0, Priority.LOW)
    tasks = waiting.queue.take(9.0)
    assert [task.priority for task in tasks] == [Priority.HIGH, Priority.LOW]
    assert tasks[0].run is tasks[1].run is not None


class Spans:
    """A recorder that keeps the spans that have ended."""

    def __init__(self) -> None:
        self.is_recording = False
        self.ended: list[tuple[str, dict[str, str | int]]] = []

    @contextlib.contextmanager
    def span(self, name: str, **facts: str | int) -> Iterator[None]:
        yield
        self.ended.append((name, facts))


class Bench:
    """A batcher on a fake device whose runs take two seconds of the clock."""

    def __init__(self, options: BatchingOptions) -> None:
        self.clock = FakeClock()
        self.spans = Spans()
        self.servable = FakeServable()
        self.servable.on_batch = self.run
        self.batcher = Batcher(
            BatchedVersion(ServableId("m", 1), self.servable, {DOUBLE.name: options}),
            BatchingParameters(num_batch_threads=1),
            DeviceServices(self.clock, RecordingMetrics(), spans=self.spans),
        )

    def run(self) -> None:
        self.clock.now_s += 2.0

    async def answer(self, *values: float) -> Task:
        """Send a request with a row for each value, and wait for its end."""
        x = {"x": np.array([[value, value] for value in values], np.float32)}
        future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        task = Task(DOUBLE.name, ("y",), x, len(values), Deadline.never(), future, True)
        self.batcher.submit(task)
        await future
        return task


@pytest.fixture
async def bench(request: pytest.FixtureRequest) -> AsyncIterator[Bench]:
    made = Bench(request.param)
    yield made
    made.servable.gate.set()
    made.batcher.stop()


@pytest.mark.parametrize("bench", [BatchingOptions(8, (4, 8))], indirect=True)
async def test_a_run_has_its_size_and_its_times(bench: Bench) -> None:
    (run,) = (await bench.answer(1, 2, 3)).runs
    assert (run.requests, run.rows, run.bucket, run.failed) == (1, 3, 4, False)
    assert run.ended_s - run.begun_s == 2.0
    (other,) = (await bench.answer(1)).runs
    assert other.number > run.number


@pytest.mark.parametrize("bench", [BatchingOptions(8)], indirect=True)
async def test_a_failed_run_says_so(bench: Bench) -> None:
    task = await bench.answer(-1)
    assert isinstance(task.future.result(), InvalidArgument)
    (run,) = task.runs
    assert run.failed
    assert run.ended_s > run.started_s


@pytest.mark.parametrize("bench", [BatchingOptions(8)], indirect=True)
async def test_a_batch_that_cannot_be_joined_ran_for_no_time(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> None:
        raise MemoryError

    await bench.answer(1)
    bench.clock.now_s += 5.0
    monkeypatch.setattr("tpuserve_server.core.batching.runner.join_batch", fail)
    (run,) = (await bench.answer(1)).runs
    assert run.failed
    assert run.started_s == run.begun_s == run.ended_s


@pytest.mark.parametrize("bench", [BatchingOptions(8, max_execution_batch_size=2)], indirect=True)
async def test_a_request_in_parts_has_a_run_for_each(bench: Bench) -> None:
    runs = (await bench.answer(1, 2, 3, 4, 5)).runs
    assert [run.rows for run in runs] == [2, 2, 1]
    assert len({run.number for run in runs}) == 3


@pytest.mark.parametrize("bench", [BatchingOptions(8)], indirect=True)
async def test_requests_that_run_again_apart_have_another_run(bench: Bench) -> None:
    bench.servable.gate.clear()
    first = asyncio.create_task(bench.answer(1))
    await asyncio.to_thread(bench.servable.entered.acquire)
    others = [asyncio.create_task(bench.answer(value)) for value in (2, -3)]
    await asyncio.sleep(0)
    bench.servable.gate.set()
    await first
    good, bad = [await other for other in others]
    assert isinstance(bad.future.result(), InvalidArgument)
    assert good.run is not bad.run
    assert [task.run.failed for task in (good, bad) if task.run is not None] == [False, True]


@pytest.mark.parametrize("bench", [BatchingOptions(8, (4, 8))], indirect=True)
async def test_a_recorded_batch_has_its_size_in_both_of_its_spans(bench: Bench) -> None:
    bench.spans.is_recording = True
    (run,) = (await bench.answer(1, 2, 3)).runs
    # A task is answered before its last span ends.
    await asyncio.to_thread(bench.batcher.stop)
    facts = {"signature": DOUBLE.name, "requests": 1, "rows": 3, "bucket": 4, "departure": "at_once"}
    facts["batch"] = run.number
    assert bench.spans.ended == [("batch m:1", facts), ("results m:1", facts)]


@pytest.mark.parametrize("bench", [BatchingOptions(8, (4, 8))], indirect=True)
async def test_a_batch_has_no_spans_without_a_session(bench: Bench) -> None:
    await bench.answer(1, 2, 3)
    await asyncio.to_thread(bench.batcher.stop)
    assert bench.spans.ended == []


@pytest.mark.parametrize("bench", [BatchingOptions(8, (4, 8))], indirect=True)
async def test_the_halves_of_a_failed_batch_have_spans_too(bench: Bench) -> None:
    bench.spans.is_recording = True
    bench.servable.gate.clear()
    first = asyncio.create_task(bench.answer(1))
    await asyncio.to_thread(bench.servable.entered.acquire)
    others = [asyncio.create_task(bench.answer(value)) for value in (2, -1)]
    await asyncio.sleep(0)
    bench.servable.gate.set()
    _, valid, invalid = await asyncio.gather(first, *others)
    assert not isinstance(valid.future.result(), InvalidArgument)
    assert isinstance(invalid.future.result(), InvalidArgument)
    await asyncio.to_thread(bench.batcher.stop)
    started = [facts["rows"] for name, facts in bench.spans.ended if name == "batch m:1"]
    assert started == [1, 2, 1, 1]
