"""Tests for batchers of several models on one device: real threads, and gates instead of time."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.support.fake_device import DOUBLE, FakeClock, FakeServable, RecordingMetrics, WatchedDevice, double_task
from tpuserve_server.core.batching.batcher import Batcher
from tpuserve_server.core.batching.device_share import DeviceShare
from tpuserve_server.core.batching.parameters import BatchingOptions, BatchingParameters
from tpuserve_server.core.batching.services import BatchedVersion, DeviceServices
from tpuserve_server.core.batching.task import Task
from tpuserve_server.core.terms.errors import ServingError, Unavailable
from tpuserve_server.core.terms.types import ServableId

SIZES = {DOUBLE.name: BatchingOptions(8, (1, 2, 4, 8))}


class Model:
    """A model with a batcher. Each of its runs waits for the gate of its servable."""

    def __init__(
        self, name: str, device: DeviceShare, clock: FakeClock, *, weight: float = 1, threads: int = 1
    ) -> None:
        self.name = name
        self.servable = FakeServable(on_batch=self._began)
        self.metrics = RecordingMetrics()
        self.order: list[str] = []
        self.batcher = Batcher(
            BatchedVersion(ServableId(name, 1), self.servable, SIZES),
            BatchingParameters(max_enqueued_batches=64, num_batch_threads=threads, scheduling_weight=weight),
            DeviceServices(clock, self.metrics, device=device),
        )

    def _began(self) -> None:
        self.order.append(self.name)

    def submit(self, *values: float) -> Task:
        task = double_task(*values)
        self.batcher.submit(task)
        return task

    async def hold(self) -> Task:
        """Put a batch on the device and keep it there until the gate opens."""
        self.servable.gate.clear()
        task = self.submit(0)
        await asyncio.to_thread(self.servable.entered.acquire)
        return task


class House:
    """Several models on one device."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.device = WatchedDevice(1)
        self.models: list[Model] = []
        self.order: list[str] = []

    def add(self, name: str, *, weight: float = 1, threads: int = 1) -> Model:
        model = Model(name, self.device, self.clock, weight=weight, threads=threads)
        model.order = self.order
        self.models.append(model)
        return model


@pytest.fixture
async def house() -> AsyncIterator[House]:
    """Yield a device with one slot, and stop its models at the end."""
    house = House()
    yield house
    for model in house.models:
        model.servable.gate.set()
    for model in house.models:
        await asyncio.to_thread(model.batcher.stop)


async def first_of(task: Task) -> float:
    outcome = await task.future
    assert not isinstance(outcome, ServingError), outcome
    return float(outcome["y"][0, 0])


async def accepts(model: Model) -> bool:
    """Return whether the model's batcher still accepts requests."""
    try:
        task = model.submit(1)
    except Unavailable:
        return False
    model.batcher.discard(task, "cancelled")
    await asyncio.sleep(0)
    return True


async def test_rows_gather_while_another_models_batch_runs(house: House) -> None:
    a, b = house.add("a"), house.add("b")
    held = await a.hold()
    waiting = [b.submit(value) for value in (1, 2, 3)]
    a.servable.gate.set()
    assert [await first_of(task) for task in (held, *waiting)] == [0, 2, 4, 6]
    assert house.order == ["a", "b"]
    assert b.metrics.batches == [(3, 4)]


async def test_a_busy_model_does_not_starve_another(house: House) -> None:
    a, b = house.add("a"), house.add("b")
    held = await a.hold()
    flood = [a.submit(*range(8)) for _ in range(20)]
    light = b.submit(1)
    await asyncio.to_thread(house.device.lined_up.acquire)
    a.servable.on_inputs = lambda inputs: setattr(house.clock, "now_s", house.clock.now_s + 0.01)
    a.servable.gate.set()
    await first_of(light)
    for task in (held, *flood):
        await first_of(task)
    assert house.order[:3] == ["a", "b", "a"]


async def test_busy_models_take_turns_by_their_weights(house: House) -> None:
    a, b, c = house.add("a"), house.add("b", weight=3), house.add("c")
    held = await c.hold()
    for model in (a, b):
        model.servable.on_inputs = lambda inputs: setattr(house.clock, "now_s", house.clock.now_s + 1)
    tasks = [model.submit(*range(8)) for model in (a, b) for _ in range(12)]
    # Both threads wait for the slot, which c holds.
    for _ in range(2):
        await asyncio.to_thread(house.device.lined_up.acquire)
    c.servable.gate.set()
    for task in (held, *tasks):
        await first_of(task)
    order = house.order[1:]
    assert order[:12].count("b") == pytest.approx(9, abs=1)


async def test_a_model_is_unloaded_while_it_waits_for_its_turn(house: House) -> None:
    a, b = house.add("a"), house.add("b")
    held = await a.hold()
    waiting = b.submit(1)
    await asyncio.to_thread(house.device.lined_up.acquire)
    stopping = asyncio.create_task(asyncio.to_thread(b.batcher.stop))
    a.servable.gate.set()
    await stopping
    assert await first_of(waiting) == 2
    assert await first_of(held) == 0


async def test_a_model_without_work_is_unloaded_while_another_keeps_the_device(house: House) -> None:
    a, b = house.add("a"), house.add("b", threads=2)
    await a.hold()
    task = b.submit(1)
    await asyncio.to_thread(house.device.lined_up.acquire)
    assert task.future.cancel()
    assert b.batcher.discard(task, "cancelled")
    await asyncio.to_thread(b.batcher.stop)
    assert house.order == ["a"]


async def test_the_last_request_leaves_a_model_that_is_being_unloaded(house: House) -> None:
    a, b = house.add("a"), house.add("b")
    await a.hold()
    task = b.submit(1)
    await asyncio.to_thread(house.device.lined_up.acquire)
    stopping = asyncio.create_task(asyncio.to_thread(b.batcher.stop))
    while await accepts(b):
        pass
    assert b.batcher.discard(task, "cancelled")
    await stopping
    assert house.order == ["a"]
