"""RemoteBatcher: the queue of a version that runs in the engine process, as a front-end process sees it."""

import itertools
import marshal
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from tpuserve_server.core.batching.batch_run import BatchRun
from tpuserve_server.core.batching.options import BatchingOptions
from tpuserve_server.core.batching.queue_depth import QueueDepth
from tpuserve_server.core.batching.task import Outcome, SplitRequest, Task
from tpuserve_server.core.deadline import Clock
from tpuserve_server.core.errors import DeadlineExceeded, ServingError, TooLate, Unavailable
from tpuserve_server.core.priority import Priority
from tpuserve_server.link.array_coding import ArrayCoding
from tpuserve_server.link.connection import Connection
from tpuserve_server.link.forecasts import Forecasts, RemoteRefusals
from tpuserve_server.link.messages import (
    ENGINE_ENDED,
    AnswerGroup,
    CancelMessage,
    ErrorMessage,
    Kind,
    RunMessage,
    TaskGroup,
    read_error,
    read_run,
)

# Tasks with the same key, signature, outputs, kind, priority and layout of arrays travel as one group.
_Like: TypeAlias = tuple[int, str, tuple[str, ...], bool, Priority, int]


@dataclass(frozen=True, slots=True)
class QueueFacts:
    """How a version's requests are batched. `options` and `objectives` are by signature, as in Batcher."""

    options: Mapping[str, BatchingOptions]
    objectives: frozenset[str]
    default_rows: int


class TaskLink:
    """Sends the tasks of one tick together, and completes them. The event loop's thread owns it."""

    def __init__(self, connection: Connection, coding: ArrayCoding) -> None:
        """Send over `connection`. The caller registers `on_answers` for Kind.ANSWERS."""
        self._connection = connection
        self._coding = coding
        self._numbers = itertools.count()
        self._waiting: dict[int, tuple[RemoteBatcher, Task]] = {}
        self._new: list[tuple[int, int, Task]] = []
        self._cancels: list[CancelMessage] = []
        self._latencies: list[tuple[int, str, float]] = []

    def submit(self, queue: "RemoteBatcher", task: Task) -> None:
        """Send a task for the version of this queue. Raises Unavailable if the engine has ended."""
        if not self._connection.is_open:
            raise Unavailable(ENGINE_ENDED)
        number = next(self._numbers)
        # The field is the queue's, and the engine's batch has another object there.
        task.batch = number
        self._waiting[number] = queue, task
        if not self._new:
            self._connection.collect(self._send_tasks)
        self._new.append((queue.key, number, task))

    def discard(self, task: Task, reason: str) -> None:
        """Give up a task. Its answer is ignored."""
        number = task.batch
        if isinstance(number, int) and self._waiting.pop(number, None) is not None:
            if not self._cancels:
                self._connection.collect(self._send_cancels)
            self._cancels.append((number, reason))

    def record_latency(self, key: int, signature_name: str, latency_s: float) -> None:
        """Send the latency of a response."""
        if not self._latencies:
            self._connection.collect(self._send_latencies)
        self._latencies.append((key, signature_name, latency_s))

    def on_answers(self, payload: memoryview) -> None:
        """Complete the tasks of a message."""
        messages: list[RunMessage]
        groups: list[AnswerGroup]
        errors: list[ErrorMessage]
        messages, groups, errors = marshal.loads(payload)
        runs = [read_run(message) for message in messages]
        for positions, layout, numbers, enqueued_s, packed in groups:
            # Unpacked even for tasks that were given up, so that their segments become free.
            several = self._coding.unpack(layout, packed, len(numbers))
            for number, at_s, outputs in zip(numbers, enqueued_s, several, strict=True):
                self._complete(number, at_s, [runs[position] for position in positions], outputs)
        for positions, number, at_s, name, message, retry_after_s in errors:
            self._complete(
                number, at_s, [runs[position] for position in positions], read_error(name, message, retry_after_s)
            )

    def fail_all(self) -> None:
        """Answer every task with an error, because the engine has ended."""
        for _, task in self._waiting.values():
            if not task.future.done():
                task.future.set_result(Unavailable(ENGINE_ENDED))
        self._waiting.clear()

    def _complete(self, number: int, enqueued_s: float, runs: list[BatchRun], outcome: Outcome) -> None:
        queue, task = self._waiting.pop(number, (None, None))
        if queue is None or task is None or task.future.done():
            return
        if isinstance(outcome, (TooLate, DeadlineExceeded)):
            queue.refusals.begin()
        task.enqueued_s, task.batch = enqueued_s, None
        if len(runs) == 1:
            task.run = runs[0]
        elif runs:
            task.split_request = SplitRequest(task.rows)
            task.split_request.runs = runs
        task.future.set_result(outcome)

    def _send_tasks(self) -> None:
        groups: dict[_Like, list[tuple[int, Task]]] = {}
        layout = self._coding.layout
        for key, number, task in self._new:
            like = (key, task.signature_name, task.output_names, task.shareable, task.priority, layout(task.inputs))
            group = groups.get(like)
            if group is None:
                groups[like] = [(number, task)]
            else:
                group.append((number, task))
        self._connection.send(Kind.TASKS, marshal.dumps([self._group(like, group) for like, group in groups.items()]))
        self._new.clear()

    def _group(self, like: _Like, group: list[tuple[int, Task]]) -> TaskGroup:
        key, signature_name, output_names, shareable, priority, layout = like
        numbers, tasks = [number for number, _ in group], [task for _, task in group]
        deadlines_s = [task.deadline.at_s for task in tasks]
        return (
            key,
            signature_name,
            output_names,
            tasks[0].rows,
            shareable,
            int(priority),
            layout,
            numbers,
            deadlines_s if min(deadlines_s) < math.inf else None,
            self._coding.pack(layout, [task.inputs for task in tasks]),
        )

    def _send_cancels(self) -> None:
        self._connection.send(Kind.CANCELS, marshal.dumps(self._cancels))
        self._cancels.clear()

    def _send_latencies(self) -> None:
        self._connection.send(Kind.LATENCIES, marshal.dumps(self._latencies))
        self._latencies.clear()


class RemoteBatcher:
    """Implements TaskQueue over the link. One event loop's thread owns it."""

    def __init__(self, key: int, facts: QueueFacts, link: TaskLink, forecasts: Forecasts, clock: Clock) -> None:
        """Submit to the engine's version with this key. Refuse by its forecasts."""
        self.key = key
        self.refusals = RemoteRefusals(key, forecasts)
        self._facts = facts
        self._link = link
        self._clock = clock

    @property
    def default_rows(self) -> int:
        """Maximum number of rows in a batch of a signature whose exporter has checked no sizes."""
        return self._facts.default_rows

    def batches(self, signature_name: str) -> bool:
        """Return whether requests for this signature may share batches."""
        return signature_name in self._facts.options

    def options(self, signature_name: str) -> BatchingOptions | None:
        """Return how requests for this signature share batches, or None if they run one by one."""
        return self._facts.options.get(signature_name)

    def has_objective(self, signature_name: str) -> bool:
        """Return whether this signature has a latency objective."""
        return signature_name in self._facts.objectives

    def record_latency(self, signature_name: str, latency_s: float) -> None:
        """Report a response of high priority to the engine's batcher."""
        if self.has_objective(signature_name):
            self._link.record_latency(self.key, signature_name, latency_s)

    def submit(self, task: Task) -> None:
        """Send a task. Its future gets the engine's refusal as an outcome. Raises Unavailable without an engine."""
        task.enqueued_s = self._clock.monotonic_s()
        self._link.submit(self, task)

    def submit_all(self, tasks: Sequence[Task]) -> list[tuple[Task, ServingError]]:
        """Send tasks. No task is refused here."""
        for task in tasks:
            self.submit(task)
        return []

    def discard(self, task: Task, reason: str) -> bool:
        """Give up a task. Return False: it may have left the queue."""
        if reason == "expired":
            self.refusals.begin()
        self._link.discard(task, reason)
        return False

    def queued(self) -> dict[str, QueueDepth]:
        """Return nothing: the engine shows its queue."""
        return {}

    def hung_s(self) -> float:
        """Return 0: the engine answers the tasks of runs that hang."""
        return 0.0

    def stop(self) -> None:
        """Do nothing: the engine stops its batcher."""
