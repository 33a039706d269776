from collections.abc import Callable, Iterator

import numpy as np
import pytest

from tests.support.virtual_time import ROW_TO_ROW, SILENT_METRICS, SimulatedDevice, VirtualClock, VirtualLoop
from tpuserve_server.core.batching.batcher import Batcher
from tpuserve_server.core.batching.parameters import BatchingOptions, BatchingParameters
from tpuserve_server.core.batching.services import BatchedVersion, DeviceServices
from tpuserve_server.core.batching.task import Task
from tpuserve_server.core.terms.deadline import Deadline
from tpuserve_server.core.terms.types import ServableId


class Bench:
    """The real batcher on a device that takes 10 s plus 1 s per row."""

    def __init__(self, timeout_s: float = 0) -> None:
        self.clock = VirtualClock()
        self.loop = VirtualLoop(self.clock)
        self.runs: list[tuple[float, int]] = []
        self.answers: list[tuple[int, float]] = []
        self.batcher = Batcher(
            BatchedVersion(
                ServableId("m", 1),
                SimulatedDevice(self.clock, self._cost_s),
                {ROW_TO_ROW.name: BatchingOptions(4, timeout_s=timeout_s)},
            ),
            BatchingParameters(max_enqueued_batches=100),
            DeviceServices(self.clock, SILENT_METRICS),
        )

    def _cost_s(self, rows: int) -> float:
        self.runs.append((self.clock.monotonic_s(), rows))
        return 10.0 + rows

    def arrive(self, number: int) -> Task:
        inputs = {"x": np.full((1, 1), number, np.float32)}
        future = self.loop.create_future()
        future.add_done_callback(lambda done: self.answers.append((int(done.result()["y"][0, 0]), self.loop.time())))
        task = Task(ROW_TO_ROW.name, ("y",), inputs, 1, Deadline.never(), future, shareable=True)
        self.batcher.submit(task)
        return task


@pytest.fixture
def make_bench() -> Iterator[Callable[..., Bench]]:
    made: list[Bench] = []

    def make(timeout_s: float = 0) -> Bench:
        made.append(Bench(timeout_s))
        return made[-1]

    yield make
    for bench in made:
        bench.batcher.stop()


def test_requests_that_come_while_the_device_computes_share_the_next_batch(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench()
    for number, at_s in enumerate([5, 6, 7, 40]):
        bench.clock.at(at_s, bench.arrive, number)
    bench.clock.run()
    assert bench.runs == [(5, 1), (16, 2), (40, 1)]
    assert bench.answers == [(0, 16), (1, 28), (2, 28), (3, 51)]


def test_requests_of_one_instant_share_a_batch(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench()
    for number in range(3):
        bench.clock.at(5, bench.arrive, number)
    bench.clock.run()
    assert bench.runs == [(5, 3)]


def test_a_batch_leaves_when_its_timeout_passes_or_it_is_full(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(timeout_s=3)
    for number, at_s in enumerate([5, 6, 100, 101, 101.5, 102]):
        bench.clock.at(at_s, bench.arrive, number)
    bench.clock.run()
    assert bench.runs == [(8, 2), (102, 4)]


def test_timers_fire_while_the_device_computes_unless_they_are_cancelled(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench()
    fired: list[float] = []
    bench.clock.at(0, bench.arrive, 0)
    bench.loop.call_later(3, lambda: fired.append(bench.loop.time()))
    bench.loop.call_at(4, lambda: fired.append(bench.loop.time())).cancel()
    bench.loop.call_later(50, lambda: fired.append(bench.loop.time()))
    bench.clock.run()
    assert fired == [3, 50]


def test_a_request_can_be_discarded_while_it_waits(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench()
    bench.clock.at(0, bench.arrive, 0)
    bench.clock.at(1, lambda: bench.clock.at(2, bench.batcher.discard, bench.arrive(1), "cancelled"))
    bench.clock.run()
    assert bench.runs == [(0, 1)]


def test_an_error_in_what_happens_is_told_by_run(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench()
    bench.clock.at(1, lambda: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        bench.clock.run()


def test_time_goes_on_in_a_second_run(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench()
    for start_s in (5, 30):
        bench.clock.at(start_s, bench.arrive, start_s)
        bench.clock.run()
    assert bench.answers == [(5, 16), (30, 41)]
