"""Backlog: waiting requests of one priority, grouped into batches. Its owner provides the threads and the clock."""

import math
from collections import deque
from collections.abc import Hashable, Mapping, Sequence

from tpuserve_server.core.batching.admission import Admission
from tpuserve_server.core.batching.batch import Batch
from tpuserve_server.core.batching.lane import Lane
from tpuserve_server.core.batching.options import BatchingOptions
from tpuserve_server.core.batching.request_size import too_many_rows
from tpuserve_server.core.batching.task import SplitRequest, Task
from tpuserve_server.core.cost_model import CostModel
from tpuserve_server.core.errors import Unavailable
from tpuserve_server.core.types import Signature


class Backlog:
    """A first-come, first-batched queue like TensorFlow Serving's (batching_util/shared_batch_scheduler.h).

    Tasks of one key share batches: same signature, same outputs, and the same row shapes after padding. A task that
    does not fit the open batch closes it and opens the next, or is split over both. Not thread-safe.
    """

    def __init__(
        self,
        signatures: Mapping[str, Signature],
        options: Mapping[str, BatchingOptions],
        max_enqueued_batches: int,
        costs: CostModel,
        admission: Admission | None = None,
    ) -> None:
        """`max_enqueued_batches` limits the waiting batches of each signature. `admission` may refuse tasks."""
        self._lanes = {name: Lane(signature, options.get(name), costs) for name, signature in signatures.items()}
        self._max_enqueued_batches = max_enqueued_batches
        self._admission = admission
        self._batches: dict[Hashable, deque[Batch]] = {}

    def __bool__(self) -> bool:
        """Return whether any task waits."""
        return bool(self._batches)

    def add(self, task: Task) -> bool:
        """Queue a task. See `BatchQueue.add`."""
        lane = self._lanes[task.signature_name]
        if task.rows > lane.max_task_rows:
            raise too_many_rows(task.rows, lane.max_task_rows, splits=lane.splits)
        key = lane.key(task)
        batches = self._batches.get(key) if task.shareable else None
        if self._admission is not None and not task.priority and self._admission.has_objective(task.signature_name):
            self._check_in_time(self._admission, task, key)
        if lane.regroup is not None:
            lane.regroup.arrived(task.rows, task.enqueued_s)
        last = batches[-1] if batches is not None else None
        if last is not None and last.rows + task.rows <= lane.max_rows:
            last.append(task)
            return last.rows == lane.max_rows or not lane.timeout_s
        if lane.splits and task.shareable and (task.rows > lane.max_rows or not lane.pads):
            self._add_parts(lane, key, last, task)
        else:
            self._check_room(lane)
            self._open(lane, key, task)
        return True

    def discard(self, task: Task) -> bool:
        """Remove a task. See `BatchQueue.discard`."""
        if task.split_request is not None and task.batch is None:
            return self._discard_parts(task.split_request)
        batch = task.batch
        if not isinstance(batch, Batch):
            return False
        batch.remove(task)
        if not batch.tasks:
            self._forget(batch)
        return True

    def ready(self, now_s: float, *, closed: bool = False) -> Batch | None:
        """Return the ready batch whose oldest task has waited longest, or None if no batch is ready.

        With `closed`, return a batch only if some waiting batch takes no more rows. The returned batch may be another:
        if full batches went first, a steady stream of them would starve a lone request.
        """
        ready: Batch | None = None
        since_s = math.inf
        may_run = not closed
        for batches in self._batches.values():
            first = batches[0]
            may_run = may_run or len(batches) > 1 or first.is_full
            oldest_s = first.tasks[0].enqueued_s
            if oldest_s < since_s and (not first.lane.waits or _ready_s(batches) <= now_s):
                ready, since_s = first, oldest_s
        return ready if may_run else None

    def next_s(self) -> float:
        """Return when a batch will be ready if no request arrives, or `inf` if none waits."""
        return min(map(_ready_s, self._batches.values())) if self._batches else math.inf

    def take(self, batch: Batch, now_s: float) -> list[Task]:
        """Remove and return the tasks of a batch that `ready` returned, as many as the padding policy runs at once.

        The remaining tasks stay first, keep their age, and accept more rows.
        """
        batches = self._batches[batch.key]
        if len(batches) > 1:
            self._fill_holes(batch)
        rows = batch.rows
        if rows > batch.lane.least_bucket and (rows := self._rows_to_run(batch, batches, now_s)) < batch.rows:
            return batch.pop(rows)
        self._forget(batch)
        tasks = batch.tasks
        for task in tasks:
            task.batch = None
        return tasks

    def completed(self, tasks: Sequence[Task], run_s: float, now_s: float) -> None:
        """Record that a batch that was taken has been answered, after `run_s` on the device."""
        self._lanes[tasks[0].signature_name].completed(tasks, run_s, now_s)

    def take_up_to(self, rows: int, key: Hashable) -> list[Task]:
        """Remove and return the first tasks of `key` that fit into `rows` rows, ready or not."""
        taken: list[Task] = []
        while rows and (batches := self._batches.get(key)):
            first = batches[0]
            popped = first.pop(rows)
            if not first.tasks:
                self._forget(first)
            if not popped:
                break
            taken += popped
            rows -= sum(task.rows for task in popped)
        return taken

    def hurry(self) -> None:
        """Stop all waiting for more rows, from now on."""
        for lane in self._lanes.values():
            lane.hurry()

    def _rows_to_run(self, batch: Batch, batches: deque[Batch], now_s: float) -> int:
        """Return how many rows of `batch` to run. `batches` are those of its key, and `batch` is the first."""
        if self._admission is not None and batch.lane.has_objective:
            others = self._others(batch.key) if len(self._batches) > 1 else ()
            return self._admission.rows_to_run([task for one in batches for task in one.tasks], now_s, others)
        if batch.lane.timeout_s and (len(batches) > 1 or batch.is_full):
            # TensorFlow Serving does not cut a batch that is full or closed.
            return batch.rows
        return batch.rows_to_run()

    def _others(self, key: Hashable) -> list[tuple[Task, int]]:
        """Return the first task and the rows of each waiting batch of other keys."""
        return [
            (batch.tasks[0], batch.rows)
            for other, batches in self._batches.items()
            if other != key
            for batch in batches
        ]

    def _check_in_time(self, admission: Admission, task: Task, key: Hashable) -> None:
        rows, oldest_s = 0, task.enqueued_s
        if task.shareable and (batches := self._batches.get(key)):
            rows, oldest_s = sum(batch.rows for batch in batches), batches[0].oldest_s
        # A task that runs alone shares no batch with others of its key.
        others = self._others(key if task.shareable else None)
        admission.check(task, rows, oldest_s, admission.works_s(others, task.enqueued_s) if others else ())

    def _fill_holes(self, batch: Batch) -> None:
        """Move tasks from the following batches into the room that discarded tasks have left."""
        batches = self._batches[batch.key]
        while len(batches) > 1 and not batch.is_full:
            following = batches[1]
            popped = following.pop(batch.lane.max_rows - batch.rows)
            if not following.tasks:
                self._forget(following)
            if not popped:
                break
            for task in popped:
                batch.append(task)

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
        """Fill the open batch, then open as many as needed. Queue all parts or none."""
        room = lane.max_rows - (last.rows if last is not None else 0)
        self._check_capacity(lane, last, room, task.rows)
        sizes = _part_sizes(task.rows, room, lane.max_rows)
        for part in task.split(sizes) if len(sizes) > 1 else [task]:
            if last is not None and last.rows < lane.max_rows:
                last.append(part)
            else:
                last = self._open(lane, key, part)

    def _check_capacity(self, lane: Lane, last: Batch | None, room: int, rows: int) -> None:
        # An open batch counts as enqueued, even if it is empty.
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

    def _discard_parts(self, split_request: SplitRequest) -> bool:
        waiting = [
            part
            for batches in self._batches.values()
            for batch in batches
            for part in batch.tasks
            if part.split_request is split_request
        ]
        if not waiting:
            return False
        # Parts that have left the queue need not run either.
        split_request.give_up()
        for part in waiting:
            self.discard(part)
        return True


def _part_sizes(rows: int, room: int, max_rows: int) -> list[int]:
    """Return the sizes of a split request's parts: `room` fills the open batch, then full batches and a remainder."""
    first = min(room, rows)
    full, last = divmod(rows - first, max_rows)
    return [size for size in (first, *[max_rows] * full, last) if size]


def _ready_s(batches: deque[Batch]) -> float:
    """Return when the first batch may leave.

    A full or closed batch may leave at once. Any other waits for its timeout, or until the clients that were just
    answered have had time to send again.
    """
    first = batches[0]
    if len(batches) > 1 or first.is_full:
        return first.oldest_s
    regroup = first.lane.regroup
    if regroup is not None:
        return max(first.oldest_s, regroup.until_s(first.rows))
    return first.oldest_s + first.lane.timeout_s
