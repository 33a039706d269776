"""Tests of the real batcher on virtual time: it refuses late requests, and only them, with several runs in flight."""

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import pytest

from tests.support.virtual_time import (
    ROW_TO_ROW,
    SILENT_METRICS,
    SimulatedDevice,
    VirtualClock,
    VirtualLoop,
    VirtualThreads,
)
from tpuserve_server.core.batching.batcher import Batcher
from tpuserve_server.core.batching.cost_model import CostModel
from tpuserve_server.core.batching.parameters import BatchingOptions, BatchingParameters, LatencyObjective
from tpuserve_server.core.batching.services import BatchedVersion, DeviceServices
from tpuserve_server.core.batching.task import Outcome, Task
from tpuserve_server.core.terms.deadline import Deadline
from tpuserve_server.core.terms.errors import ServingError, TooLate
from tpuserve_server.core.terms.types import ServableId

ROWS = 3
RUN_S = 0.010
TIMEOUT_S = 0.100
# Part of the requests that a test may judge wrongly.
FEW = 0.001

in_flight = pytest.mark.parametrize("in_flight", [1, 2, 4])


@dataclass
class Site:
    """A batcher of runs of at most `ROWS` requests. Numbers of requests have their ends and refusals."""

    in_flight: int
    run_s: Callable[[], float]
    objective_s: float = 0.0
    ends_s: dict[int, float] = field(default_factory=dict)
    refused: set[int] = field(default_factory=set)
    late: int = 0

    def __post_init__(self) -> None:
        self.clock = VirtualClock()
        self.loop = VirtualLoop(self.clock)
        self.sent = 0
        costs = CostModel()
        for _ in range(100):
            costs.learn(ROW_TO_ROW.name, ROWS, self.run_s())
        objective = LatencyObjective(self.objective_s) if self.objective_s else None
        self.batcher = Batcher(
            BatchedVersion(
                ServableId("m", 1),
                SimulatedDevice(self.clock, lambda rows: self.run_s(), max_in_flight=self.in_flight),
                {ROW_TO_ROW.name: BatchingOptions(ROWS, (ROWS,), objective=objective)},
                costs,
            ),
            BatchingParameters(max_enqueued_batches=1000),
            DeviceServices(self.clock, SILENT_METRICS, threads=VirtualThreads(self.clock)),
        )

    def run(self) -> None:
        try:
            self.clock.run()
        finally:
            self.batcher.stop()

    def send(self, deadline: Deadline, ended: Callable[[], None] = lambda: None) -> int:
        """Send a request, and call `ended` after its response, or a while after its refusal."""
        number, self.sent = self.sent, self.sent + 1
        future = self.loop.create_future()
        future.add_done_callback(partial(self._end, number, deadline, ended))
        inputs = {"x": np.zeros((1, 1), np.float32)}
        task = Task(ROW_TO_ROW.name, ("y",), inputs, 1, deadline, future, shareable=True)
        try:
            self.batcher.submit(task)
        except TooLate:
            self.refused.add(number)
            self.clock.at(self.clock.monotonic_s() + RUN_S, ended)
        return number

    def _end(self, number: int, deadline: Deadline, ended: Callable[[], None], done: asyncio.Future[Outcome]) -> None:
        if isinstance(done.result(), ServingError):
            self.refused.add(number)
        else:
            self.ends_s[number] = end_s = self.clock.monotonic_s()
            self.late += end_s > deadline.at_s + 1e-9
        ended()


def varying(seed: int) -> Callable[[], float]:
    """Return durations of 10 ms on average, which vary by 3 ms to both sides."""
    generator = random.Random(seed)
    return lambda: RUN_S + generator.uniform(-0.003, 0.003)


@in_flight
@pytest.mark.parametrize("objective_s", [0.0, TIMEOUT_S], ids=["deadline", "objective"])
@pytest.mark.parametrize("seed", range(3))
def test_callers_that_are_always_in_time_are_never_refused(seed: int, objective_s: float, in_flight: int) -> None:
    site = Site(in_flight, varying(seed), objective_s)
    worst_s = 0.0

    def call() -> None:
        nonlocal worst_s
        now_s = site.clock.monotonic_s()
        if now_s > 30.0:
            return
        deadline = Deadline.never() if objective_s else Deadline(now_s + TIMEOUT_S)

        def ended() -> None:
            nonlocal worst_s
            worst_s = max(worst_s, site.clock.monotonic_s() - now_s)
            call()

        site.send(deadline, ended)

    for _ in range(20):
        site.clock.at(0.0, call)
    site.run()
    assert site.sent > 7000
    assert worst_s < 0.9 * TIMEOUT_S
    assert (len(site.refused), site.late) == (0, 0)


def poisson(generator: random.Random, seconds: float) -> list[float]:
    """Return arrivals at twice the rate of the device."""
    arrivals_s, at_s = [], 0.0
    while at_s < seconds:
        at_s += generator.expovariate(2 * ROWS / RUN_S)
        arrivals_s.append(at_s)
    return arrivals_s


def play(
    in_flight: int, arrivals_s: list[float], run_s: Callable[[], float] = lambda: RUN_S, insisting: int | None = None
) -> Site:
    """Send requests with a deadline, and request number `insisting` without one."""
    site = Site(in_flight, run_s)
    for number, at_s in enumerate(arrivals_s):
        deadline = Deadline.never() if number == insisting else Deadline(at_s + TIMEOUT_S)
        site.clock.at(at_s, site.send, deadline)
    site.run()
    return site


@in_flight
def test_under_twice_the_load_only_late_requests_are_refused(in_flight: int) -> None:
    generator = random.Random(in_flight)
    arrivals_s = poisson(generator, 3.0)
    site = play(in_flight, arrivals_s)
    assert len(site.refused) > 0.4 * len(arrivals_s)
    assert site.late <= FEW * len(site.ends_s)
    # A refused request that had insisted would have been late.
    for number in generator.sample(sorted(site.refused), 40):
        end_s = play(in_flight, arrivals_s, insisting=number).ends_s[number]
        assert end_s > arrivals_s[number] + TIMEOUT_S


@in_flight
def test_runs_of_unequal_length_make_few_requests_late(in_flight: int) -> None:
    # The queue always ends at the deadline, and the runs after an admission then decide.
    site = play(in_flight, poisson(random.Random(in_flight), 20.0), varying(1))
    assert len(site.refused) > 5000
    assert 0 < site.late < 0.015 * len(site.ends_s)
