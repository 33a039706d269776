"""Tests for the threads of all versions: real threads, and gates instead of time."""

import asyncio
import queue
import threading
from collections.abc import AsyncIterator, Callable, Iterator

import pytest

from tests.support.fake_device import FakeClock, FakeServable, RecordingMetrics, double_task
from tpuserve_server.core.batching.batcher import Batcher
from tpuserve_server.core.batching.parameters import BatchingOptions, BatchingParameters
from tpuserve_server.core.batching.run_threads import RunThreads
from tpuserve_server.core.batching.services import BatchedVersion, DeviceServices
from tpuserve_server.core.batching.task import Task
from tpuserve_server.core.batching.watchdog import Watchdog
from tpuserve_server.core.terms.deadline import SystemClock
from tpuserve_server.core.terms.errors import DeadlineExceeded, ServingError
from tpuserve_server.core.terms.options import WatchdogOptions
from tpuserve_server.core.terms.types import ServableId

WAIT_S = 60


def alive() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("device-")}


def is_short(threads: RunThreads) -> bool:
    return threads.is_short


class Gate:
    """A worker that reports each of its runs, and waits in it until it may end."""

    def __init__(self) -> None:
        self.began: queue.SimpleQueue[threading.Thread] = queue.SimpleQueue()
        self.may_end = threading.Semaphore(0)

    def __call__(self) -> None:
        self.began.put(threading.current_thread())
        assert self.may_end.acquire(timeout=WAIT_S)


@pytest.fixture
def threads() -> Iterator[RunThreads]:
    """Yield two threads at most. One version has joined."""
    threads = RunThreads(SystemClock(), 2)
    threads.join(1)
    yield threads
    threads.leave()
    assert alive() == set()


def test_threads_start_on_demand_and_workers_wait_in_order(threads: RunThreads) -> None:
    assert len(alive()) == 1
    gates = [Gate() for _ in range(4)]
    for gate in gates:
        threads.submit(gate)
    for gate in gates[:2]:
        gate.began.get(timeout=WAIT_S)
    assert len(alive()) == 2
    assert is_short(threads)
    gates[0].may_end.release()
    gates[2].began.get(timeout=WAIT_S)
    gates[1].may_end.release()
    gates[3].began.get(timeout=WAIT_S)
    assert not is_short(threads)
    for gate in gates[2:]:
        gate.may_end.release()


def test_a_thread_that_hangs_is_replaced(threads: RunThreads) -> None:
    hung, other, third = Gate(), Gate(), Gate()
    for gate in (hung, other):
        threads.submit(gate)
        gate.began.get(timeout=WAIT_S)
    threads.submit(third)
    assert third.began.empty()
    threads.replace()
    third.began.get(timeout=WAIT_S)
    threads.restore()
    for gate in (hung, other, third):
        gate.may_end.release()


def test_a_worker_runs_once_for_several_submissions(threads: RunThreads) -> None:
    busy = [Gate(), Gate()]
    for gate in busy:
        threads.submit(gate)
        gate.began.get(timeout=WAIT_S)
    later = Gate()
    threads.submit(later)
    threads.submit(later)
    later.may_end.release(2)
    for gate in busy:
        gate.may_end.release()
    later.began.get(timeout=WAIT_S)
    last = Gate()
    last.may_end.release()
    threads.submit(last)
    last.began.get(timeout=WAIT_S)
    assert later.began.empty()


def test_workers_run_at_their_times_on_few_threads() -> None:
    clock = FakeClock()
    threads = RunThreads(clock, 2)
    threads.join(2)
    order: queue.SimpleQueue[str] = queue.SimpleQueue()

    def first() -> None:
        order.put("first")
        for seconds, name in ((30, "c"), (20, "b"), (10, "a"), (20, "d")):
            threads.submit_at(workers[name], clock.now_s + seconds)
        # It runs now, and not again at its time.
        threads.submit(workers["d"])

    def put(name: str) -> Callable[[], None]:
        return lambda: order.put(name)

    workers = {name: put(name) for name in "abcd"}
    threads.submit(first)
    assert {order.get(timeout=WAIT_S) for _ in range(2)} == {"first", "d"}
    while clock.waits.get(timeout=WAIT_S) != clock.now_s + 10:
        pass
    clock.advance(10)
    assert order.get(timeout=WAIT_S) == "a"
    while clock.waits.get(timeout=WAIT_S) != clock.now_s + 10:
        pass
    clock.advance(20)
    assert {order.get(timeout=WAIT_S) for _ in range(2)} == {"b", "c"}
    threads.leave()
    assert order.empty()


class Models:
    """Many models on a few threads."""

    def __init__(self, count: int, most: int) -> None:
        self.clock = FakeClock()
        self.watchdog = Watchdog(self.clock, WatchdogOptions(100, 60))
        self.watchdog.start()
        self.servables = [FakeServable() for _ in range(count)]
        services = DeviceServices(
            self.clock, RecordingMetrics(), watchdog=self.watchdog, threads=RunThreads(self.clock, most)
        )
        self.batchers = [
            Batcher(
                BatchedVersion(ServableId("m", number), servable, {"serving_default": BatchingOptions(4, (1, 2, 4))}),
                BatchingParameters(),
                services,
            )
            for number, servable in enumerate(self.servables)
        ]

    def submit(self, number: int) -> Task:
        task = double_task(number)
        self.batchers[number].submit(task)
        return task

    async def hold(self, number: int) -> Task:
        """Put a batch on the device and keep it there until the gate opens."""
        self.servables[number].gate.clear()
        task = self.submit(number)
        await asyncio.to_thread(self.servables[number].entered.acquire)
        return task

    def stop(self) -> None:
        for servable in self.servables:
            servable.gate.set()
        for batcher in self.batchers:
            batcher.stop()
        self.watchdog.stop()


@pytest.fixture
async def models() -> AsyncIterator[Models]:
    models = Models(100, most=2)
    yield models
    models.stop()
    assert alive() == set()


async def first_of(task: Task) -> float:
    outcome = await asyncio.wait_for(task.future, WAIT_S)
    assert not isinstance(outcome, ServingError), outcome
    return float(outcome["y"][0, 0])


async def test_the_number_of_threads_does_not_depend_on_the_number_of_models(models: Models) -> None:
    assert len(alive()) == 1
    for _ in range(2):
        tasks = [models.submit(number) for number in range(100)]
        assert [await first_of(task) for task in tasks] == [2.0 * number for number in range(100)]
    assert len(alive()) <= 2


async def test_a_model_that_hangs_does_not_keep_the_thread_of_another(models: Models) -> None:
    hung = [await models.hold(number) for number in range(2)]
    waiting = models.submit(2)
    models.clock.advance(100)
    assert [type(await task.future) for task in hung] == [DeadlineExceeded] * 2
    assert await first_of(waiting) == 4


async def test_a_busy_model_hands_its_thread_to_those_that_wait(models: Models) -> None:
    held = [await models.hold(number) for number in range(2)]
    # The second batch of a model runs after the first one of another that came earlier.
    order: list[int] = []
    for number in (0, 2):
        models.servables[number].on_batch = lambda number=number: order.append(number)  # type: ignore[misc]
    others = [models.submit(2), models.submit(0)]
    # The event loop wakes workers after the requests that it is about to submit.
    await asyncio.sleep(0)
    models.servables[0].gate.set()
    for task in (held[0], *others):
        await first_of(task)
    assert order == [2, 0]
    models.servables[1].gate.set()
    await first_of(held[1])
