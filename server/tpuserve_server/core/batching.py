"""The batcher: one bounded queue and one device thread for each loaded version."""

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from tpuserve_server.core.batching_options import BatchingOptions
from tpuserve_server.core.deadline import Clock, Deadline
from tpuserve_server.core.errors import (
    DataLoss,
    DeadlineExceeded,
    FailedPrecondition,
    Internal,
    InvalidArgument,
    OutOfRange,
    ServingError,
    Unavailable,
)
from tpuserve_server.core.metrics import Metrics
from tpuserve_server.core.padding import choose_bucket, empty_batch, fill_batch, split_rows
from tpuserve_server.core.servable import Servable
from tpuserve_server.core.types import Array, ServableId, Signature, Tensors

logger = logging.getLogger(__name__)

# Errors by which a model blames its inputs: of several requests in a batch one is to blame, and not the rest.
_BLAMES_INPUT = (InvalidArgument, FailedPrecondition, OutOfRange, DataLoss)

# Reusable padded buffers of one batcher: beyond this they are let go and made anew.
_MAX_BUFFER_BYTES = 256 * 2**20


# What becomes of a task. A value either way: an exception set on a future would, through its traceback, hold the frames
# of everything that awaits it, and they the future.
Outcome: TypeAlias = Tensors | ServingError


@dataclass(slots=True, eq=False)
class Task:
    """One request in the queue. Its future belongs to the event loop that made it and is only completed there.

    `shareable` is True for rows that may stand in a batch beside others: their signature is batched and every array has
    `rows` rows of its shape. Others run alone, as they came, and count as one row.
    """

    signature_name: str
    output_names: tuple[str, ...]
    inputs: Tensors
    rows: int
    deadline: Deadline
    future: asyncio.Future[Outcome]
    shareable: bool
    enqueued_s: float = field(default=0.0)
    # Tasks of one group wait in one queue, and share batches if they can. Set by the batcher.
    group: Hashable = field(default=None)


class Batcher:
    """Collects requests into batches and runs them, greedily: a batch leaves as soon as the device is free.

    Any number of event loops may submit, none of them ever waits for the device. Everything about the queue is guarded
    by `_changed`; `_idle` says that the device thread waits there, `_waking` which loop is about to wake it. `_buffers`
    belongs to the device thread.
    """

    def __init__(
        self,
        servable_id: ServableId,
        servable: Servable,
        options: Mapping[str, BatchingOptions],
        *,
        max_enqueued_batches: int,
        clock: Clock,
        metrics: Metrics,
    ) -> None:
        """Start the device thread. A signature not in `options` is never batched: its requests run one by one."""
        self._id = servable_id
        self._servable = servable
        self._options = options
        self._max_enqueued_batches = max_enqueued_batches
        self._clock = clock
        self._metrics = metrics
        self._changed = threading.Condition()
        self._queues: dict[Hashable, deque[Task]] = {}
        self._queued: dict[str, int] = {}
        self._stopping = False
        self._idle = False
        self._waking: asyncio.AbstractEventLoop | None = None
        self._free_rows = frozenset(name for name in options if _has_free_rows(servable.signatures[name]))
        self._buffers: dict[Hashable, Tensors] = {}
        self._thread = threading.Thread(target=self._run, name=f"device-{servable_id.name}-{servable_id.version}")
        self._thread.start()

    def batches(self, signature_name: str) -> bool:
        """Whether requests for this signature may share batches."""
        return signature_name in self._options

    def submit(self, task: Task) -> None:
        """Queue a task or refuse it at once. Called on the task's event loop.

        Raises:
            InvalidArgument: it has more rows than a batch can hold.
            Unavailable: the queue is full, or the batcher is stopping.
        """
        options = self._options.get(task.signature_name)
        if options and task.rows > options.max_batch_size:
            raise InvalidArgument(
                f"Task size {task.rows} is larger than maximum input batch size {options.max_batch_size}"
            )
        task.enqueued_s = self._clock.monotonic_s()
        task.group = self._group(task)
        loop = task.future.get_loop()
        with self._changed:
            self._admit(task, options)
            self._queues.setdefault(task.group, deque()).append(task)
            self._queued[task.signature_name] = self._queued.get(task.signature_name, 0) + self._cost(task)
            is_first = self._idle and self._waking is not loop
            if is_first:
                self._waking = loop
        if is_first:
            # Not at once: the loop has more requests in its hands, which would find the interpreter's lock with the
            # device thread and the device with a batch of one. When it has handed them in, one wake-up serves all.
            loop.call_soon(self._wake)

    def discard(self, task: Task, reason: str) -> bool:
        """Take a task that nobody waits for out of the queue, so that its place is free at once.

        False if it has left the queue already. `reason` is `expired` or `cancelled`, for the metrics.
        """
        with self._changed:
            try:
                self._queues[task.group].remove(task)
            except (KeyError, ValueError):
                return False
            self._forget(task.group, [task])
        self._metrics.task_dropped(servable=self._id, reason=reason)
        return True

    def stop(self) -> None:
        """Run what is queued, refuse what comes, and join the device thread."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        self._thread.join()

    # The queue.

    def _group(self, task: Task) -> Hashable:
        """Same signature, same outputs, same row shapes, where the signature leaves those free."""
        if not task.shareable:
            return task.signature_name
        if task.signature_name not in self._free_rows:
            return (task.signature_name, task.output_names)
        return (task.signature_name, task.output_names, *(array.shape[1:] for array in task.inputs.values()))

    def _cost(self, task: Task) -> int:
        """What a task takes of its signature's queue in rows: its own, or a batch of them if it runs alone."""
        options = self._options.get(task.signature_name)
        if options is None:
            return 1
        return task.rows if task.shareable else options.max_batch_size

    def _admit(self, task: Task, options: BatchingOptions | None) -> None:
        if self._stopping:
            raise Unavailable(f"Servable {self._id} is unloading")
        batch_size = options.max_batch_size if options else 1
        queued = self._queued.get(task.signature_name, 0)
        if queued + self._cost(task) > self._max_enqueued_batches * batch_size:
            self._metrics.task_dropped(servable=self._id, reason="queue_full")
            raise Unavailable(
                "The batch scheduling queue to which this task was submitted is full; currently "
                f"{-(-queued // batch_size)} batches enqueued and max_enqueued_batches is {self._max_enqueued_batches}"
            )

    def _forget(self, key: Hashable, tasks: Sequence[Task]) -> None:
        """Account for tasks that have just left the queue of `key`."""
        for task in tasks:
            self._queued[task.signature_name] -= self._cost(task)
        if not self._queues[key]:
            del self._queues[key]

    def _wake(self) -> None:
        with self._changed:
            self._waking = None
            self._changed.notify()

    def _next_batch(self) -> list[Task] | None:
        """Wait for work; the longest-waiting group's tasks, as many as fit. None when stopped and drained."""
        with self._changed:
            while not self._queues:
                if self._stopping:
                    return None
                self._idle = True
                self._changed.wait()
                self._idle = False
            key = min(self._queues, key=lambda key: self._queues[key][0].enqueued_s)
            return self._take(key)

    def _take(self, key: Hashable) -> list[Task]:
        queue = self._queues[key]
        options = self._options.get(queue[0].signature_name)
        room = options.max_batch_size if options and queue[0].shareable else 1
        taken: list[Task] = []
        while queue and (not taken or queue[0].rows <= room):
            task = queue.popleft()
            room -= task.rows
            taken.append(task)
        self._forget(key, taken)
        return taken

    # The device thread.

    def _run(self) -> None:
        while self._run_next():
            pass

    def _run_next(self) -> bool:
        """One batch, in a frame of its own: while the thread waits for the next, nothing of the last stays alive."""
        tasks = self._next_batch()
        if tasks is None:
            return False
        self._execute(tasks)
        return True

    def _drop_dead(self, tasks: list[Task]) -> list[Task]:
        """Expired and cancelled tasks leave before they cost device time."""
        now_s = self._clock.monotonic_s()
        live = []
        for task in tasks:
            if task.future.cancelled():
                self._metrics.task_dropped(servable=self._id, reason="cancelled")
            elif task.deadline.expired(now_s):
                self._metrics.task_dropped(servable=self._id, reason="expired")
                _complete([(task, DeadlineExceeded(f"Deadline exceeded while request for {self._id} was queued"))])
            else:
                live.append(task)
        return live

    def _execute(self, tasks: list[Task]) -> None:
        """Answer every task: from one run, or, where one request's data upset the model, from runs of halves.

        Halving leaves the owner of the bad data alone with it, and costs the others a few runs, not one for each.
        """
        live = self._drop_dead(tasks)
        if not live:
            return
        outcomes = self._attempt(live)
        if len(live) > 1 and isinstance(outcomes[0], _BLAMES_INPUT):
            middle = len(live) // 2
            self._execute(live[:middle])
            self._execute(live[middle:])
            return
        _complete(list(zip(live, outcomes, strict=True)))

    def _attempt(self, tasks: list[Task]) -> Sequence[Outcome]:
        """Run the tasks as one batch; an outcome for each, the same error for all if it failed."""
        try:
            return self._run_batch(tasks)
        except ServingError as error:
            return [error.copy()] * len(tasks)
        except Exception:
            # The top of the worker loop: whatever a model does, its callers are answered and the next batch runs.
            logger.exception("Batch of %d requests for %s failed", len(tasks), self._id)
            return [Internal(f"Running {self._id} failed; the server's log has the reason")] * len(tasks)

    def _run_batch(self, tasks: list[Task]) -> Sequence[Tensors]:
        first = tasks[0]
        started_s = self._clock.monotonic_s()
        rows = sum(task.rows for task in tasks)
        options = self._options.get(first.signature_name)
        sizes = options.allowed_batch_sizes if options and first.shareable else ()
        bucket = choose_bucket(rows, sizes)
        inputs, reusable = self._join(tasks, rows, bucket)
        outputs = self._servable.dispatch(first.signature_name, inputs, first.output_names).result()
        self._metrics.batch_finished(
            servable=self._id,
            signature=first.signature_name,
            api=self._servable.signatures[first.signature_name].api,
            task_rows=[task.rows for task in tasks],
            bucket=bucket,
            queue_waits_s=[started_s - task.enqueued_s for task in tasks],
            run_s=self._clock.monotonic_s() - started_s,
        )
        if reusable:
            outputs = _detached(outputs, inputs)
        if not first.shareable:
            return [outputs]
        return split_rows(outputs, [task.rows for task in tasks], bucket)

    def _join(self, tasks: list[Task], rows: int, bucket: int) -> tuple[Tensors, bool]:
        """The batch's inputs, and whether they are a buffer that will be written again."""
        first = tasks[0]
        if len(tasks) == 1 and rows == bucket:
            return first.inputs, False
        parts = [task.inputs for task in tasks]
        if any(array.dtype.hasobject for array in first.inputs.values()):
            # Strings: a kept buffer would keep clients' data alive.
            batch = empty_batch(first.inputs, bucket)
            fill_batch(batch, parts, rows)
            return batch, False
        batch = self._buffer(first.group, first.inputs, bucket)
        fill_batch(batch, parts, rows)
        return batch, True

    def _buffer(self, group: Hashable, like: Tensors, bucket: int) -> dict[str, Array]:
        """`bucket` rows of the group's buffer, which grows to the largest bucket that was asked for."""
        buffer = self._buffers.get(group)
        if buffer is None or any(len(array) < bucket for array in buffer.values()):
            self._buffers.pop(group, None)
            buffer = empty_batch(like, bucket)
            if sum(_size_bytes(kept) for kept in (buffer, *self._buffers.values())) > _MAX_BUFFER_BYTES:
                self._buffers.clear()
            self._buffers[group] = buffer
        return {name: array[:bucket] for name, array in buffer.items()}


def _size_bytes(tensors: Tensors) -> int:
    return sum(array.nbytes for array in tensors.values())


def _has_free_rows(signature: Signature) -> bool:
    """Whether rows of one input can have different shapes."""
    return any(spec.shape is None or None in spec.shape[1:] for spec in signature.inputs.values())


def _detached(outputs: Tensors, buffers: Tensors) -> Tensors:
    """Copy outputs that are views of a buffer: a model that hands an input through returns our own memory."""
    return {
        name: array.copy() if any(np.may_share_memory(array, buffer) for buffer in buffers.values()) else array
        for name, array in outputs.items()
    }


def _complete(outcomes: Sequence[tuple[Task, Outcome]]) -> None:
    """Hand results to their futures, waking each event loop once."""
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[Task, Outcome]]] = {}
    for task, outcome in outcomes:
        by_loop.setdefault(task.future.get_loop(), []).append((task, outcome))
    for loop, share in by_loop.items():
        try:
            loop.call_soon_threadsafe(_settle, share)
        except RuntimeError:
            # The loop has closed: its callers are gone, and nobody is left to tell.
            logger.warning("Results of %d requests came after their event loop had closed", len(share))


def _settle(share: Sequence[tuple[Task, Outcome]]) -> None:
    for task, outcome in share:
        if not task.future.done():
            task.future.set_result(outcome)
