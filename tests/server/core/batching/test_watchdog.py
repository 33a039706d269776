"""Tests for the watchdog with real batchers: hung runs, their callers, and lost devices."""

import asyncio
import queue
from collections.abc import AsyncIterator, Sequence

import pytest

from tests.support.fake_device import FakeClock, FakeServable, RecordingMetrics, double_task
from tpuserve_server.core.batching.batcher import Batcher
from tpuserve_server.core.batching.device_share import DeviceShare
from tpuserve_server.core.batching.parameters import BatchingOptions, BatchingParameters
from tpuserve_server.core.batching.services import BatchedVersion, DeviceServices
from tpuserve_server.core.batching.task import Task
from tpuserve_server.core.batching.watchdog import Watchdog
from tpuserve_server.core.terms.errors import (
    DeadlineExceeded,
    DeviceLost,
    InvalidArgument,
    OutOfMemory,
    ResourceExhausted,
    ServingError,
    Unavailable,
)
from tpuserve_server.core.terms.options import WatchdogOptions
from tpuserve_server.core.terms.server_state import Replacement
from tpuserve_server.core.terms.types import ServableId

LIMIT_S = 300.0
REPLACE_S = 60.0
SIZES = {"serving_default": BatchingOptions(4, (1, 2, 4))}


class Kennel:
    """A watchdog, and batchers that it watches."""

    def __init__(self, options: WatchdogOptions) -> None:
        self.clock = FakeClock()
        self.metrics = RecordingMetrics()
        self.watchdog = Watchdog(self.clock, options)
        self.device = DeviceShare(1)
        self.servables: dict[str, FakeServable] = {}
        self.batchers: dict[str, Batcher] = {}
        self.changes: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.watchdog.subscribe(lambda: self.changes.put(self.watchdog.why_not_live()))
        self.watchdog.start()

    def add(self, name: str, threads: int = 1) -> None:
        self.servables[name] = FakeServable()
        self.batchers[name] = Batcher(
            BatchedVersion(ServableId(name, 1), self.servables[name], SIZES),
            BatchingParameters(max_enqueued_batches=8, num_batch_threads=threads),
            DeviceServices(self.clock, self.metrics, device=self.device, watchdog=self.watchdog),
        )

    def submit(self, name: str, *values: float) -> Task:
        task = double_task(*values)
        self.batchers[name].submit(task)
        return task

    async def hang(self, name: str, *values: float) -> Task:
        """Start a run that does not end until its gate opens."""
        self.servables[name].gate.clear()
        task = self.submit(name, *(values or (0,)))
        await asyncio.to_thread(self.servables[name].entered.acquire)
        return task

    async def change(self) -> str:
        """Wait for a change of the liveness, and return why the process is not live."""
        return await asyncio.to_thread(self.changes.get, timeout=10)

    def stop(self) -> None:
        for servable in self.servables.values():
            servable.gate.set()
        for batcher in self.batchers.values():
            batcher.stop()
        self.watchdog.stop()


@pytest.fixture
async def kennel(request: pytest.FixtureRequest) -> AsyncIterator[Kennel]:
    kennel = Kennel(getattr(request, "param", WatchdogOptions(LIMIT_S, REPLACE_S)))
    kennel.add("m")
    yield kennel
    kennel.stop()


async def errors_of(tasks: Sequence[Task]) -> list[type[object]]:
    return [type(await task.future) for task in tasks]


async def test_callers_of_a_hung_run_and_behind_it_are_released_and_new_ones_refused(kennel: Kennel) -> None:
    hung = await kennel.hang("m")
    behind = [kennel.submit("m", value) for value in range(3)]
    kennel.clock.advance(LIMIT_S - 1)
    assert kennel.watchdog.why_not_live() == ""
    kennel.clock.advance(1)
    # A client that retries sends only the requests behind the run to another server.
    assert await errors_of([hung, *behind]) == [DeadlineExceeded, Unavailable, Unavailable, Unavailable]
    assert await kennel.change() == "a run of {name: m version: 1} has taken 300 s (--run_timeout_seconds)"
    with pytest.raises(Unavailable, match="does not respond: a run has taken 300 s"):
        kennel.submit("m", 1)
    assert kennel.metrics.dropped == ["hung"] * 3
    assert kennel.metrics.hung == {ServableId("m", 1): 1}
    assert kennel.batchers["m"].hung_s() == LIMIT_S


async def test_liveness_returns_when_the_run_ends_after_all(kennel: Kennel) -> None:
    await kennel.hang("m")
    kennel.clock.advance(LIMIT_S)
    assert await kennel.change()
    kennel.servables["m"].gate.set()
    assert await kennel.change() == ""
    answered = await kennel.submit("m", 3).future
    assert not isinstance(answered, ServingError)
    assert answered["y"][0, 0] == 6
    assert kennel.batchers["m"].hung_s() == 0


async def test_other_models_continue_on_the_device(kennel: Kennel) -> None:
    kennel.add("n")
    await kennel.hang("m")
    # The hung run has the only slot of the device.
    waits = kennel.submit("n", 1)
    kennel.clock.advance(LIMIT_S)
    assert "name: m" in await kennel.change()
    assert not isinstance(await waits.future, ServingError)


async def test_another_thread_of_the_model_continues_to_serve(kennel: Kennel) -> None:
    kennel.device = DeviceShare(2)
    kennel.add("n", threads=2)
    hung = await kennel.hang("n")
    kennel.clock.advance(LIMIT_S)
    assert "name: n" in await kennel.change()
    assert await errors_of([hung]) == [DeadlineExceeded]
    second = kennel.submit("n", 1)
    kennel.servables["n"].gate.set()
    assert not isinstance(await second.future, ServingError)


async def test_the_process_should_be_replaced_some_time_later(kennel: Kennel) -> None:
    await kennel.hang("m")
    kennel.clock.advance(LIMIT_S)
    await kennel.change()
    assert kennel.watchdog.replacement() is None
    kennel.clock.advance(REPLACE_S)
    why = await kennel.change()
    assert kennel.watchdog.replacement() == Replacement("hung run", why)
    assert "has taken 360 s" in why


@pytest.mark.parametrize("kennel", [WatchdogOptions(LIMIT_S, 0)], indirect=True)
async def test_without_a_time_for_it_the_process_is_not_replaced(kennel: Kennel) -> None:
    await kennel.hang("m")
    kennel.clock.advance(LIMIT_S)
    await kennel.change()
    kennel.clock.advance(1e6)
    assert kennel.watchdog.replacement() is None


@pytest.mark.parametrize("kennel", [WatchdogOptions(0, REPLACE_S)], indirect=True)
async def test_without_a_limit_no_run_hangs(kennel: Kennel) -> None:
    running = await kennel.hang("m")
    kennel.clock.advance(1e6)
    assert kennel.watchdog.why_not_live() == ""
    kennel.servables["m"].gate.set()
    assert not isinstance(await running.future, ServingError)


async def test_a_batch_that_runs_again_in_halves_has_the_limit_for_each_run(kennel: Kennel) -> None:
    servable = kennel.servables["m"]
    await kennel.hang("m")
    tasks = [kennel.submit("m", value) for value in (-1, -1, 1)]
    # Each run takes two thirds of the limit: the batch, its halves, and a half of a half.
    servable.on_batch = lambda: setattr(kennel.clock, "now_s", kennel.clock.now_s + LIMIT_S * 2 / 3)
    servable.gate.set()
    assert await errors_of(tasks) == [InvalidArgument, InvalidArgument, dict]
    assert kennel.watchdog.why_not_live() == ""
    assert kennel.changes.empty()


async def test_released_requests_do_not_run_again(kennel: Kennel) -> None:
    servable = kennel.servables["m"]
    first = await kennel.hang("m")
    tasks = [kennel.submit("m", value) for value in (-1, -2)]
    servable.on_batch = servable.gate.clear
    servable.gate.set()
    await first.future
    await asyncio.to_thread(servable.entered.acquire)
    kennel.clock.advance(LIMIT_S)
    assert await errors_of(tasks) == [DeadlineExceeded, DeadlineExceeded]
    await kennel.change()
    servable.gate.set()
    assert await kennel.change() == ""
    # The held batch, and both requests once.
    assert [len(batch["x"]) for batch in servable.batches] == [1, 2]


async def test_an_error_that_names_a_lost_device_makes_the_process_useless(kennel: Kennel) -> None:
    kennel.servables["m"].fault = DeviceLost("The run failed: CUDA_ERROR_ILLEGAL_ADDRESS")
    assert await errors_of([kennel.submit("m", 1)]) == [DeviceLost]
    lost = "the device of {name: m version: 1} is lost: The run failed: CUDA_ERROR_ILLEGAL_ADDRESS"
    assert await kennel.change() == lost
    assert (kennel.watchdog.lost_device(), kennel.watchdog.replacement()) == (lost, Replacement("lost device", lost))
    # It is reported once.
    assert await errors_of([kennel.submit("m", 1)]) == [DeviceLost]
    assert kennel.changes.empty()


async def test_too_little_memory_is_no_lost_device(kennel: Kennel) -> None:
    kennel.servables["m"].fault = ResourceExhausted("The run failed, the device is out of memory")
    assert await errors_of([kennel.submit("m", 1)]) == [OutOfMemory]
    kennel.servables["m"].fault = None
    assert await errors_of([kennel.submit("m", 1)]) == [dict]
    assert kennel.watchdog.why_not_live() == ""
