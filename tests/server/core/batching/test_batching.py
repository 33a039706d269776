import asyncio
import gc
import math
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import numpy as np
import pytest

from tests.support.fake_device import DOUBLE, DOUBLE_WIDE, FakeClock, FakeServable, RecordingMetrics
from tpuserve_server.core.batching import batcher
from tpuserve_server.core.batching.batcher import Batcher
from tpuserve_server.core.batching.parameters import BatchingOptions, BatchingParameters
from tpuserve_server.core.batching.services import BatchedVersion, DeviceServices
from tpuserve_server.core.batching.task import Task
from tpuserve_server.core.terms.deadline import Deadline
from tpuserve_server.core.terms.errors import (
    Code,
    DeadlineExceeded,
    FailedPrecondition,
    Internal,
    InvalidArgument,
    OutOfMemory,
    ResourceExhausted,
    ServingError,
    Unavailable,
)
from tpuserve_server.core.terms.types import ServableId, Signature, Tensors, TensorSpec

ID = ServableId("m", 1)
SIZES = {"serving_default": BatchingOptions(8, (1, 2, 4, 8))}


class Bench:
    """A batcher on a fake device."""

    def __init__(
        self,
        options: Mapping[str, BatchingOptions] = SIZES,
        max_enqueued_batches: int = 4,
        signature: Signature = DOUBLE,
        num_batch_threads: int = 1,
    ) -> None:
        self.servable = FakeServable({signature.name: signature})
        self.clock = FakeClock()
        self.metrics = RecordingMetrics()
        self.batcher = Batcher(
            BatchedVersion(ID, self.servable, options),
            BatchingParameters(max_enqueued_batches=max_enqueued_batches, num_batch_threads=num_batch_threads),
            DeviceServices(self.clock, self.metrics),
        )

    def submit(
        self,
        x: object,
        *,
        outputs: tuple[str, ...] = ("y",),
        shareable: bool | None = None,
        deadline: Deadline | None = None,
        rows: int | None = None,
    ) -> Task:
        array = x if isinstance(x, np.ndarray) else np.array(x, np.float32)
        task = Task(
            signature_name=DOUBLE.name,
            output_names=outputs,
            inputs={"x": array},
            rows=len(array) if rows is None else rows,
            deadline=deadline or Deadline.never(),
            future=asyncio.get_running_loop().create_future(),
            shareable=DOUBLE.name in self.batcher.options if shareable is None else shareable,
        )
        self.batcher.submit(task)
        self.clock.now_s += 0.001
        return task

    async def sleeps_until(self) -> float:
        """Return the latest time at which the device thread wakes, once it waits with a timeout."""
        while (at_s := await asyncio.to_thread(self.clock.waits.get)) == math.inf:
            pass
        return at_s

    async def hold(self) -> Task:
        """Put a batch on the device and keep it there until the gate opens."""
        self.servable.gate.clear()
        task = self.submit([[0, 0]])
        await asyncio.to_thread(self.servable.entered.acquire)
        return task


@pytest.fixture
async def make_bench() -> AsyncIterator[Callable[..., Bench]]:
    """Return a function that makes benches, and stop all of them at the end."""
    benches: list[Bench] = []

    def make(*arguments: Any, **named: Any) -> Bench:  # noqa: ANN401 - as Bench takes them
        benches.append(Bench(*arguments, **named))
        return benches[-1]

    yield make
    for bench in benches:
        bench.servable.gate.set()
        bench.batcher.stop()


@pytest.fixture
async def bench(make_bench: Callable[..., Bench]) -> Bench:
    return make_bench()


async def outputs_of(task: Task) -> Tensors:
    outcome = await task.future
    assert not isinstance(outcome, ServingError), outcome
    return outcome


async def y_of(task: Task) -> list[list[float]]:
    values: list[list[float]] = (await outputs_of(task))["y"].tolist()
    return values


async def error_of(task: Task) -> ServingError:
    outcome = await task.future
    assert isinstance(outcome, ServingError), outcome
    return outcome


async def test_a_lone_request_runs_at_once_as_it_came(bench: Bench) -> None:
    assert await y_of(bench.submit([[1, 2]])) == [[2, 4]]
    assert bench.metrics.batches == [(1, 1)]


async def test_requests_that_wait_share_a_batch_padded_with_a_real_row(bench: Bench) -> None:
    held = await bench.hold()
    tasks = [bench.submit([[1, 1]]), bench.submit([[2, 2], [3, 3]])]
    bench.servable.gate.set()
    await held.future
    assert [await y_of(task) for task in tasks] == [[[2, 2]], [[4, 4], [6, 6]]]
    assert bench.metrics.batches == [(1, 1), (3, 4)]
    np.testing.assert_array_equal(bench.servable.batches[1]["x"], [[1, 1], [2, 2], [3, 3], [3, 3]])


async def test_a_batch_counts_rows_not_requests(bench: Bench) -> None:
    await bench.hold()
    tasks = [bench.submit(np.full((3, 2), value, np.float32)) for value in range(4)]
    bench.servable.gate.set()
    for value, task in enumerate(tasks):
        assert await y_of(task) == [[2 * value] * 2] * 3
    assert bench.metrics.batches[1:] == [(6, 8), (6, 8)]


async def test_without_allowed_sizes_nothing_is_padded(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench({"serving_default": BatchingOptions(8)})
    await bench.hold()
    tasks = [bench.submit([[value, value]]) for value in range(3)]
    bench.servable.gate.set()
    for task in tasks:
        await task.future
    assert bench.metrics.batches[1:] == [(3, 3)]


async def test_a_signature_that_is_not_batched_runs_one_by_one(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench({})
    await bench.hold()
    tasks = [bench.submit([[value, value]]) for value in range(3)]
    bench.servable.gate.set()
    assert [await y_of(task) for task in tasks] == [[[0, 0]], [[2, 2]], [[4, 4]]]
    assert len(bench.servable.batches) == 4


async def test_unusual_shapes_run_alone_and_unpadded(bench: Bench) -> None:
    await bench.hold()
    alone = bench.submit(np.ones(5, np.float32), shareable=False)
    beside = bench.submit([[1, 1]])
    bench.servable.gate.set()
    assert (await outputs_of(alone))["y"].tolist() == [2] * 5
    assert await y_of(beside) == [[2, 2]]
    assert bench.servable.batches[1]["x"].shape == (5,)


@pytest.mark.parametrize("other", [{"outputs": ("y", "x")}, {"x": np.ones((1, 3), np.float32)}])
async def test_other_outputs_or_row_shapes_never_share_a_batch(
    make_bench: Callable[..., Bench], other: dict[str, object]
) -> None:
    bench = make_bench(signature=DOUBLE_WIDE)
    await bench.hold()
    arguments = {"x": [[1, 1]], **other}
    tasks = [bench.submit([[1, 1]]), bench.submit(**arguments)]  # type: ignore[arg-type]  # a table of arguments
    bench.servable.gate.set()
    for task in tasks:
        await task.future
    assert bench.metrics.batches[1:] == [(1, 1), (1, 1)]


async def test_strings_are_batched(bench: Bench) -> None:
    await bench.hold()
    tasks = [bench.submit(np.array([[b"a", b"b"]], object)), bench.submit(np.array([[b"c", b""]], object))]
    bench.servable.gate.set()
    assert [(await outputs_of(task))["y"].tolist() for task in tasks] == [[[b"aa", b"bb"]], [[b"cc", b""]]]


async def test_an_input_handed_through_is_not_overwritten_by_the_next_batch(bench: Bench) -> None:
    results = []
    for start in (1, 10):
        await bench.hold()
        tasks = [bench.submit([[start + i, 0]], outputs=("x",)) for i in range(3)]
        bench.servable.gate.set()
        results.append([(await outputs_of(task))["x"] for task in tasks])
    assert [x[0, 0] for x in results[0]] == [1, 2, 3]


async def test_buffers_are_shared_by_sizes_and_bounded_in_bytes(
    make_bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batcher, "MAX_BUFFER_BYTES", 4096)
    bench = make_bench({"serving_default": BatchingOptions(8)}, signature=DOUBLE_WIDE)
    joined: list[weakref.ref[np.ndarray]] = []

    def remember(inputs: Tensors) -> None:
        if len(inputs["x"]) > 1:
            buffer = inputs["x"].base
            assert buffer is not None
            joined.append(weakref.ref(buffer))

    bench.servable.on_inputs = remember
    for width in range(1, 70):
        await bench.hold()
        tasks = [bench.submit(np.full((1, width), row, np.float32)) for row in (1, 2)]
        bench.servable.gate.set()
        assert [(await outputs_of(task))["y"].tolist() for task in tasks] == [[[2.0] * width], [[4.0] * width]]
    kept = {id(array): array.nbytes for array in (reference() for reference in joined) if array is not None}
    assert len(joined) == 69
    assert 0 < sum(kept.values()) <= 4096


async def test_an_idle_device_thread_keeps_nothing_of_the_last_batch(bench: Bench) -> None:
    task = bench.submit([[1, 2]])
    await task.future
    inputs = weakref.ref(task.inputs["x"])
    del task
    # The thread responds before it drops its references. Another response shows that it has started over.
    await bench.submit([[1, 2]]).future
    gc.collect()
    assert inputs() is None


async def test_more_rows_than_a_batch_holds_are_refused(bench: Bench) -> None:
    with pytest.raises(InvalidArgument, match="Task size 9 is larger than maximum input batch size 8"):
        bench.submit(np.zeros((9, 2), np.float32))


async def test_a_full_queue_refuses_at_once(bench: Bench) -> None:
    await bench.hold()
    for _ in range(4):
        bench.submit(np.zeros((8, 2), np.float32))
    with pytest.raises(Unavailable, match="is full; currently 4 batches enqueued and max_enqueued_batches is 4"):
        bench.submit([[1, 1]])
    assert bench.metrics.dropped == ["queue_full"]


async def test_rows_of_requests_without_batching_are_measured() -> None:
    bench = Bench(options={})
    for rows in (2, 3, 0):
        await outputs_of(bench.submit(np.ones((rows, 2), np.float32), rows=1))
    # A shape that fits the signature only loosely has no rows.
    await outputs_of(bench.submit(np.ones(5, np.float32), rows=1))
    assert bench.metrics.batches == [(2, 2), (3, 3), (1, 1), (1, 1)]
    bench.batcher.stop()


async def test_a_signature_without_a_batch_dimension_has_one_row() -> None:
    x = TensorSpec("x", np.dtype(np.float32), (3, 2))
    bench = Bench({}, signature=Signature(DOUBLE.name, {"x": x}, {"y": x}))
    await outputs_of(bench.submit(np.ones((3, 2), np.float32), rows=1))
    assert bench.metrics.batches == [(1, 1)]
    bench.batcher.stop()


async def test_requests_that_run_alone_take_a_batchs_place_each(bench: Bench) -> None:
    await bench.hold()
    for _ in range(4):
        bench.submit(np.ones(3, np.float32), shareable=False)
    with pytest.raises(Unavailable, match="4 batches enqueued"):
        bench.submit([[1, 1]])


async def test_a_cancelled_request_frees_its_place_and_never_reaches_the_device(bench: Bench) -> None:
    held = await bench.hold()
    tasks = [bench.submit(np.full((8, 2), value, np.float32)) for value in range(4)]
    tasks[0].future.cancel()
    assert bench.batcher.discard(tasks[0], "cancelled")
    bench.submit(np.full((8, 2), 9, np.float32))
    assert not bench.batcher.discard(tasks[0], "cancelled")
    assert not bench.batcher.discard(held, "cancelled")
    bench.servable.gate.set()
    await tasks[3].future
    assert [batch["x"][0, 0] for batch in bench.servable.batches[1:4]] == [1, 2, 3]
    assert bench.metrics.dropped == ["cancelled"]


async def test_the_last_request_of_a_group_can_leave(bench: Bench) -> None:
    await bench.hold()
    task = bench.submit([[5, 5]])
    assert bench.batcher.discard(task, "expired")
    bench.servable.gate.set()
    await y_of(bench.submit([[1, 1]]))
    assert len(bench.servable.batches) == 2


async def test_cancelled_and_expired_work_is_dropped_before_execution(bench: Bench) -> None:
    await bench.hold()
    cancelled = bench.submit([[1, 1]])
    expired = bench.submit([[2, 2]], deadline=Deadline.after(5, bench.clock))
    alive = bench.submit([[3, 3]], deadline=Deadline.after(50, bench.clock))
    cancelled.future.cancel()
    bench.clock.now_s += 10
    bench.servable.gate.set()
    assert await y_of(alive) == [[6, 6]]
    assert isinstance(await error_of(expired), DeadlineExceeded)
    assert bench.metrics.batches == [(1, 1), (1, 1)]
    assert bench.metrics.dropped == ["cancelled", "expired"]


async def test_a_batch_of_dead_requests_costs_no_device_time(bench: Bench) -> None:
    await bench.hold()
    task = bench.submit([[1, 1]])
    task.future.cancel()
    bench.servable.gate.set()
    await y_of(bench.submit(np.ones((8, 2), np.float32)))
    assert len(bench.servable.batches) == 2


async def test_one_bad_row_fails_its_owner_alone(bench: Bench) -> None:
    await bench.hold()
    good, bad, also_good = (bench.submit([[value, value]]) for value in (1, -1, 2))
    bench.servable.gate.set()
    assert await y_of(good) == [[2, 2]]
    assert await y_of(also_good) == [[4, 4]]
    assert (await error_of(bad)).message == "x must not be negative"


async def test_the_owner_of_a_bad_row_is_found_in_few_runs(bench: Bench) -> None:
    await bench.hold()
    tasks = [bench.submit([[value, value]]) for value in (1, 2, 3, 4, 5, 6, 7, -1)]
    bench.servable.gate.set()
    assert isinstance(await error_of(tasks[-1]), InvalidArgument)
    assert [await y_of(task) for task in tasks[:-1]] == [[[2 * value] * 2] for value in range(1, 8)]
    # The held batch, all eight rows, then halves of 4, 2 and 1.
    assert [len(batch["x"]) for batch in bench.servable.batches] == [1, 8, 4, 4, 2, 2, 1, 1]


@pytest.mark.parametrize("fault", [ResourceExhausted("OOM when allocating tensor"), MemoryError()])
async def test_a_row_that_needs_too_much_memory_is_a_fault_of_its_own(bench: Bench, fault: Exception) -> None:
    await bench.hold()
    good, bad, also_good = (bench.submit([[value, value]]) for value in (1, 100, 2))

    def allocate(inputs: Tensors) -> None:
        if (inputs["x"] == 100).any():
            raise fault

    bench.servable.on_inputs = allocate
    bench.servable.gate.set()
    assert await y_of(good) == [[2, 2]]
    assert await y_of(also_good) == [[4, 4]]
    error = await error_of(bad)
    # Not RESOURCE_EXHAUSTED, which is 429 over HTTP.
    assert (type(error), error.code) == (OutOfMemory, Code.INTERNAL)
    assert "ran out of memory" in error.message
    assert str(fault) in error.message


async def test_what_expires_while_halves_run_is_dropped(bench: Bench) -> None:
    await bench.hold()
    bad = bench.submit([[-1, -1]])
    good = bench.submit([[1, 1]], deadline=Deadline.after(5, bench.clock))
    bench.servable.on_batch = lambda: setattr(bench.clock, "now_s", bench.clock.now_s + 3)
    bench.servable.gate.set()
    assert isinstance(await error_of(bad), InvalidArgument)
    assert isinstance(await error_of(good), DeadlineExceeded)
    assert len(bench.servable.batches) == 3


@pytest.mark.parametrize(
    ("fault", "kind"), [(RuntimeError("/secret/path"), Internal), (Unavailable("device lost"), Unavailable)]
)
async def test_a_device_fault_reaches_every_member_once_and_the_next_batch_runs(
    bench: Bench, fault: Exception, kind: type[ServingError]
) -> None:
    held = await bench.hold()
    tasks = [bench.submit([[1, 1]]), bench.submit([[2, 2]])]
    bench.servable.fault = fault
    bench.servable.gate.set()
    for task in (held, *tasks):
        error = await error_of(task)
        assert type(error) is kind
        assert "secret" not in error.message
    bench.servable.fault = None
    assert await y_of(bench.submit([[3, 3]])) == [[6, 6]]
    assert len(bench.servable.batches) == 3


async def test_an_output_without_rows_is_an_error_not_somebody_elses_answer(bench: Bench) -> None:
    bench.servable.outputs = {"y": np.zeros((), np.float32)}
    error = await error_of(bench.submit([[1, 1]]))
    assert isinstance(error, FailedPrecondition)
    assert "output 'y' has shape" in error.message


async def test_stop_answers_what_is_queued_and_refuses_what_comes(bench: Bench) -> None:
    await bench.hold()
    queued = bench.submit([[1, 1]])
    stopping = asyncio.create_task(asyncio.to_thread(bench.batcher.stop))
    bench.servable.gate.set()
    assert await y_of(queued) == [[2, 2]]
    await stopping
    with pytest.raises(Unavailable, match="unloading"):
        bench.submit([[1, 1]])


async def test_results_for_a_closed_event_loop_are_dropped_quietly(bench: Bench) -> None:
    def elsewhere() -> None:
        async def submit() -> None:
            bench.submit([[1, 1]])

        asyncio.run(submit())

    held = await bench.hold()
    thread = threading.Thread(target=elsewhere)
    thread.start()
    await asyncio.to_thread(thread.join)
    bench.servable.gate.set()
    await held.future
    assert await y_of(bench.submit([[3, 3]])) == [[6, 6]]


TIMED = {"serving_default": BatchingOptions(4, timeout_s=10.0)}


async def test_a_batch_leaves_when_its_oldest_request_has_waited_its_time(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(TIMED)
    first = bench.submit([[1, 1]])
    assert await bench.sleeps_until() == first.enqueued_s + 10.0
    second = bench.submit([[2, 2]])
    bench.clock.advance(9.9)
    # An early wake-up changes nothing: the thread waits until the same time.
    assert await bench.sleeps_until() == first.enqueued_s + 10.0
    assert bench.servable.batches == []
    bench.clock.advance(0.1)
    assert [await y_of(task) for task in (first, second)] == [[[2, 2]], [[4, 4]]]
    assert bench.metrics.batches == [(2, 2)]


async def test_a_full_batch_does_not_wait(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(TIMED)
    tasks = [bench.submit([[value, value]]) for value in range(4)]
    assert [await y_of(task) for task in tasks] == [[[2 * value] * 2] for value in range(4)]
    assert bench.metrics.batches == [(4, 4)]


async def test_a_request_that_was_waited_for_wakes_the_thread(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(TIMED)
    tasks = [bench.submit([[1, 1]])]
    await bench.sleeps_until()
    tasks.append(bench.submit([[2, 2]] * 3))
    for task in tasks:
        await task.future
    assert bench.metrics.batches == [(4, 4)]


async def test_stop_does_not_wait_for_a_batch_to_fill(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(TIMED)
    task = bench.submit([[1, 1]])
    await bench.sleeps_until()
    await asyncio.to_thread(bench.batcher.stop)
    assert await y_of(task) == [[2, 2]]


async def test_several_threads_run_batches_at_the_same_time(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(num_batch_threads=2)
    held = [await bench.hold(), await bench.hold()]
    third = bench.submit([[3, 3]])
    bench.servable.gate.set()
    assert [await y_of(task) for task in (*held, third)] == [[[0, 0]], [[0, 0]], [[6, 6]]]


async def test_one_wake_up_is_enough_for_every_thread(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(num_batch_threads=2)
    for _ in range(2):
        # Both threads wait before the first request.
        await asyncio.to_thread(bench.clock.waits.get)
    bench.servable.gate.clear()
    tasks = [bench.submit(np.ones(3, np.float32), shareable=False) for _ in range(2)]
    for _ in range(2):
        await asyncio.to_thread(bench.servable.entered.acquire)
    bench.servable.gate.set()
    for task in tasks:
        assert (await outputs_of(task))["y"].tolist() == [2, 2, 2]


SPLIT = {"serving_default": BatchingOptions(16, (2, 4, 16), max_execution_batch_size=4)}


def counted(rows: int, first: int = 0) -> np.ndarray:
    return np.arange(first, first + rows, dtype=np.float32)[:, None].repeat(2, 1)


async def test_a_large_request_is_run_in_parts_and_answered_in_order(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(SPLIT, max_enqueued_batches=8)
    await bench.hold()
    small, large, after = bench.submit(counted(3)), bench.submit(counted(10, 10)), bench.submit(counted(2, 30))
    bench.servable.gate.set()
    np.testing.assert_array_equal((await outputs_of(large))["y"], counted(10, 10) * 2)
    np.testing.assert_array_equal((await outputs_of(small))["y"], counted(3) * 2)
    np.testing.assert_array_equal((await outputs_of(after))["y"], counted(2, 30) * 2)
    assert bench.metrics.batches[1:] == [(4, 4), (4, 4), (4, 4), (3, 4)]


async def test_a_part_that_fails_fails_its_request_once_and_the_rest_is_not_run(
    make_bench: Callable[..., Bench],
) -> None:
    bench = make_bench(SPLIT, max_enqueued_batches=8)
    await bench.hold()
    rows = counted(12)
    rows[5] = -1
    bad, good = bench.submit(rows), bench.submit(counted(1))
    bench.servable.gate.set()
    assert (await error_of(bad)).message == "x must not be negative"
    assert await y_of(good) == [[0, 0]]
    # The held batch, the bad request's first two parts, and the other request.
    assert [len(batch["x"]) for batch in bench.servable.batches] == [2, 4, 4, 2]
    assert bench.metrics.dropped == []


async def test_parts_whose_outputs_differ_in_shape_are_an_error(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(SPLIT, max_enqueued_batches=8)

    def answer(inputs: Tensors) -> None:
        bench.servable.outputs = {"y": np.zeros((4, len(bench.servable.batches) + 1), np.float32)}

    bench.servable.on_inputs = answer
    assert "the parts have rows of different shapes" in (await error_of(bench.submit(counted(8)))).message


async def test_a_split_request_that_nobody_waits_for_is_dropped_and_counted_once(
    make_bench: Callable[..., Bench],
) -> None:
    bench = make_bench(SPLIT, max_enqueued_batches=8)
    await bench.hold()
    discarded, cancelled = bench.submit(counted(8)), bench.submit(counted(8))
    expired = bench.submit(counted(8), deadline=Deadline.after(1, bench.clock))
    discarded.future.cancel()
    cancelled.future.cancel()
    assert bench.batcher.discard(discarded, "cancelled")
    bench.clock.now_s += 10
    bench.servable.gate.set()
    assert isinstance(await error_of(expired), DeadlineExceeded)
    await y_of(bench.submit([[1, 1]]))
    assert len(bench.servable.batches) == 2
    assert bench.metrics.dropped == ["cancelled", "cancelled", "expired"]


PADDED = {"serving_default": BatchingOptions(8, (4, 8), pad_variable_length_inputs=True)}


async def test_rows_of_variable_length_are_padded_with_their_first_value(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(PADDED, signature=DOUBLE_WIDE)
    await bench.hold()
    short, long = bench.submit([[7, 8]]), bench.submit([[1, 2, 3], [4, 5, 6]])
    bench.servable.gate.set()
    assert await y_of(short) == [[14, 16, 14]]
    assert await y_of(long) == [[2, 4, 6], [8, 10, 12]]
    np.testing.assert_array_equal(bench.servable.batches[1]["x"], [[7, 8, 7], [1, 2, 3], [4, 5, 6], [4, 5, 6]])


async def test_strings_of_variable_length_are_padded_too(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(PADDED, signature=DOUBLE_WIDE)
    await bench.hold()
    tasks = [bench.submit(np.array([[b"a"]], object)), bench.submit(np.array([[b"b", b"c"]], object))]
    bench.servable.gate.set()
    assert [(await outputs_of(task))["y"].tolist() for task in tasks] == [[[b"aa", b"aa"]], [[b"bb", b"cc"]]]


@pytest.mark.parametrize(
    ("largest", "allowed", "message"),
    [
        (0, (), "max_batch_size must be positive"),
        (4, (1, 2), "Last entry in allowed_batch_sizes must match max_batch_size; last entry was 2; expected 4"),
        (4, (2, 1, 4), "ascending"),
        (4, (0, 4), "positive"),
    ],
)
def test_sizes_that_do_not_fit_together_are_refused(largest: int, allowed: tuple[int, ...], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        BatchingOptions(largest, allowed)


def test_where_the_system_gives_too_few_threads_none_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    start = threading.Thread.start
    started: list[threading.Thread] = []

    def start_two(thread: threading.Thread) -> None:
        if len(started) == 2:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_two)
    with pytest.raises(ResourceExhausted, match="Not 3 batch threads"):
        Bench(num_batch_threads=3)
    assert not any(thread.is_alive() for thread in started)
