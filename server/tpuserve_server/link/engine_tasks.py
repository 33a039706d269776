"""EngineTasks: the tasks of one front-end process, which the engine runs."""

import asyncio
import marshal
import math
import pickle
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from tpuserve_server.core.batching.task import Outcome, Task
from tpuserve_server.core.deadline import Deadline
from tpuserve_server.core.errors import ServingError
from tpuserve_server.core.priority import Priority
from tpuserve_server.core.task_queue import TaskQueue
from tpuserve_server.core.types import Tensors
from tpuserve_server.link.array_coding import ArrayCoding
from tpuserve_server.link.connection import Connection, Handler
from tpuserve_server.link.messages import AnswerGroup, ErrorMessage, Kind, RunMessage, TaskGroup, run_message

if TYPE_CHECKING:
    from tpuserve_server.core.batching.batch_run import BatchRun
    from tpuserve_server.core.loader import LoadedVersion

_PRIORITIES = {int(one): one for one in Priority}
_NEVER = Deadline.never()
# Numbers, times of queueing and outputs of tasks.
_Group: TypeAlias = tuple[list[int], list[float], list[Tensors]]


class _Reply:
    """Stands for the future of a task: its result goes to the front-end. Used on the event loop that made it."""

    __slots__ = ("_number", "_tasks", "is_cancelled", "is_done", "queue")

    def __init__(self, tasks: "EngineTasks", number: int, queue: TaskQueue) -> None:
        self._tasks = tasks
        self._number = number
        self.queue = queue
        self.is_done = self.is_cancelled = False

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return self._tasks.loop

    def done(self) -> bool:
        return self.is_done

    def cancelled(self) -> bool:
        return self.is_cancelled

    def set_result(self, outcome: Outcome) -> None:
        self.is_done = True
        self._tasks.answer(self._number, outcome)


class EngineTasks:
    """Runs the tasks of one front-end on the versions that it leases. The event loop's thread owns it."""

    def __init__(
        self, connection: Connection, coding: ArrayCoding, find: Callable[[int], "LoadedVersion | None"]
    ) -> None:
        """Answer over `connection`. `find` returns the leased version of a key."""
        self.loop = asyncio.get_running_loop()
        self._connection = connection
        self._coding = coding
        self._find = find
        # By number. A reply does not have its task: the cycle would keep both until a garbage collection.
        self._running: dict[int, Task] = {}
        self._answers: list[tuple[int, Task, Outcome]] = []

    def handlers(self) -> dict[int, Handler]:
        """Return the handlers of the messages about tasks."""
        return {
            Kind.TASKS: self._run,
            Kind.CANCELS: self._cancel,
            Kind.LATENCIES: self._record_latencies,
            Kind.ASK_FORECASTS: self._forecast,
        }

    def answer(self, number: int, outcome: Outcome) -> None:
        """Send an outcome at the end of this tick."""
        task = self._running.pop(number, None)
        if task is None:
            return
        if not self._answers:
            self._connection.collect(self._send_answers)
        self._answers.append((number, task, outcome))

    def give_up(self) -> None:
        """Cancel all tasks, because the front-end has ended."""
        for number in list(self._running):
            self._discard(number, "cancelled")
        self._answers.clear()

    def _run(self, payload: memoryview) -> None:
        groups: list[TaskGroup] = marshal.loads(payload)
        for (
            key,
            signature_name,
            outputs,
            rows,
            shareable,
            priority,
            layout,
            numbers,
            deadlines_s,
            packed,
        ) in groups:
            several = self._coding.unpack(layout, packed, len(numbers))
            version = self._find(key)
            if version is None:
                raise ValueError(f"a task for version key {key}, which the front-end has released")
            queue, deadlines = version.batcher, _deadlines(deadlines_s, len(numbers))
            level = _PRIORITIES[priority]
            tasks = []
            for number, deadline, inputs in zip(numbers, deadlines, several, strict=True):
                reply: Any = _Reply(self, number, queue)  # it has the methods of a future that the batcher uses
                task = Task(signature_name, outputs, inputs, rows, deadline, reply, shareable, 0.0, level)
                self._running[number] = task
                tasks.append(task)
            for task, error in queue.submit_all(tasks):
                task.future.set_result(error)

    def _cancel(self, payload: memoryview) -> None:
        for number, reason in marshal.loads(payload):
            if number in self._running:
                self._discard(number, reason)

    def _discard(self, number: int, reason: str) -> None:
        task = self._running.pop(number)
        reply: Any = task.future  # a _Reply
        reply.is_done = reply.is_cancelled = True
        reply.queue.discard(task, reason)

    def _record_latencies(self, payload: memoryview) -> None:
        for key, signature_name, latency_s in marshal.loads(payload):
            version = self._find(key)
            if version is not None:
                version.batcher.record_latency(signature_name, latency_s)

    def _forecast(self, payload: memoryview) -> None:
        versions = {key: self._find(key) for key in marshal.loads(payload)}
        found = {key: version.batcher.refusals.forecast() for key, version in versions.items() if version is not None}
        self._connection.send(Kind.FORECASTS, pickle.dumps(found, protocol=5))

    def _send_answers(self) -> None:
        runs = _Runs()
        groups: dict[tuple[tuple[int, ...], int], _Group] = {}
        errors: list[ErrorMessage] = []
        layout_of = self._coding.layout
        for number, task, outcome in self._answers:
            positions = runs.positions(task)
            if isinstance(outcome, ServingError):
                error = (type(outcome).__name__, outcome.message, outcome.retry_after_s)
                errors.append((positions, number, task.enqueued_s, *error))
                continue
            like = (positions, layout_of(outcome))
            group = groups.get(like)
            if group is None:
                group = groups[like] = ([], [], [])
            numbers, enqueued_s, several = group
            numbers.append(number)
            enqueued_s.append(task.enqueued_s)
            several.append(outcome)
        self._answers.clear()
        answers: list[AnswerGroup] = [
            (positions, layout, numbers, enqueued_s, self._coding.pack(layout, several))
            for (positions, layout), (numbers, enqueued_s, several) in groups.items()
        ]
        self._connection.send(Kind.ANSWERS, marshal.dumps((runs.messages, answers, errors)))


class _Runs:
    """The batches of the answers of one message."""

    __slots__ = ("_known", "_latest", "messages")

    def __init__(self) -> None:
        self.messages: list[RunMessage] = []
        self._known: dict[tuple[BatchRun, ...], tuple[int, ...]] = {}
        # The answers of a batch follow each other.
        self._latest: tuple[BatchRun | None, tuple[int, ...]] = (None, ())

    def positions(self, task: Task) -> tuple[int, ...]:
        """Return the positions in `messages` of the batches that ran a task."""
        run, positions = self._latest
        if task.run is run and task.split_request is None:
            return positions
        ran = task.runs
        known = self._known.get(ran)
        if known is None:
            begin = len(self.messages)
            known = self._known[ran] = tuple(range(begin, begin + len(ran)))
            self.messages += [run_message(one) for one in ran]
        if task.split_request is None:
            self._latest = (task.run, known)
        return known


def _deadlines(deadlines_s: list[float] | None, count: int) -> list[Deadline]:
    if deadlines_s is None:
        return [_NEVER] * count
    return [_NEVER if at_s == math.inf else Deadline(at_s) for at_s in deadlines_s]
