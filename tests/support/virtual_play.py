"""Player of scripted requests, cancellations and faults on the real batcher in virtual time, with a log of batches."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from tests.support.fake_device import DOUBLE_WIDE, RecordingMetrics
from tests.support.virtual_time import VirtualClock, VirtualLoop, VirtualThreads
from tpuserve_server.core.batching.batcher import Batcher
from tpuserve_server.core.batching.cost_model import CostModel
from tpuserve_server.core.batching.parameters import BatchingOptions, BatchingParameters
from tpuserve_server.core.batching.services import BatchedVersion, DeviceServices
from tpuserve_server.core.batching.task import Outcome, Task
from tpuserve_server.core.terms.deadline import Deadline
from tpuserve_server.core.terms.errors import DeadlineExceeded, Internal, InvalidArgument, ServingError
from tpuserve_server.core.terms.priority import Priority
from tpuserve_server.core.terms.types import Array, ServableId, Signature, Tensors

# A row's value encodes its request and its index. A request has fewer rows than this.
_ROWS = 1000


@dataclass(frozen=True)
class Submit:
    rows: int
    width: int = 1
    priority: Priority = Priority.HIGH
    # Makes the model fail with an error about its input.
    poisoned: bool = False
    timeout_s: float | None = None
    # Like a request whose signature is not batched.
    alone: bool = False


@dataclass(frozen=True)
class Cancel:
    """Cancels accepted request number `request`, if it has been accepted."""

    request: int


@dataclass(frozen=True)
class Wait:
    seconds: float


Step = Submit | Cancel | Wait


@dataclass(frozen=True)
class World:
    """The environment of a script. `costs_s` are the server's estimates of the batch costs, which may be wrong."""

    batching: BatchingOptions
    max_enqueued_batches: int = 6
    low_priority_max_enqueued_batches: int = 6
    costs_s: Mapping[int, float] = field(default_factory=dict)
    t0_s: float = 1.0
    per_row_s: float = 0.1
    max_in_flight: int = 1
    # Numbers of runs that fail without an error about the input.
    faults: frozenset[int] = frozenset()


@dataclass(eq=False)
class Request:
    """A request. `answers` has every outcome set on its future. `gone` is the reason why it no longer waits, if any."""

    number: int
    step: Submit
    x: Array
    task: Task
    submitted_s: float
    answers: list[Outcome | BaseException] = field(default_factory=list)
    gone: str = ""

    @property
    def values(self) -> list[float]:
        """Values of its rows, unique on the device."""
        return [float(abs(value)) for value in self.x[:, 0]]


@dataclass(frozen=True)
class Seen:
    """A batch on the device with its padding, and all pending requests at that time."""

    at_s: float
    values: list[float]
    width: int
    failed: bool
    waiting: list[float]
    gone: list[str]

    @property
    def real(self) -> list[float]:
        """Rows without the padding, which repeats the last row."""
        count = len(self.values)
        while count > 1 and self.values[count - 2] == self.values[-1]:
            count -= 1
        return self.values[:count]


class Play:
    """One script in one world."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.clock = VirtualClock()
        self.loop = VirtualLoop(self.clock)
        self.metrics = RecordingMetrics()
        self.requests: list[Request] = []
        self.refused: list[tuple[Submit, ServingError, list[Request]]] = []
        self.seen: list[Seen] = []
        # Pending rows that have not run, in order of arrival.
        self.waiting: dict[float, Request] = {}
        self._numbers = 0
        costs = CostModel()
        for rows, cost_s in world.costs_s.items():
            costs.learn(DOUBLE_WIDE.name, rows, cost_s)
            for lengths in world.batching.sequence_buckets:
                costs.learn(DOUBLE_WIDE.name, rows, cost_s, (lengths,))
        self.batcher = Batcher(
            BatchedVersion(ServableId("m", 1), _Device(self), {DOUBLE_WIDE.name: world.batching}, costs),
            BatchingParameters(
                max_enqueued_batches=world.max_enqueued_batches,
                low_priority_max_enqueued_batches=world.low_priority_max_enqueued_batches,
            ),
            DeviceServices(self.clock, self.metrics, threads=VirtualThreads(self.clock)),
        )

    def perform(self, script: Sequence[Step]) -> None:
        """Play the whole script until no event is left."""
        at_s = 0.0
        for step in script:
            match step:
                case Wait(seconds):
                    at_s += seconds
                case Submit():
                    self.clock.at(at_s, self._submit, step)
                case Cancel(request):
                    self.clock.at(at_s, self._cancel, request)
        try:
            self.clock.run()
        finally:
            self.batcher.stop()

    def owner(self, value: float) -> Request:
        """Return the request of the row."""
        return self.requests[int(value) // _ROWS]

    def _submit(self, step: Submit) -> None:
        number = len(self.requests)
        first = number * _ROWS + 1
        x = np.repeat(np.arange(first, first + step.rows, dtype=np.float64)[:, None], step.width, axis=1)
        if step.poisoned:
            x[step.rows // 2] *= -1
        deadline = Deadline.never() if step.timeout_s is None else Deadline.after(step.timeout_s, self.clock)
        future: asyncio.Future[Outcome] = self.loop.create_future()
        rows = 1 if step.alone else step.rows
        task = Task(DOUBLE_WIDE.name, ("y",), {"x": x}, rows, deadline, future, not step.alone, priority=step.priority)
        try:
            self.batcher.submit(task)
        except ServingError as error:
            self.refused.append((step, error, list(dict.fromkeys(self.waiting.values()))))
            return
        request = Request(number, step, x, task, self.clock.monotonic_s())
        self.requests.append(request)
        self.waiting.update(dict.fromkeys(request.values, request))
        future.add_done_callback(lambda done: self._answered(request, done))
        if step.timeout_s is not None:
            self.loop.call_later(step.timeout_s, self._expire, request)

    # Like the service in AcquiredModel._run.

    def _expire(self, request: Request) -> None:
        if not request.task.future.done():
            self.batcher.discard(request.task, "expired")
            request.task.future.set_result(DeadlineExceeded("too late"))
            self._leave(request, "expired")

    def _cancel(self, number: int) -> None:
        if number < len(self.requests) and (request := self.requests[number]).task.future.cancel():
            self.batcher.discard(request.task, "cancelled")
            self._leave(request, "cancelled")

    def _leave(self, request: Request, reason: str) -> None:
        request.gone = reason
        for value in request.values:
            self.waiting.pop(value, None)

    def _answered(self, request: Request, done: asyncio.Future[Outcome]) -> None:
        request.answers.append(asyncio.CancelledError() if done.cancelled() else done.result())
        for value in request.values:
            self.waiting.pop(value, None)


class _Device:
    """Returns x unchanged, `t0_s + per_row_s * rows` after the previous batch ends."""

    device = "virtual"
    unrepeatable = ""
    never_blocks = False

    def __init__(self, play: Play) -> None:
        self.max_in_flight = play.world.max_in_flight
        self.signatures: Mapping[str, Signature] = {DOUBLE_WIDE.name: DOUBLE_WIDE}
        self._play = play
        self._free_s = 0.0

    def dispatch(self, signature_name: str, inputs: Tensors, output_names: Sequence[str]) -> "_Run":
        play, x = self._play, inputs["x"]
        failed = len(play.seen) in play.world.faults
        now_s = play.clock.monotonic_s()
        values = [float(value) for value in np.abs(x[:, 0])]
        for value in values:
            play.waiting.pop(value, None)
        gone = [play.owner(value).gone for value in values]
        play.seen.append(Seen(now_s, values, x.shape[1], failed, list(play.waiting), gone))
        self._free_s = max(self._free_s, now_s) + play.world.t0_s + play.world.per_row_s * len(x)
        return _Run(play.clock, x, self._free_s, failed)

    def close(self) -> None:
        pass


@dataclass(frozen=True)
class _Run:
    clock: VirtualClock
    x: Array
    finish_s: float
    failed: bool

    def result(self) -> Tensors:
        self.clock.pass_until(self.finish_s)
        if self.failed:
            raise Internal("the device failed")
        if (self.x < 0).any():
            raise InvalidArgument("x must not be negative")
        return {"y": self.x}
