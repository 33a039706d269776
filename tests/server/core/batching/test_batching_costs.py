"""Tests for the costs that the batcher learns from its runs, on a device with scripted run times."""

import asyncio
from collections.abc import Iterator, Mapping

import numpy as np
import pytest

from tests.support.fake_device import DOUBLE, FakeClock, FakeServable, RecordingMetrics
from tpuserve_server.core.batching.batcher import Batcher
from tpuserve_server.core.batching.cost_model import CostModel
from tpuserve_server.core.batching.parameters import BatchingOptions, BatchingParameters
from tpuserve_server.core.batching.services import BatchedVersion, DeviceServices
from tpuserve_server.core.batching.task import Task
from tpuserve_server.core.terms.deadline import Deadline
from tpuserve_server.core.terms.errors import InvalidArgument, ServingError
from tpuserve_server.core.terms.priority import Priority
from tpuserve_server.core.terms.types import ServableId, Tensors

BATCHED = {DOUBLE.name: BatchingOptions(8, (1, 2, 4, 8))}


class TimedBench:
    """A batcher whose runs take 10 ms plus 1 ms per row."""

    def __init__(self, options: Mapping[str, BatchingOptions]) -> None:
        self.costs = CostModel()
        self.servable = FakeServable(on_inputs=self._take_time)
        self.clock = FakeClock()
        self.metrics = RecordingMetrics()
        self.batcher = Batcher(
            BatchedVersion(ServableId("m", 1), self.servable, options, self.costs),
            BatchingParameters(max_enqueued_batches=4),
            DeviceServices(self.clock, self.metrics),
        )

    def _take_time(self, inputs: Tensors) -> None:
        self.clock.now_s += 0.010 + 0.001 * len(inputs["x"])

    def submit(
        self, rows: int, *, value: float = 1, shareable: bool = True, priority: Priority = Priority.HIGH
    ) -> Task:
        inputs = {"x": np.full((rows, 2), value, np.float32)}
        future = asyncio.get_running_loop().create_future()
        task = Task(DOUBLE.name, ("y",), inputs, rows if shareable else 1, Deadline.never(), future, shareable)
        task.priority = priority
        self.batcher.submit(task)
        return task

    async def run(self, rows: int, *, value: float = 1, shareable: bool = True) -> Tensors | ServingError:
        return await self.submit(rows, value=value, shareable=shareable).future

    def learned(self) -> dict[int, float]:
        return {cost.rows: round(cost.mean_s, 6) for curve in self.costs.snapshot() for cost in curve.costs}


@pytest.fixture
def bench() -> Iterator[TimedBench]:
    bench = TimedBench(BATCHED)
    yield bench
    bench.batcher.stop()


async def test_each_run_is_learned_at_its_padded_size(bench: TimedBench) -> None:
    for rows in (1, 3, 3, 8):
        await bench.run(rows)
    assert bench.learned() == {1: 0.011, 4: 0.014, 8: 0.018}


async def test_runs_that_fail_teach_nothing(bench: TimedBench) -> None:
    assert isinstance(await bench.run(2, value=-1), InvalidArgument)
    assert bench.learned() == {}


async def test_unusual_shapes_teach_nothing_of_a_bucket(bench: TimedBench) -> None:
    await bench.run(3, shareable=False)
    assert bench.learned() == {}


async def test_a_signature_that_is_not_batched_is_learned_by_request() -> None:
    bench = TimedBench({})
    try:
        await bench.run(3, shareable=False)
        assert bench.learned() == {1: 0.013}
    finally:
        bench.batcher.stop()


async def test_a_drop_is_told_with_its_priority(bench: TimedBench) -> None:
    bench.servable.gate.clear()
    held = bench.submit(1)
    await asyncio.to_thread(bench.servable.entered.acquire)
    low, high = bench.submit(1, priority=Priority.LOW), bench.submit(1)
    for task in (low, high):
        assert bench.batcher.discard(task, "cancelled")
    bench.servable.gate.set()
    await held.future
    assert bench.metrics.dropped == ["cancelled"] * 2
    assert bench.metrics.dropped_priorities == [Priority.LOW, Priority.HIGH]
