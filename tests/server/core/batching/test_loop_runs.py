"""Tests for batches that an event loop runs instead of the device thread."""

import asyncio
import math
import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
import pytest

from tests.support.fake_device import DOUBLE, DOUBLE_WIDE, FakeClock, FakeServable, RecordingMetrics, double_task
from tpuserve_server.core.batching.batcher import Batcher
from tpuserve_server.core.batching.loop_runs import MOST_PAUSE_S, MOST_REQUESTS, MOST_RUN_S, PAUSE_S, SLOW_RUN_S
from tpuserve_server.core.batching.options import BatchingOptions
from tpuserve_server.core.batching.parameters import BatchingParameters
from tpuserve_server.core.batching.task import Outcome, Task
from tpuserve_server.core.cost_model import CostModel
from tpuserve_server.core.deadline import SystemClock, WaitingClock
from tpuserve_server.core.device_share import DeviceShare
from tpuserve_server.core.errors import InvalidArgument, Unavailable
from tpuserve_server.core.types import ServableId, Signature

A, B = ServableId("a", 1), ServableId("b", 1)
BUCKETS = (1, 2, 4, 8)
LOOP, THREAD = "loop", "device thread"


class Observed(FakeServable):
    """A servable that records on which threads its runs began."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.never_blocks = True
        self.loop_thread = threading.get_ident()
        self.ran_on: list[str] = []
        self.on_batch = self.record

    def record(self) -> None:
        self.ran_on.append(LOOP if threading.get_ident() == self.loop_thread else THREAD)


@contextmanager
def batching(
    servable: FakeServable,
    clock: WaitingClock,
    *,
    cost_s: float = MOST_RUN_S / 2,
    threads: int = 1,
    timeout_s: float = 0.0,
    device: DeviceShare | None = None,
) -> Iterator[Batcher]:
    costs = CostModel()
    # One slow run then changes the mean little.
    for rows in 500 * BUCKETS if cost_s else ():
        costs.learn(DOUBLE.name, rows, cost_s)
    batcher = Batcher(
        A,
        servable,
        {DOUBLE.name: BatchingOptions(BUCKETS[-1], BUCKETS, timeout_s=timeout_s)},
        parameters=BatchingParameters(num_batch_threads=threads),
        clock=clock,
        metrics=RecordingMetrics(),
        costs=costs,
        device=device,
    )
    if isinstance(clock, FakeClock):
        for _ in range(threads):  # until all are idle
            assert clock.waits.get(timeout=60) == math.inf
    try:
        yield batcher
    finally:
        batcher.stop()


def request(*values: float) -> Task:
    """Return a request for all outputs."""
    task = double_task(*values)
    task.output_names = ("y", "x")
    return task


async def answers(batcher: Batcher, *tasks: Task) -> list[Outcome]:
    """Submit the tasks together, and wait for their outcomes."""
    for task in tasks:
        batcher.submit(task)
    return [await asyncio.wait_for(task.future, 60) for task in tasks]


async def test_short_runs_of_few_requests_run_on_the_loop() -> None:
    servable = Observed()
    with batching(servable, FakeClock()) as batcher:
        for count in range(1, MOST_REQUESTS + 1):
            found = await answers(batcher, *(request(float(number)) for number in range(count)))
            for number, outputs in enumerate(found):
                assert isinstance(outputs, dict)
                assert outputs["y"].tolist() == [[2.0 * number, 2.0 * number]]
    assert set(servable.ran_on) == {LOOP}


@pytest.mark.parametrize(
    ("cost_s", "threads", "signature", "outputs", "count"),
    [
        pytest.param(0.0, 1, DOUBLE, ("y", "x"), 1, id="unknown cost"),
        pytest.param(2 * MOST_RUN_S, 1, DOUBLE, ("y", "x"), 1, id="long run"),
        pytest.param(MOST_RUN_S / 2, 2, DOUBLE, ("y", "x"), 1, id="two device threads"),
        pytest.param(MOST_RUN_S / 2, 1, DOUBLE_WIDE, ("y", "x"), 1, id="rows of any size"),
        pytest.param(MOST_RUN_S / 2, 1, DOUBLE, ("y",), 1, id="outputs that no run had"),
        pytest.param(MOST_RUN_S / 2, 1, DOUBLE, ("y", "x"), MOST_REQUESTS + 1, id="many requests"),
    ],
)
async def test_other_batches_run_on_the_device_thread(
    cost_s: float, threads: int, signature: Signature, outputs: tuple[str, ...], count: int
) -> None:
    servable = Observed({signature.name: signature})
    with batching(servable, FakeClock(), cost_s=cost_s, threads=threads) as batcher:
        tasks = [request(float(number)) for number in range(count)]
        for task in tasks:
            task.output_names = outputs
        await answers(batcher, *tasks)
    assert set(servable.ran_on) == {THREAD}


async def test_a_version_that_may_block_never_runs_on_the_loop() -> None:
    servable = Observed()
    servable.never_blocks = False
    with batching(servable, FakeClock()) as batcher:
        await answers(batcher, request(1.0))
    assert servable.ran_on == [THREAD]


async def test_slow_runs_go_back_to_the_device_thread_for_longer_and_longer() -> None:
    clock = FakeClock()
    servable = Observed()
    with batching(servable, clock) as batcher:

        async def ran_on() -> str:
            await answers(batcher, request(1.0))
            return servable.ran_on[-1]

        def take_long(_inputs: object) -> None:
            if servable.ran_on[-1] == LOOP:
                clock.advance(1.1 * SLOW_RUN_S)

        servable.on_inputs = take_long
        pause_s = PAUSE_S
        while pause_s <= MOST_PAUSE_S:
            # The device thread may still be on its way back to its wait.
            while await ran_on() == THREAD:
                pass
            assert [await ran_on() for _ in range(3)] == [THREAD] * 3
            clock.advance(0.9 * pause_s)
            assert [await ran_on() for _ in range(3)] == [THREAD] * 3
            clock.advance(0.2 * pause_s)
            pause_s *= 2


async def test_a_bad_request_fails_alone() -> None:
    servable = Observed()
    with batching(servable, FakeClock()) as batcher:
        bad, good = await answers(batcher, request(-1.0), request(3.0))
    assert isinstance(bad, InvalidArgument)
    assert isinstance(good, dict)
    assert good["y"].tolist() == [[6.0, 6.0]]
    assert set(servable.ran_on) == {LOOP}


async def test_a_batch_whose_requests_were_all_cancelled_is_not_run() -> None:
    servable = Observed()
    with batching(servable, FakeClock()) as batcher:
        task = request(1.0)
        batcher.submit(task)
        task.future.cancel()
        # Behind the callback that runs the batch.
        await asyncio.sleep(0)
        await answers(batcher, request(2.0))
    assert [batch["x"].tolist() for batch in servable.batches] == [[[2.0, 2.0]]]


async def test_a_batch_that_waits_for_rows_leaves_by_the_device_thread() -> None:
    clock = FakeClock()
    servable = Observed()
    with batching(servable, clock, timeout_s=0.5) as batcher:
        task = request(1.0)
        batcher.submit(task)
        assert await asyncio.to_thread(clock.waits.get, timeout=60) == clock.now_s + 0.5
        clock.advance(0.5)
        await asyncio.wait_for(task.future, 60)
    assert servable.ran_on == [THREAD]


async def test_the_loop_does_not_take_the_turn_of_another_model() -> None:
    device = DeviceShare(1)
    device.join(B, 1.0)
    other = device.turn(B)
    assert other.take()
    servable = Observed()
    with batching(servable, FakeClock(), device=device) as batcher:
        task = request(1.0)
        batcher.submit(task)
        await asyncio.sleep(0)
        assert not servable.ran_on
        await asyncio.to_thread(other.give_back)
        await asyncio.wait_for(task.future, 60)
        assert servable.ran_on == [THREAD]
        await answers(batcher, request(1.0))
        assert servable.ran_on == [THREAD, LOOP]
        # The loop has given the slot back.
        assert other.take()
        other.give_back()


async def test_a_stop_waits_for_the_run_on_the_loop() -> None:
    servable = Observed()
    stopping: list[threading.Thread] = []

    def stop_meanwhile() -> None:
        if not stopping:
            stopping.append(threading.Thread(target=stop))
            stopping[0].start()
            # The stop has begun, and cannot end before this run.
            while True:
                try:
                    batcher.submit(later)
                except Unavailable:
                    break
                batcher.discard(later, "cancelled")
            assert stopping[0].is_alive()
            servable.record()

    def stop() -> None:
        batcher.stop()
        servable.closed = True

    with batching(servable, FakeClock()) as batcher:
        later = request(9.0)
        servable.on_batch = stop_meanwhile
        [outputs] = await answers(batcher, request(1.0))
        assert isinstance(outputs, dict)
        await asyncio.to_thread(stopping[0].join, 60)
    assert servable.ran_on == [LOOP]
    assert servable.closed


class Exclusive(Observed):
    """A servable that fails if two runs overlap."""

    def record(self) -> None:
        assert self.running.acquire(blocking=False), "two runs at once"
        super().record()

    def __post_init__(self) -> None:
        super().__post_init__()
        self.running = threading.Lock()
        self.on_inputs = lambda inputs: self.running.release()


@pytest.mark.parametrize("seed", range(4))
def test_requests_of_several_loops_all_get_their_own_answers(seed: int) -> None:
    """Loops, the device thread, cancellations and a slow run now and then compete for one runner."""
    servable = Exclusive()
    clock = SystemClock()

    async def send(client: int) -> int:
        chance = random.Random(10 * seed + client)
        answered = 0
        for _ in range(60):
            tasks = [request(*[float(chance.randrange(1000))] * chance.choice([1, 1, 2])) for _ in range(7)]
            tasks = tasks[: chance.choice([1, 1, 1, 2, 3, 7])]
            for task in tasks:
                batcher.submit(task)
            if chance.random() < 0.2:
                await asyncio.sleep(0)
            waiting = [task for task in tasks if chance.random() < 0.8 or not batcher.discard(task, "cancelled")]
            for task in waiting:
                outputs = await asyncio.wait_for(task.future, 60)
                assert isinstance(outputs, dict)
                np.testing.assert_array_equal(outputs["y"], 2 * task.inputs["x"])
                answered += 1
        return answered

    def run(client: int) -> int:
        return asyncio.run(send(client))

    with batching(servable, clock) as batcher, ThreadPoolExecutor(3) as clients:
        assert min(clients.map(run, range(3))) > 0
    assert not servable.running.locked()
