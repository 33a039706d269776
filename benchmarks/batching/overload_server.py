"""The server's own batcher as a queue in the simulation of overload."""

import asyncio
from collections.abc import Callable
from contextvars import Context
from functools import partial
from typing import TypeVarTuple, Unpack

import numpy as np

from benchmarks.batching.overload import Attempt, Host
from benchmarks.batching.simulation import Device, warmed
from tests.support.virtual_time import ROW_TO_ROW, SILENT_METRICS, SimulatedDevice, VirtualClock, VirtualLoop
from tpuserve_server.core.batching.batcher import Batcher
from tpuserve_server.core.batching.parameters import BatchingOptions, BatchingParameters
from tpuserve_server.core.batching.services import BatchedVersion, DeviceServices
from tpuserve_server.core.batching.task import Outcome, Task
from tpuserve_server.core.terms.deadline import Deadline
from tpuserve_server.core.terms.errors import ServingError, TooLate, Unavailable
from tpuserve_server.core.terms.types import ServableId

# Hint of an error that has none: the client's backoff decides.
_NO_HINT_S = 0.0
_Arguments = TypeVarTuple("_Arguments")


class _HostLoop(VirtualLoop):
    """An event loop whose callbacks wait for the host."""

    def __init__(self, clock: VirtualClock, host: Host) -> None:
        super().__init__(clock)
        self._host = host

    def call_soon(
        self,
        callback: Callable[[Unpack[_Arguments]], object],
        *args: *_Arguments,
        context: Context | None = None,
    ) -> asyncio.Handle:
        """Call back when the host has done everything before."""
        self._host.call_soon(self._call, callback, args)
        return super().call_soon(_ignore)

    def _call(self, callback: Callable[[Unpack[_Arguments]], object], args: tuple[*_Arguments]) -> None:
        callback(*args)
        # The device thread looks at the queue after each callback of the clock.
        super().call_soon(_ignore)


def _ignore() -> None:
    pass


class ServerLine:
    """A `Line` with the real batcher, its default options and no latency objective."""

    def __init__(self, clock: VirtualClock, device: Device, host: Host, timeout_s: float) -> None:
        """Start the batcher. The caller stops it."""
        self._clock = clock
        self._host = host
        self._loop = _HostLoop(clock, host)
        self._inputs = {"x": np.zeros((1, 1), np.float32)}
        self.batcher = Batcher(
            BatchedVersion(
                ServableId(device.name, 1),
                SimulatedDevice(clock, device.cost_s, max_in_flight=device.max_in_flight),
                {ROW_TO_ROW.name: BatchingOptions(device.max_rows, device.sizes)},
                warmed(device.sizes, device.cost_s),
            ),
            BatchingParameters(max_enqueued_batches=1 << 30),
            DeviceServices(clock, SILENT_METRICS),
        )

    def refuses(self, attempt: Attempt) -> float | None:
        """Return the retry hint if the batcher refuses the attempt before it is decoded."""
        try:
            self.batcher.refusals.check(ROW_TO_ROW.name, Deadline(attempt.server_due_s))
        except TooLate as error:
            return error.retry_after_s
        return None

    def submit(self, attempt: Attempt) -> float | None:
        """Queue the attempt as a task, and discard it at its deadline like the service."""
        future = self._loop.create_future()
        task = Task(ROW_TO_ROW.name, ("y",), self._inputs, 1, Deadline(attempt.server_due_s), future, shareable=True)
        future.add_done_callback(partial(self._end, attempt))
        try:
            self.batcher.submit(task)
        except TooLate as error:
            return error.retry_after_s
        except Unavailable:
            return _NO_HINT_S
        if task.deadline.is_finite:
            self._clock.at(attempt.server_due_s, self._expire, task)
        return None

    def answered(self, attempt: Attempt, *, late: bool) -> None:
        """Ignore the outcome: the server learns nothing from it."""

    def _expire(self, task: Task) -> None:
        if not task.future.done():
            self.batcher.discard(task, "expired")

    def _end(self, attempt: Attempt, future: asyncio.Future[Outcome]) -> None:
        outcome = future.result()
        if isinstance(outcome, ServingError):
            self._host.drop(attempt, outcome.retry_after_s or _NO_HINT_S)
        else:
            self._host.respond(attempt)
