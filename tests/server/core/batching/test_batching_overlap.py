"""Tests for batches in flight: dispatches ahead of unfinished runs, and their results."""

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from tests.support.fake_device import DOUBLE, FakeClock, RecordingMetrics, WatchedDevice, double_task
from tpuserve_server.core.batching.batcher import Batcher
from tpuserve_server.core.batching.cost_model import CostModel
from tpuserve_server.core.batching.device_share import DeviceShare
from tpuserve_server.core.batching.parameters import BatchingOptions, BatchingParameters
from tpuserve_server.core.batching.services import BatchedVersion, DeviceServices
from tpuserve_server.core.batching.task import Task
from tpuserve_server.core.terms.errors import Internal, InvalidArgument, ServingError
from tpuserve_server.core.terms.types import Array, ServableId, Signature, Tensors

SIZES = {DOUBLE.name: BatchingOptions(4, (1, 2, 4))}


@dataclass
class Stream:
    """A servable whose `dispatch` returns at once. Each permit in `permits` ends a run, in order."""

    max_in_flight: int
    permits: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    # Events: `d0` is the dispatch of the first run, `w0` the thread's wait for it, `r0` its end.
    log: list[str] = field(default_factory=list)
    waits: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    dispatches: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    refuses: Callable[[Tensors], bool] = lambda inputs: False
    at_dispatch: Callable[[], object] = lambda: None
    at_result: Callable[[], object] = lambda: None
    device: str = "stream"
    unrepeatable: str = ""
    never_blocks: bool = False
    dispatched: int = 0
    # Rows of the runs, with padding.
    sizes: list[int] = field(default_factory=list)

    @property
    def signatures(self) -> dict[str, Signature]:
        return {DOUBLE.name: DOUBLE}

    def dispatch(self, signature_name: str, inputs: Tensors, output_names: Sequence[str]) -> "StreamRun":
        self.at_dispatch()
        self.log.append(f"d{self.dispatched}")
        run = StreamRun(self, self.dispatched, inputs, {name: array.copy() for name, array in inputs.items()})
        self.dispatched += 1
        self.sizes.append(len(inputs["x"]))
        self.dispatches.release()
        if self.refuses(inputs):
            raise InvalidArgument("not this")
        return run

    def close(self) -> None: ...


@dataclass
class StreamRun:
    stream: Stream
    number: int
    inputs: Tensors
    copies: Tensors

    def result(self) -> Tensors:
        self.stream.log.append(f"w{self.number}")
        self.stream.waits.release()
        assert self.stream.permits.acquire(timeout=120), "the test never let it end"
        self.stream.log.append(f"r{self.number}")
        self.stream.at_result()
        # The device may read the inputs until now.
        for name, copy in self.copies.items():
            np.testing.assert_array_equal(self.inputs[name], copy)
        x: Array = self.inputs["x"]
        if (x < 0).any():
            raise InvalidArgument("x must not be negative")
        if (x == 666).any():
            raise RuntimeError("the device is on fire")
        return {"y": x + x}


class Bench:
    """A batcher on a stream."""

    def __init__(
        self,
        stream: Stream,
        *,
        device: DeviceShare | None = None,
        name: str = "m",
        threads: int = 1,
        options: BatchingOptions = SIZES[DOUBLE.name],
    ) -> None:
        self.stream = stream
        self.clock = FakeClock()
        self.metrics = RecordingMetrics()
        self.costs = CostModel()
        self.batcher = Batcher(
            BatchedVersion(ServableId(name, 1), stream, {DOUBLE.name: options}, self.costs),
            BatchingParameters(max_enqueued_batches=64, num_batch_threads=threads),
            DeviceServices(self.clock, self.metrics, device=device),
        )

    def submit(self, *values: float) -> Task:
        task = double_task(*values)
        self.batcher.submit(task)
        return task

    async def hold(self) -> Task:
        """Put a batch on the device, for which the thread then waits."""
        task = self.submit(0)
        await asyncio.to_thread(self.stream.waits.acquire)
        await self.dispatched(1)
        return task

    async def dispatched(self, runs: int) -> None:
        """Wait until that many more runs have been dispatched."""
        for _ in range(runs):
            await asyncio.to_thread(self.stream.dispatches.acquire)

    def end(self, runs: int = 100) -> None:
        """Let runs end."""
        self.stream.permits.release(runs)


@pytest.fixture
def make_bench() -> Iterator[Callable[..., Bench]]:
    """Return a function that makes benches with a stream of `max_in_flight`. Stop them at the end."""
    benches: list[Bench] = []

    def make(max_in_flight: int, **named: Any) -> Bench:  # noqa: ANN401 - as Bench takes them
        benches.append(Bench(Stream(max_in_flight), **named))
        return benches[-1]

    yield make
    for bench in benches:
        bench.end()
    for bench in benches:
        bench.batcher.stop()


async def values_of(*tasks: Task) -> list[list[float]]:
    outcomes = [await task.future for task in tasks]
    for outcome in outcomes:
        assert not isinstance(outcome, ServingError), outcome
    return [outcome["y"][:, 0].tolist() for outcome in outcomes if not isinstance(outcome, ServingError)]


async def test_the_next_full_batch_is_dispatched_before_the_last_has_ended(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(2)
    held = await bench.hold()
    tasks = [bench.submit(value, value) for value in (1, 2, 3, 4, 5, 6)]
    await bench.dispatched(1)
    bench.end()
    assert await values_of(held, *tasks) == [[0], *([2 * value] * 2 for value in (1, 2, 3, 4, 5, 6))]
    assert bench.stream.log == ["d0", "w0", "d1", "r0", "d2", "w1", "r1", "d3", "w2", "r2", "w3", "r3"]


@pytest.mark.parametrize(
    ("options", "requests", "bucket"),
    [
        pytest.param(SIZES[DOUBLE.name], [3, 1], 4, id="filled"),
        pytest.param(SIZES[DOUBLE.name], [3, 2], 4, id="closed and padded"),
        pytest.param(SIZES[DOUBLE.name], [1, 2, 4], 4, id="closed by a larger bucket"),
        pytest.param(BatchingOptions(8, (1, 2, 4, 8), max_execution_batch_size=4), [7], 4, id="split"),
        pytest.param(BatchingOptions(4), [2, 2], 4, id="without buckets"),
    ],
)
@pytest.mark.parametrize("threads", [1, 2])
async def test_a_batch_that_closes_during_a_run_is_dispatched_before_the_result(
    make_bench: Callable[..., Bench], options: BatchingOptions, requests: list[int], bucket: int, threads: int
) -> None:
    bench = make_bench(2 * threads, options=options, threads=threads)
    held = [await bench.hold() for _ in range(threads)]
    before = len(bench.stream.log)
    tasks = []
    for rows in requests:
        # The loop wakes the worker after each request.
        tasks.append(bench.submit(*[rows] * rows))
        await asyncio.sleep(0)
    await bench.dispatched(1)
    assert bench.stream.log[before] == f"d{threads}"
    assert bench.stream.sizes[threads] == bucket
    bench.end()
    assert await values_of(*held, *tasks) == [*([0],) * threads, *([2 * rows] * rows for rows in requests)]


async def test_no_more_are_in_flight_than_the_servable_says(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(3)
    held = await bench.hold()
    tasks = [bench.submit(value, value, value, value) for value in range(8)]
    await bench.dispatched(2)
    bench.end()
    await values_of(held, *tasks)
    ahead = 0
    for entry in bench.stream.log:
        ahead += {"d": 1, "r": -1, "w": 0}[entry[0]]
        assert ahead <= 3
    assert bench.stream.log[2:7] == ["d1", "d2", "r0", "d3", "w1"]


async def test_a_batch_that_may_grow_waits_for_those_in_flight(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(2)
    held = await bench.hold()
    full, rest = bench.submit(1, 1, 1, 1), bench.submit(2)
    await bench.dispatched(1)
    bench.end(1)
    await asyncio.to_thread(bench.stream.waits.acquire)
    late = bench.submit(3)
    bench.end()
    assert await values_of(held, full, rest, late) == [[0], [2] * 4, [4], [6]]
    # The device has no other work in between, and the late request shares the batch.
    assert bench.stream.log == ["d0", "w0", "d1", "r0", "w1", "r1", "d2", "w2", "r2"]
    assert bench.metrics.batches == [(1, 1), (4, 4), (2, 2)]


async def test_what_dispatch_runs_at_once_is_never_dispatched_ahead(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(1)
    held = await bench.hold()
    tasks = [bench.submit(value, value, value, value) for value in (1, 2)]
    bench.end()
    await values_of(held, *tasks)
    assert bench.stream.log == ["d0", "w0", "r0", "d1", "w1", "r1", "d2", "w2", "r2"]


async def test_threads_share_what_may_be_in_flight(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(2, threads=2)
    held = await bench.hold()
    also = await bench.hold()
    tasks = [bench.submit(value, value, value, value) for value in (1, 2)]
    bench.end()
    await values_of(held, also, *tasks)
    ahead = 0
    for entry in bench.stream.log:
        ahead += {"d": 1, "r": -1, "w": 0}[entry[0]]
        assert ahead <= 2


async def test_a_batch_that_fails_fails_its_own_members_and_those_in_flight_run(
    make_bench: Callable[..., Bench],
) -> None:
    bench = make_bench(3)
    held = await bench.hold()
    before, burnt, after = bench.submit(1, 1, 1, 1), bench.submit(666, 2, 2, 2), bench.submit(3, 3, 3, 3)
    await bench.dispatched(2)
    bench.end()
    outcome = await burnt.future
    assert type(outcome) is Internal
    assert "fire" not in outcome.message
    assert await values_of(held, before, after) == [[0], [2] * 4, [6] * 4]
    assert bench.stream.log[2:6] == ["d1", "d2", "r0", "d3"]


async def test_the_owner_of_bad_data_is_found_while_others_are_in_flight(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(2)
    held = await bench.hold()
    mixed = [bench.submit(value) for value in (1, -1, 2, 3)]
    following = bench.submit(4, 5, 6, 7)
    await bench.dispatched(1)
    bench.end()
    good = [task for index, task in enumerate(mixed) if index != 1]
    assert await values_of(held, *good, following) == [[0], [2], [4], [6], [8, 10, 12, 14]]
    assert type(await mixed[1].future) is InvalidArgument
    # The second batch was in flight when the halves of the first ran.
    assert bench.stream.log[2:7] == ["d1", "r0", "d2", "w1", "r1"]
    assert bench.stream.log.index("r2") > bench.stream.log.index("d3")


async def test_a_refused_dispatch_is_answered_and_the_next_runs(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(2)
    bench.stream.refuses = lambda inputs: bool((inputs["x"] == 13).any())
    held = await bench.hold()
    refused, following = bench.submit(13, 1, 1, 1), bench.submit(2, 2, 2, 2)
    bench.end()
    assert type(await refused.future) is InvalidArgument
    assert await values_of(held, following) == [[0], [4] * 4]


async def test_a_batch_of_the_dead_takes_no_place(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(2)
    held = await bench.hold()
    dead, alive = bench.submit(1, 1, 1, 1), bench.submit(2, 2, 2, 2)
    # Simulate a client that cancels just after the thread took its batch.
    dead.future.cancel()
    bench.end()
    assert await values_of(held, alive) == [[0], [4] * 4]
    assert bench.metrics.dropped == ["cancelled"]


async def test_stop_waits_for_what_is_in_flight_and_runs_what_is_queued(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(2)
    held = await bench.hold()
    tasks = [bench.submit(value, value, value, value) for value in (1, 2)]
    tasks.append(bench.submit(3))
    stopping = asyncio.create_task(asyncio.to_thread(bench.batcher.stop))
    bench.end()
    await stopping
    assert await values_of(held, *tasks) == [[0], [2] * 4, [4] * 4, [6]]


async def test_a_run_counts_from_the_end_of_the_one_before(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(2)
    bench.stream.at_result = lambda: bench.clock.advance(0.010)
    held = await bench.hold()
    tasks = [bench.submit(value, value, value, value) for value in (1, 2)]
    bench.end()
    await values_of(held, *tasks)
    # Both dispatches happened at the same time, and the second run ended 20 ms later.
    learned = {cost.rows: cost.mean_s for curve in bench.costs.snapshot() for cost in curve.costs}
    assert learned == pytest.approx({1: 0.010, 4: 0.010})


async def test_another_models_turn_comes_before_more_is_dispatched(make_bench: Callable[..., Bench]) -> None:
    device = WatchedDevice(1)
    a, b = make_bench(2, device=device, name="a"), make_bench(2, device=device, name="b")
    before_b: list[str] = []
    b.stream.at_dispatch = lambda: before_b.extend(a.stream.log)
    held = await a.hold()
    flood = [a.submit(value, value, value, value) for value in range(4)]
    await a.dispatched(1)
    a.end(1)
    await asyncio.to_thread(a.stream.waits.acquire)
    other = b.submit(1)
    await asyncio.to_thread(device.lined_up.acquire)
    a.end()
    b.end()
    assert await values_of(held, other, *flood) == [[0], [2], *([2 * value] * 4 for value in range(4))]
    # Runs in flight end, but queued batches do not precede b.
    assert before_b == ["d0", "w0", "d1", "r0", "d2", "w1", "r1", "w2", "r2"]


async def test_runs_that_halves_have_disturbed_teach_nothing(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(2)
    bench.stream.at_result = lambda: bench.clock.advance(0.010)
    held = await bench.hold()
    mixed = [bench.submit(value) for value in (1, -1, 2, 3)]
    following = [bench.submit(value, value, value, value) for value in (4, 5)]
    bench.end()
    await asyncio.gather(*(task.future for task in (held, *mixed, *following)))
    learned = [cost for curve in bench.costs.snapshot() for cost in curve.costs]
    # The first following run was on the device when the halves were queued behind it.
    assert [(cost.rows, cost.runs) for cost in learned] == [(1, 1), (4, 1)]
    assert [cost.mean_s for cost in learned] == pytest.approx([0.010, 0.010])
