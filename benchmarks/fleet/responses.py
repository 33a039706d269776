"""What one server does under a steady load: the real batcher and its policies on virtual time.

A fleet changes within seconds and a batcher within milliseconds, so the fleet uses these figures in each of its steps.
"""

import bisect
import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np

from benchmarks.batching.simulation import poisson, warmed
from tests.support.virtual_time import ROW_TO_ROW, SimulatedDevice, VirtualClock, VirtualLoop
from tpuserve_server.core.batching.batcher import Batcher
from tpuserve_server.core.batching.parameters import BatchingOptions, BatchingParameters, LatencyObjective
from tpuserve_server.core.batching.services import BatchedVersion, DeviceServices
from tpuserve_server.core.batching.task import Task
from tpuserve_server.core.models.metrics import Metrics
from tpuserve_server.core.terms.deadline import Deadline
from tpuserve_server.core.terms.errors import ServingError, TooLate, Unavailable
from tpuserve_server.core.terms.types import ServableId

# Requests a second that one server can answer, whatever the device.
CAPACITY: Final = 100.0
LATENCY_S: Final = 0.06
LOADS: Final = (0.0, 0.2, 0.4, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 3.0, 4.0, 8.0, 16.0)
_SECONDS: Final = 20.0


@dataclass(frozen=True, slots=True)
class Device:
    """A device that runs batches of up to `most_rows` rows in `t0_s + per_row_s * rows`."""

    t0_s: float
    per_row_s: float
    most_rows: int

    def cost_s(self, rows: int) -> float:
        """Return the duration of a batch."""
        return self.t0_s + self.per_row_s * rows


# A third of the objective, and nearly all of it: only requests that arrive just before a batch begins are in time.
_QUICK: Final = Device(0.008, 0.006, 2)
_SLOW: Final = Device(0.030, 0.004, 5)


@dataclass(frozen=True, slots=True)
class Policy:
    """How a server refuses requests: by an objective, by the deadlines of its clients, or when its queue is full."""

    name: str
    objective_s: float | None = None
    timeout_s: float | None = None
    queue_length: int = 1000
    device: Device = _QUICK


POLICIES: Final = (
    Policy("objective", objective_s=LATENCY_S),
    Policy("deadlines", timeout_s=0.25),
    Policy("short queue", queue_length=4),
)
# Batches of 50 ms under an objective of 60 ms. It refuses so early that queues stay short under any load.
TIGHT: Final = Policy("tight objective", objective_s=LATENCY_S, device=_SLOW)


@dataclass(frozen=True, slots=True)
class Response:
    """Figures of one server under one load, each a second: `answered` in time, and the sum of the queue waits.

    `busy` is the share of the time in which the device ran, and `demand` the rate of the batcher's own record.
    """

    answered: float
    admitted: float
    wait_s: float
    busy: float
    demand: float


class _Sums(Metrics):
    """Metrics that add the queue waits and the runs."""

    def __init__(self) -> None:
        self.wait_s = self.run_s = 0.0
        self.requests = 0

    def batch_finished(self, *, queue_waits_s: Sequence[float], run_s: float, **_: object) -> None:
        self.wait_s += sum(queue_waits_s)
        self.requests += len(queue_waits_s)
        self.run_s += run_s


class _Clients:
    """Requests of one row at given times."""

    def __init__(self, policy: Policy, clock: VirtualClock, batcher: Batcher, times: Sequence[float]) -> None:
        self._policy = policy
        self._clock = clock
        self._loop = VirtualLoop(clock)
        self._batcher = batcher
        self._inputs = {"x": np.zeros((1, 1), np.float32)}
        self._most_s = (policy.objective_s or policy.timeout_s or 1.0) + 1e-9
        self.answered = 0
        for at_s in times:
            clock.at(at_s, self._send, at_s)

    def _send(self, at_s: float) -> None:
        future = self._loop.create_future()
        future.add_done_callback(partial(self._end, at_s))
        timeout_s = self._policy.timeout_s
        deadline = Deadline.never() if timeout_s is None else Deadline(at_s + timeout_s)
        task = Task(ROW_TO_ROW.name, ("y",), self._inputs, 1, deadline, future, shareable=True)
        with contextlib.suppress(TooLate, Unavailable):
            self._batcher.submit(task)

    def _end(self, at_s: float, done: Any) -> None:  # noqa: ANN401 - a future of outcomes
        is_late = self._clock.monotonic_s() - at_s > self._most_s
        self.answered += not is_late and not isinstance(done.result(), ServingError)


def measure(policy: Policy, load: float, seconds: float = _SECONDS) -> Response:
    """Return the figures of a server that gets `load` times its capacity. Blocks for about 50 us a request."""
    if not load:
        return Response(0.0, 0.0, 0.0, 0.0, 0.0)
    clock, sums = VirtualClock(), _Sums()  # type: ignore[abstract]  # the protocol's own methods do nothing
    objective = None if policy.objective_s is None else LatencyObjective(policy.objective_s)
    device = policy.device
    sizes = tuple(range(1, device.most_rows + 1))
    options = BatchingOptions(device.most_rows, sizes, objective=objective)
    batcher = Batcher(
        BatchedVersion(
            ServableId("m", 1),
            SimulatedDevice(clock, device.cost_s),
            {ROW_TO_ROW.name: options},
            warmed(sizes, device.cost_s),
        ),
        BatchingParameters(max_enqueued_batches=policy.queue_length),
        DeviceServices(clock, sums),
    )
    rate = load * CAPACITY
    clients = _Clients(policy, clock, batcher, poisson(rate, round(rate * seconds), 1))
    try:
        clock.run()
    finally:
        batcher.stop()
    # The time that the requests take to arrive on average, so that chance does not change the load.
    took_s = round(rate * seconds) / rate
    demand = batcher.demand.totals().high_s
    return Response(
        clients.answered / took_s, sums.requests / took_s, sums.wait_s / took_s, sums.run_s / took_s, demand / took_s
    )


class ServerResponses:
    """The figures of a server of one policy, between the measured loads on a line."""

    def __init__(self, by_load: Mapping[float, Response]) -> None:
        """Interpolate between these loads, which begin at 0."""
        self._loads = sorted(by_load)
        self._responses = [by_load[load] for load in self._loads]

    @classmethod
    def of(cls, policy: Policy, loads: Sequence[float] = LOADS, seconds: float = _SECONDS) -> "ServerResponses":
        """Measure a policy at these loads."""
        return cls({load: measure(policy, load, seconds) for load in loads})

    def at(self, load: float) -> Response:
        """Return the figures at a load. Beyond the highest one, only the demand grows."""
        loads, found = self._loads, self._responses
        place = bisect.bisect_left(loads, load)
        if place == len(loads):
            last = found[-1]
            return Response(last.answered, last.admitted, last.wait_s, last.busy, last.demand * load / loads[-1])
        if loads[place] == load:
            return found[place]
        low, high = found[place - 1], found[place]
        part = (load - loads[place - 1]) / (loads[place] - loads[place - 1])

        def between(first: float, second: float) -> float:
            return first + part * (second - first)

        return Response(
            between(low.answered, high.answered),
            between(low.admitted, high.admitted),
            between(low.wait_s, high.wait_s),
            between(low.busy, high.busy),
            between(low.demand, high.demand),
        )
