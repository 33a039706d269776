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
from tpuserve_server.core.batching.cost_model import CostModel
from tpuserve_server.core.batching.device_share import DeviceShare
from tpuserve_server.core.batching.loop_runner import (
    LEAST_PAUSE,
    MOST_REQUESTS,
    MOST_RUN_S,
    MOST_TURNS,
    QUIET_BATCHES,
    SLOW_RUN_S,
)
from tpuserve_server.core.batching.parameters import BatchingOptions, BatchingParameters
from tpuserve_server.core.batching.services import BatchedVersion, DeviceServices
from tpuserve_server.core.batching.task import Outcome, Task
from tpuserve_server.core.batching.watchdog import Watchdog
from tpuserve_server.core.terms.deadline import SystemClock, WaitingClock
from tpuserve_server.core.terms.errors import InvalidArgument, Unavailable
from tpuserve_server.core.terms.options import WatchdogOptions
from tpuserve_server.core.terms.types import ServableId, Signature

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
    watchdog: Watchdog | None = None,
    servable_id: ServableId = A,
) -> Iterator[Batcher]:
    costs = CostModel()
    # One slow run then changes the mean little.
    for rows in 500 * BUCKETS if cost_s else ():
        costs.learn(DOUBLE.name, rows, cost_s)
    batcher = Batcher(
        BatchedVersion(
            servable_id, servable, {DOUBLE.name: BatchingOptions(BUCKETS[-1], BUCKETS, timeout_s=timeout_s)}, costs
        ),
        BatchingParameters(num_batch_threads=threads),
        DeviceServices(clock, RecordingMetrics(), device=device, watchdog=watchdog),
    )
    if isinstance(clock, FakeClock):
        for _ in range(threads):  # until all are idle
            assert clock.waits.get(timeout=60) == math.inf
    try:
        yield batcher
    finally:
        batcher.stop()


def request(*values: float, outputs: tuple[str, ...] = ("y", "x")) -> Task:
    task = double_task(*values)
    task.output_names = outputs
    return task


async def answers(batcher: Batcher, *tasks: Task) -> list[Outcome]:
    """Submit the tasks together, and wait for their outcomes."""
    for task in tasks:
        batcher.submit(task)
    return [await asyncio.wait_for(task.future, 60) for task in tasks]


async def until_idle(clock: FakeClock) -> None:
    """Wait until the device thread waits for a batch again, after it was woken once."""
    await asyncio.to_thread(clock.waits.get, timeout=60)


async def ran_on(batcher: Batcher, servable: Observed, clock: FakeClock, *tasks: Task) -> str:
    """Run the tasks together, and return where, once the device thread is idle."""
    await answers(batcher, *(tasks or (request(1.0),)))
    if servable.ran_on[-1] == THREAD:
        await until_idle(clock)
    return servable.ran_on[-1]


async def test_short_runs_of_few_requests_run_on_the_loop_after_the_first_of_each_bucket() -> None:
    servable, clock = Observed(), FakeClock()
    with batching(servable, clock) as batcher:
        for rows in (1, 2, 4):
            assert await ran_on(batcher, servable, clock, *map(request, range(rows))) == THREAD
        for count in range(1, MOST_REQUESTS + 1):
            found = await answers(batcher, *(request(float(number)) for number in range(count)))
            for number, outputs in enumerate(found):
                assert isinstance(outputs, dict)
                assert outputs["y"].tolist() == [[2.0 * number, 2.0 * number]]
            assert servable.ran_on[-1] == LOOP
        # The executor prepares other outputs in their first run.
        for expected in (THREAD, LOOP):
            assert await ran_on(batcher, servable, clock, request(1.0, outputs=("y",))) == expected


@pytest.mark.parametrize(
    ("cost_s", "threads", "signature", "count"),
    [
        pytest.param(0.0, 1, DOUBLE, 1, id="unknown cost"),
        pytest.param(2 * MOST_RUN_S, 1, DOUBLE, 1, id="long run"),
        pytest.param(MOST_RUN_S / 2, 2, DOUBLE, 1, id="two device threads"),
        pytest.param(MOST_RUN_S / 2, 1, DOUBLE_WIDE, 1, id="rows of any size"),
        pytest.param(MOST_RUN_S / 2, 1, DOUBLE, MOST_REQUESTS + 1, id="many requests"),
    ],
)
async def test_other_batches_run_on_the_device_thread(
    cost_s: float, threads: int, signature: Signature, count: int
) -> None:
    servable, clock = Observed({signature.name: signature}), FakeClock()
    with batching(servable, clock, cost_s=cost_s, threads=threads) as batcher:
        for _ in range(3):
            assert await ran_on(batcher, servable, clock, *map(request, range(count))) == THREAD


async def test_batch_leaves_after_the_turn_of_the_loop_that_adds_no_request() -> None:
    servable, clock = Observed(), FakeClock()
    with batching(servable, clock) as batcher:
        tasks = [request(1.0) for _ in range(5)]
        batcher.submit(tasks[0])
        for task in tasks[1:]:
            batcher.submit(task)
            await asyncio.sleep(0)
        await asyncio.wait([task.future for task in tasks])
        # Two together and three in later turns of the loop: one batch.
        assert [len(batch["x"]) for batch in servable.batches] == [8]


async def test_batch_that_grows_in_every_turn_leaves_after_a_few() -> None:
    servable, clock, begun = Observed(), FakeClock(), threading.Event()
    servable.on_batch = begun.set
    with batching(servable, clock) as batcher:
        tasks = [request(1.0) for _ in range(2 + MOST_TURNS)]
        assert len(tasks) < BUCKETS[-1]
        batcher.submit(tasks[0])
        for task in tasks[1:]:
            batcher.submit(task)
            await asyncio.sleep(0)
        # No later turn of the loop can wake the device thread.
        assert begun.wait(60)
        await asyncio.wait([task.future for task in tasks])


async def test_single_request_leaves_in_the_next_turn_of_the_loop() -> None:
    servable, clock = Observed(), FakeClock()
    with batching(servable, clock) as batcher:
        await ran_on(batcher, servable, clock)
        task, later = request(1.0), request(1.0)
        batcher.submit(task)
        await asyncio.sleep(0)
        assert task.future.done()
        batcher.submit(later)
        await asyncio.wait([later.future])
        assert [len(batch["x"]) for batch in servable.batches] == [1, 1, 1]


async def test_after_a_large_batch_the_device_thread_runs_small_ones_for_a_while() -> None:
    servable, clock = Observed(), FakeClock()
    with batching(servable, clock) as batcher:
        for expected in (THREAD, LOOP):
            assert await ran_on(batcher, servable, clock) == expected
        assert await ran_on(batcher, servable, clock, *map(request, range(MOST_REQUESTS + 1))) == THREAD
        found = [await ran_on(batcher, servable, clock) for _ in range(QUIET_BATCHES + 2)]
        assert found == [THREAD] * QUIET_BATCHES + [LOOP] * 2


async def test_a_version_that_may_block_never_runs_on_the_loop() -> None:
    servable, clock = Observed(), FakeClock()
    servable.never_blocks = False
    with batching(servable, clock) as batcher:
        for _ in range(3):
            assert await ran_on(batcher, servable, clock) == THREAD


async def test_a_run_that_failed_prepares_nothing() -> None:
    servable, clock = Observed(), FakeClock()
    with batching(servable, clock) as batcher:
        assert await ran_on(batcher, servable, clock, request(-1.0)) == THREAD
        assert await ran_on(batcher, servable, clock) == THREAD
        assert await ran_on(batcher, servable, clock) == LOOP


async def test_a_slow_run_goes_back_to_the_device_thread_at_once_and_each_further_one_for_longer() -> None:
    servable, clock = Observed(), FakeClock()
    took_s = 0.0

    def take_long(_inputs: object) -> None:
        if servable.ran_on[-1] == LOOP and took_s:
            clock.advance(took_s)

    servable.on_inputs = take_long
    with batching(servable, clock) as batcher:
        assert await ran_on(batcher, servable, clock) == THREAD

        async def expect_pause(pause_s: float) -> None:
            assert await ran_on(batcher, servable, clock) == LOOP
            # The time that passed has woken the thread.
            await until_idle(clock)
            for part in (0.0, 0.9):
                clock.advance(part * pause_s)
                await until_idle(clock)
                assert await ran_on(batcher, servable, clock) == THREAD
            clock.advance(0.2 * pause_s)
            await until_idle(clock)

        for number in range(6):
            took_s = 2 * SLOW_RUN_S
            await expect_pause(2**number * LEAST_PAUSE * took_s)
        # 1.01 ** 450 > 2 ** 6
        took_s = 0.0
        for _ in range(450):
            assert await ran_on(batcher, servable, clock) == LOOP
        took_s = 2 * SLOW_RUN_S
        await expect_pause(LEAST_PAUSE * took_s)


async def test_the_loop_runs_one_batch_before_it_looks_at_its_sockets_again() -> None:
    """Runs of several models would otherwise follow each other, and other requests would wait for all of them."""
    device = DeviceShare(2)
    servables, clocks = (Observed(), Observed()), (FakeClock(), FakeClock())
    with (
        batching(servables[0], clocks[0], device=device) as first,
        batching(servables[1], clocks[1], device=device, servable_id=B) as second,
    ):
        for expected in (THREAD, LOOP):
            for batcher, servable, clock in zip((first, second), servables, clocks, strict=True):
                assert await ran_on(batcher, servable, clock) == expected
                await asyncio.sleep(0)
        tasks = request(1.0), request(2.0)
        first.submit(tasks[0])
        second.submit(tasks[1])
        for task in tasks:
            await asyncio.wait_for(task.future, 60)
        assert [servable.ran_on[-1] for servable in servables] == [LOOP, THREAD]


async def test_the_watchdog_finds_a_run_that_hangs_on_the_loop() -> None:
    servable, clock, limit_s = Observed(), FakeClock(), 30.0
    watchdog, changed = Watchdog(clock, WatchdogOptions(run_timeout_s=limit_s)), threading.Event()
    reasons: list[str] = []

    def hang(_inputs: object) -> None:
        if servable.ran_on[-1] == LOOP:
            clock.advance(limit_s)
            assert changed.wait(60)
            reasons.append(watchdog.why_not_live())

    servable.on_inputs = hang
    with batching(servable, clock, watchdog=watchdog) as batcher:
        assert await ran_on(batcher, servable, clock) == THREAD
        watchdog.subscribe(changed.set)
        watchdog.start()
        try:
            [late] = await answers(batcher, request(1.0))
            assert servable.ran_on[-1] == LOOP
            [outputs] = await answers(batcher, request(2.0))
        finally:
            watchdog.stop()
    assert isinstance(late, dict), "the run had ended before the loop could pass on the watchdog's error"
    assert isinstance(outputs, dict)
    assert servable.ran_on[-1] == THREAD
    assert str(A) in reasons[0]
    assert not watchdog.why_not_live()


async def test_a_bad_request_fails_alone() -> None:
    servable, clock = Observed(), FakeClock()
    with batching(servable, clock) as batcher:
        assert await ran_on(batcher, servable, clock, request(1.0), request(2.0)) == THREAD
        bad, good = await answers(batcher, request(-1.0), request(3.0))
    assert isinstance(bad, InvalidArgument)
    assert isinstance(good, dict)
    assert good["y"].tolist() == [[6.0, 6.0]]
    assert set(servable.ran_on[1:]) == {LOOP}


async def test_a_batch_whose_requests_were_all_cancelled_is_not_run() -> None:
    servable, clock = Observed(), FakeClock()
    with batching(servable, clock) as batcher:
        assert await ran_on(batcher, servable, clock) == THREAD
        task = request(2.0)
        batcher.submit(task)
        task.future.cancel()
        # Behind the callback that runs the batch.
        await asyncio.sleep(0)
        await answers(batcher, request(3.0))
    assert [batch["x"].tolist() for batch in servable.batches] == [[[1.0, 1.0]], [[3.0, 3.0]]]
    assert servable.ran_on == [THREAD, LOOP]


async def test_a_batch_that_waits_for_rows_leaves_by_the_device_thread() -> None:
    servable, clock = Observed(), FakeClock()
    with batching(servable, clock, timeout_s=0.5) as batcher:
        for _ in range(2):
            task = request(1.0)
            batcher.submit(task)
            assert await asyncio.to_thread(clock.waits.get, timeout=60) == clock.now_s + 0.5
            clock.advance(0.5)
            await asyncio.wait_for(task.future, 60)
            assert await asyncio.to_thread(clock.waits.get, timeout=60) == math.inf
    assert servable.ran_on == [THREAD, THREAD]


async def test_the_loop_does_not_take_the_turn_of_another_model() -> None:
    device = DeviceShare(1)
    device.join(B, 1.0)
    other = device.turn(B)
    servable, clock = Observed(), FakeClock()
    with batching(servable, clock, device=device) as batcher:
        for expected in (THREAD, LOOP):
            assert await ran_on(batcher, servable, clock) == expected
        assert other.take()
        task = request(1.0)
        batcher.submit(task)
        await asyncio.sleep(0)
        # The device thread waits for the turn, and later for another batch.
        await until_idle(clock)
        assert servable.ran_on == [THREAD, LOOP]
        await asyncio.to_thread(other.give_back)
        await asyncio.wait_for(task.future, 60)
        await until_idle(clock)
        assert servable.ran_on == [THREAD, LOOP, THREAD]
        assert await ran_on(batcher, servable, clock) == LOOP
        # The loop has given the slot back.
        assert other.take()
        other.give_back()


async def test_a_stop_waits_for_the_run_on_the_loop() -> None:
    servable, clock = Observed(), FakeClock()
    stopping: list[threading.Thread] = []

    def stop_meanwhile() -> None:
        servable.record()
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

    def stop() -> None:
        batcher.stop()
        servable.closed = True

    with batching(servable, clock) as batcher:
        assert await ran_on(batcher, servable, clock) == THREAD
        later = request(9.0)
        servable.on_batch = stop_meanwhile
        [outputs] = await answers(batcher, request(1.0))
        assert isinstance(outputs, dict)
        await asyncio.to_thread(stopping[0].join, 60)
    assert servable.ran_on == [THREAD, LOOP]
    assert servable.closed


async def test_the_device_thread_leaves_the_batch_to_the_loop_that_runs_it() -> None:
    """A second loop wakes the device thread during a run on the first one."""
    servable, clock = Observed(), FakeClock()
    submitted, begun = threading.Event(), threading.Event()

    async def submit(batcher: Batcher) -> Outcome:
        task = request(2.0)
        batcher.submit(task)
        # This loop is about to wake the device thread.
        submitted.set()
        assert begun.wait(60)
        return await asyncio.wait_for(task.future, 60)

    def record_and_wait() -> None:
        servable.record()
        begun.set()
        # The device thread has looked for a batch and waits again.
        clock.waits.get(timeout=60)

    with batching(servable, clock) as batcher, ThreadPoolExecutor(1) as thread:
        assert await ran_on(batcher, servable, clock, request(1.0), request(1.0)) == THREAD
        other = thread.submit(asyncio.run, submit(batcher))
        assert await asyncio.to_thread(submitted.wait, 60)
        servable.on_batch = record_and_wait
        (outputs,) = await answers(batcher, request(3.0))
        servable.on_batch = servable.record
        assert isinstance(outputs, dict)
        assert outputs["y"].tolist() == [[6.0, 6.0]]
        assert servable.ran_on == [THREAD, LOOP]
        other_outputs = await asyncio.wrap_future(other)
        assert isinstance(other_outputs, dict)
        assert other_outputs["y"].tolist() == [[4.0, 4.0]]


# The first letters of the names of two kinds of threads.
CLIENT, DEVICE = "client", "device-"


class Exclusive(Observed):
    """A servable that fails if two runs overlap."""

    def record(self) -> None:
        assert self.running.acquire(blocking=False), "two runs at once"
        self.threads.add(threading.current_thread().name)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.threads = set[str]()
        self.running = threading.Lock()
        self.on_inputs = lambda inputs: self.running.release()

    def began_on(self, prefix: str) -> bool:
        """Return whether a thread whose name begins with `prefix` began a run."""
        return any(name.startswith(prefix) for name in tuple(self.threads))


@pytest.mark.parametrize("seed", range(4))
def test_requests_of_several_loops_all_get_their_own_answers(seed: int) -> None:
    """Loops, the device thread, cancellations and a slow run now and then compete for one runner."""
    servable = Exclusive()
    clock = SystemClock()

    async def send(client: int) -> int:
        chance = random.Random(10 * seed + client)
        answered = rounds = 0
        # On a slow machine, batches may stay on the device thread for long.
        while (rounds := rounds + 1) <= 60 or not (servable.began_on(CLIENT) and servable.began_on(DEVICE)):
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
        return asyncio.run(asyncio.wait_for(send(client), 60))

    with batching(servable, clock) as batcher, ThreadPoolExecutor(3, CLIENT) as clients:
        assert min(clients.map(run, range(3))) > 0
    assert not servable.running.locked()
