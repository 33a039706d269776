"""BatchQueue: requests that wait, in the batches they will run in. Threads and clock are its owner's."""

import math
from collections import deque
from collections.abc import Hashable, Mapping
from dataclasses import dataclass

from tpuserve_server.core.batching_options import BatchingOptions
from tpuserve_server.core.batching_task import Task
from tpuserve_server.core.errors import InvalidArgument, Unavailable
from tpuserve_server.core.types import Signature


class Lane:
    """What the queue knows of one signature. `enqueued` counts its batches that wait, whatever their key."""

    __slots__ = (
        "enqueued",
        "free_ranks",
        "free_rows",
        "max_rows",
        "max_task_rows",
        "pads",
        "sequences",
        "splits",
        "timeout_s",
    )

    def __init__(self, signature: Signature, options: BatchingOptions | None) -> None:
        """Without `options` nothing is batched: every request is a batch of its own."""
        self.max_task_rows = options.max_batch_size if options else 1
        self.max_rows = options.max_rows if options else 1
        self.timeout_s = options.timeout_s if options else 0.0
        self.splits = options is not None and options.splits
        self.pads = options is not None and options.pad_variable_length_inputs
        self.sequences = options.sequences if options else None
        shapes = [spec.shape for spec in signature.inputs.values()]
        self.free_ranks = None in shapes
        self.free_rows = any(shape is None or None in shape[1:] for shape in shapes)
        self.enqueued = 0


@dataclass(slots=True, eq=False)
class Batch:
    """Tasks that will run together. The last of its key is open to more; the others are closed."""

    lane: Lane
    key: Hashable
    tasks: list[Task]
    rows: int

    @property
    def oldest_s(self) -> float:
        """When the first of the tasks came."""
        return self.tasks[0].enqueued_s


class BatchQueue:
    """First come, first batched, as TensorFlow Serving's queues (batching_util/shared_batch_scheduler.h).

    Tasks of one key share batches: same signature, same outputs, and the same row shapes once they are padded. A task
    that does not fit the open batch closes it and opens the next, or is split over both. Not safe for threads.
    """

    def __init__(
        self,
        signatures: Mapping[str, Signature],
        options: Mapping[str, BatchingOptions],
        max_enqueued_batches: int,
    ) -> None:
        """`max_enqueued_batches` bounds the batches that wait, for each signature."""
        self._lanes = {name: Lane(signature, options.get(name)) for name, signature in signatures.items()}
        self._max_enqueued_batches = max_enqueued_batches
        self._batches: dict[Hashable, deque[Batch]] = {}

    def __bool__(self) -> bool:
        """Whether anything waits."""
        return bool(self._batches)

    def add(self, task: Task) -> bool:
        """Queue a task whose `enqueued_s` is set. False if nothing has changed for those who wait for a batch.

        Raises:
            InvalidArgument: it has more rows than a request may have, or longer ones.
            Unavailable: there is no room.
        """
        lane = self._lanes[task.signature_name]
        if task.rows > lane.max_task_rows:
            raise InvalidArgument(f"Task size {task.rows} is larger than maximum input batch size {lane.max_task_rows}")
        key = _key(lane, task)
        batches = self._batches.get(key) if task.shareable else None
        last = batches[-1] if batches is not None else None
        if last is not None and last.rows + task.rows <= lane.max_rows:
            _append(last, task)
            return last.rows == lane.max_rows or not lane.timeout_s
        if lane.splits and task.shareable and (task.rows > lane.max_rows or not lane.pads):
            self._add_parts(lane, key, last, task)
        else:
            self._check_room(lane)
            self._open(lane, key, task)
        return True

    def discard(self, task: Task) -> bool:
        """Take a task, or what waits of its parts, out of its batch. False if it has left the queue already."""
        if task.whole is not None and task.batch is None:
            return self._discard_parts(task)
        batch = task.batch
        if batch is None:
            return False
        task.batch = None
        batch.tasks.remove(task)
        batch.rows -= task.rows
        if not batch.tasks:
            self._forget(batch)
        return True

    def take(self, now_s: float) -> list[Task]:
        """The tasks of the ready batch whose oldest has waited longest, out of the queue; none if none is ready."""
        ready: Batch | None = None
        for batches in self._batches.values():
            first = batches[0]
            if _ready_s(batches) <= now_s and (ready is None or first.oldest_s < ready.oldest_s):
                ready = first
        return [] if ready is None else self._remove(ready)

    def next_s(self) -> float:
        """When a batch will be ready, if nothing comes; `inf` if nothing waits."""
        return min(map(_ready_s, self._batches.values())) if self._batches else math.inf

    def hurry(self) -> None:
        """Let no batch wait for more rows from now on."""
        for lane in self._lanes.values():
            lane.timeout_s = 0.0

    def _remove(self, batch: Batch) -> list[Task]:
        self._fill_holes(batch)
        self._forget(batch)
        for task in batch.tasks:
            task.batch = None
        return batch.tasks

    def _fill_holes(self, batch: Batch) -> None:
        """What has been discarded has left places, which the next in the queue take."""
        batches = self._batches[batch.key]
        while len(batches) > 1 and not _is_full(batch) and batch.rows + batches[1].tasks[0].rows <= batch.lane.max_rows:
            following = batches[1]
            task = following.tasks.pop(0)
            following.rows -= task.rows
            _append(batch, task)
            if not following.tasks:
                self._forget(following)

    def _forget(self, batch: Batch) -> None:
        batches = self._batches[batch.key]
        if batches[0] is batch:
            batches.popleft()
        else:
            batches.remove(batch)
        if not batches:
            del self._batches[batch.key]
        batch.lane.enqueued -= 1

    def _open(self, lane: Lane, key: Hashable, task: Task) -> Batch:
        batch = Batch(lane, key, [task], task.rows)
        task.batch = batch
        self._batches.setdefault(key, deque()).append(batch)
        lane.enqueued += 1
        return batch

    def _check_room(self, lane: Lane) -> None:
        if lane.enqueued >= self._max_enqueued_batches:
            raise Unavailable(
                "The batch scheduling queue to which this task was submitted is full; currently "
                f"{lane.enqueued} batches enqueued and max_enqueued_batches is {self._max_enqueued_batches}"
            )

    def _add_parts(self, lane: Lane, key: Hashable, last: Batch | None, task: Task) -> None:
        """Fill the open batch, then as many as it takes; all of them or none."""
        room = lane.max_rows - (last.rows if last is not None else 0)
        self._check_capacity(lane, last, room, task.rows)
        sizes = _part_sizes(task.rows, room, lane.max_rows)
        for part in task.split(sizes) if len(sizes) > 1 else [task]:
            if last is not None and last.rows < lane.max_rows:
                _append(last, part)
            else:
                last = self._open(lane, key, part)

    def _check_capacity(self, lane: Lane, last: Batch | None, room: int, rows: int) -> None:
        # An open batch is one of those that are enqueued, even an empty one.
        enqueued = lane.enqueued + (last is None)
        capacity = max(self._max_enqueued_batches - enqueued, 0) * lane.max_rows
        capacity += room if enqueued <= self._max_enqueued_batches else 0
        if rows > capacity:
            raise Unavailable(
                f"The batch scheduling queue to which this task was submitted is full; task size is {rows} but "
                f"scheduling capacity is only {capacity} (num_enqueued_batches={enqueued}, "
                f"max_enqueued_batches={self._max_enqueued_batches}, open_batch_size={lane.max_rows - room}, "
                f"max_execution_batch_size={lane.max_rows})"
            )

    def _discard_parts(self, task: Task) -> bool:
        waiting = [
            part
            for batches in self._batches.values()
            for batch in batches
            for part in batch.tasks
            if part.whole is task.whole
        ]
        for part in waiting:
            self.discard(part)
        return bool(waiting)


def _key(lane: Lane, task: Task) -> Hashable:
    """Tasks with the same key may share batches; what runs alone has its signature's name."""
    if not task.shareable:
        return task.signature_name
    if not lane.free_rows:
        return (task.signature_name, task.output_names)
    if lane.sequences is not None:
        task.lengths = lane.sequences.padded_lengths(task.inputs)
        return (task.signature_name, task.output_names, task.lengths)
    arrays = task.inputs.values()
    # No padding where a row has no value to pad with, nor for parts of a request: each would be padded differently.
    if lane.pads and task.rows <= lane.max_rows and all(array.size for array in arrays):
        ranks = tuple(array.ndim for array in arrays) if lane.free_ranks else ()
        return (task.signature_name, task.output_names, "padded", ranks)
    return (task.signature_name, task.output_names, *(array.shape[1:] for array in arrays))


def _part_sizes(rows: int, room: int, max_rows: int) -> list[int]:
    """How a request of `rows` is cut: `room` fills the open batch, the rest are batches of `max_rows`, but the last."""
    first = min(room, rows)
    whole, last = divmod(rows - first, max_rows)
    return [size for size in (first, *[max_rows] * whole, last) if size]


def _append(batch: Batch, task: Task) -> None:
    task.batch = batch
    batch.tasks.append(task)
    batch.rows += task.rows


def _ready_s(batches: deque[Batch]) -> float:
    """When the first may leave: at once when it is full or closed, else when its oldest task has waited its time."""
    first = batches[0]
    if len(batches) > 1 or _is_full(first):
        return first.oldest_s
    return first.oldest_s + first.lane.timeout_s


def _is_full(batch: Batch) -> bool:
    return batch.rows >= batch.lane.max_rows or not batch.tasks[0].shareable
