"""One simulated run: open arrivals, the real batcher, a device of cost t0 + a * rows, and the results."""

import bisect
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import numpy as np

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
from tpuserve_server.core.batching.objective import Sizes, capacity
from tpuserve_server.core.batching.parameters import BatchingOptions, BatchingParameters
from tpuserve_server.core.batching.services import BatchedVersion, DeviceServices
from tpuserve_server.core.batching.task import Task
from tpuserve_server.core.terms.deadline import Deadline
from tpuserve_server.core.terms.errors import TooLate, Unavailable
from tpuserve_server.core.terms.types import ServableId

# Same number as at a version's warm-up.
_WARMUP_RUNS = 5
# Tolerance for the rounding of latencies, which are differences of times.
_ROUNDING_S = 1e-9

Arrivals: TypeAlias = Callable[[float, int, int], list[float]]


@dataclass(frozen=True, slots=True)
class Device:
    """A device that runs `b` rows in `t0_s + per_row_s * b` seconds, times a log-normal factor of spread `jitter`.

    It accepts up to `max_in_flight` batches. Above 1, the device never waits between batches.
    """

    name: str
    t0_s: float
    per_row_s: float
    max_rows: int
    latency_s: float
    jitter: float = 0.0
    max_in_flight: int = 1

    @property
    def sizes(self) -> tuple[int, ...]:
        """The allowed sizes: powers of two, and the largest."""
        powers = (1 << power for power in range(self.max_rows.bit_length()))
        return (*(size for size in powers if size < self.max_rows), self.max_rows)

    def cost_s(self, rows: int) -> float:
        """Return the mean cost of a batch in seconds."""
        return self.t0_s + self.per_row_s * rows

    @property
    def capacity(self) -> float:
        """Highest rate, in rows per second, at which evenly spaced requests can all be answered in time.

        It is the rate of back-to-back batches of the best allowed size, of which two fit the objective.
        """
        means_s = tuple(self.cost_s(size) for size in self.sizes)
        return capacity(Sizes(self.sizes, means_s, (0.0,) * len(means_s)), self.latency_s)


@dataclass(frozen=True, slots=True)
class Setting:
    """The batching settings of a model."""

    name: str
    options: BatchingOptions
    max_enqueued_batches: int = 1 << 30


@dataclass(frozen=True, slots=True)
class Result:
    """Outcome of a run: requests by outcome, simulated seconds and real seconds.

    `goodput` is the number of responses within the objective per second, until the last request arrives.
    """

    offered: int
    refused: int
    in_time: int
    goodput: float
    p99_s: float
    simulated_s: float
    wall_s: float

    @property
    def late_share(self) -> float:
        """Share of late responses among all responses."""
        completed = self.offered - self.refused
        return 1 - self.in_time / completed if completed else 0.0


def poisson(rate: float, count: int, seed: int) -> list[float]:
    """Return arrival times of `count` independent requests."""
    times: list[float] = np.cumsum(np.random.default_rng(seed).exponential(1 / rate, count)).tolist()
    return times


def bursts(latency_s: float, ratio: float = 4.0, share: float = 0.2) -> Arrivals:
    """Return a Poisson process whose rate is `ratio` times higher during `share` of the time (MMPP with two states).

    Bursts last five objectives on average, which is too long for requests to wait.
    """

    def times(rate: float, count: int, seed: int) -> list[float]:
        rng = np.random.default_rng(seed)
        calm = rate / (1 - share + share * ratio)
        found: list[float] = []
        start_s, in_burst = 0.0, False
        while len(found) < count:
            mean_s = 5 * latency_s * (1.0 if in_burst else (1 - share) / share)
            length_s = rng.exponential(mean_s)
            number = rng.poisson(length_s * calm * (ratio if in_burst else 1.0))
            found += np.sort(rng.uniform(start_s, start_s + length_s, number)).tolist()
            start_s, in_burst = start_s + length_s, not in_burst
        return found[:count]

    return times


class _Clients:
    """All clients, with one row per request, and their results."""

    def __init__(self, clock: VirtualClock, batcher: Batcher, times: Sequence[float], latency_s: float) -> None:
        self._clock = clock
        self._loop = VirtualLoop(clock)
        self._batcher = batcher
        self._times = iter(times)
        self._inputs = {"x": np.zeros((1, 1), np.float32)}
        self.latencies_s: list[float] = []
        self.refused = 0
        self.good = 0
        self._end_s = times[-1]
        self._latency_s = latency_s + _ROUNDING_S
        self._schedule_next()

    def _schedule_next(self) -> None:
        at_s = next(self._times, None)
        if at_s is not None:
            self._clock.at(at_s, self._send, at_s)

    def _send(self, at_s: float) -> None:
        future = self._loop.create_future()
        future.add_done_callback(partial(self._complete, at_s))
        task = Task(ROW_TO_ROW.name, ("y",), self._inputs, 1, Deadline.never(), future, shareable=True)
        try:
            self._batcher.submit(task)
        except (TooLate, Unavailable):
            self.refused += 1
        self._schedule_next()

    def _complete(self, at_s: float, _: object) -> None:
        now_s = self._clock.monotonic_s()
        self.latencies_s.append(now_s - at_s)
        if now_s <= self._end_s and now_s - at_s <= self._latency_s:
            self.good += 1


def simulate(device: Device, setting: Setting, times: Sequence[float], seed: int = 1) -> Result:
    """Simulate one-row requests at `times`, in seconds. Blocks. The same arguments give the same result."""
    clock = VirtualClock()
    cost_s = _jittered(device, seed)
    batcher = Batcher(
        BatchedVersion(
            ServableId(device.name, 1),
            SimulatedDevice(clock, cost_s, max_in_flight=device.max_in_flight),
            {ROW_TO_ROW.name: setting.options},
            warmed(setting.options.buckets, cost_s),
        ),
        BatchingParameters(max_enqueued_batches=setting.max_enqueued_batches),
        DeviceServices(clock, SILENT_METRICS, threads=VirtualThreads(clock)),
    )
    clients = _Clients(clock, batcher, times, device.latency_s)
    began_s = time.perf_counter()
    try:
        clock.run()
    finally:
        batcher.stop()
    return _result(clients, times, device.latency_s, time.perf_counter() - began_s)


def _jittered(device: Device, seed: int) -> Callable[[int], float]:
    if not device.jitter:
        return device.cost_s
    rng = random.Random(seed)
    return lambda rows: device.cost_s(rows) * rng.lognormvariate(0, device.jitter)


def warmed(buckets: Sequence[int], cost_s: Callable[[int], float]) -> CostModel:
    """Return the costs that a version's warm-up learns."""
    costs = CostModel()
    for rows in buckets:
        for _ in range(_WARMUP_RUNS):
            costs.learn(ROW_TO_ROW.name, rows, cost_s(rows))
    return costs


def _result(clients: _Clients, times: Sequence[float], latency_s: float, wall_s: float) -> Result:
    latencies_s = sorted(clients.latencies_s)
    in_time = bisect.bisect_right(latencies_s, latency_s + _ROUNDING_S)
    p99_s = latencies_s[-(-99 * len(latencies_s) // 100) - 1] if latencies_s else 0.0
    return Result(len(times), clients.refused, in_time, clients.good / times[-1], p99_s, times[-1], wall_s)
