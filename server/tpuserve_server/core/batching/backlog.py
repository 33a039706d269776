"""Backlog: waiting requests of one priority, grouped into batches. Its owner provides the threads and the clock."""

import math
from collections import deque
from collections.abc import Hashable, Mapping, Sequence

from tpuserve_server.core.batching.admission import Admission
from tpuserve_server.core.batching.cost_model import CostModel
from tpuserve_server.core.batching.device_queue import DeadlineCheck, due_s
from tpuserve_server.core.batching.lane import Batch, Lane, Work
from tpuserve_server.core.batching.parameters import BatchingOptions, too_many_rows
from tpuserve_server.core.batching.task import QueueDepth, SplitRequest, Task, share_run
from tpuserve_server.core.terms.batch_run import BatchRun, Departure
from tpuserve_server.core.terms.deadline import Deadline
from tpuserve_server.core.terms.errors import Unavailable
from tpuserve_server.core.terms.types import Signature


def check_room(lane: Lane, max_enqueued_batches: int) -> None:
    """Raise Unavailable if the signature may not have another batch."""
    if lane.enqueued >= max_enqueued_batches:
        raise Unavailable(
            "The batch scheduling queue to which this task was submitted is full; currently "
            f"{lane.enqueued} batches enqueued and max_enqueued_batches is {max_enqueued_batches}"
        )


def check_capacity(lane: Lane, max_enqueued_batches: int, rows: int, room: int, *, has_open_batch: bool) -> None:
    """Raise Unavailable if `rows` rows do not fit into the `room` of the open batch and the batches behind it."""
    # An open batch counts as enqueued, even if it is empty.
    enqueued = lane.enqueued + (not has_open_batch)
    capacity = max(max_enqueued_batches - enqueued, 0) * lane.max_rows
    capacity += room if enqueued <= max_enqueued_batches else 0
    if rows > capacity:
        raise Unavailable(
            f"The batch scheduling queue to which this task was submitted is full; task size is {rows} but "
            f"scheduling capacity is only {capacity} (num_enqueued_batches={enqueued}, "
            f"max_enqueued_batches={max_enqueued_batches}, open_batch_size={lane.max_rows - room}, "
            f"max_execution_batch_size={lane.max_rows})"
        )


def part_sizes(rows: int, room: int, max_rows: int) -> list[int]:
    """Return the sizes of a split request's parts: `room` fills the open batch, then full batches and a remainder."""
    first = min(room, rows)
    full, last = divmod(rows - first, max_rows)
    return [size for size in (first, *[max_rows] * full, last) if size]


def ready_s(batches: deque[Batch]) -> float:
    """Return when the first batch of a key may leave.

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


def begin_run(batches: deque[Batch], now_s: float) -> BatchRun:
    """Return the record of the first batch of a key, which leaves now."""
    first = batches[0]
    if not first.lane.waits or not first.tasks[0].shareable:
        return BatchRun(Departure.AT_ONCE, first.oldest_s)
    if first.is_full:
        return BatchRun(Departure.FULL, max(task.enqueued_s for task in first.tasks))
    if len(batches) > 1:
        return BatchRun(Departure.CLOSED, min(batches[1].oldest_s, now_s))
    waits_for_clients = first.lane.regroup is not None
    return BatchRun(Departure.REGROUP if waits_for_clients else Departure.TIMEOUT, min(ready_s(batches), now_s))


class Backlog:
    """A queue of batches like TensorFlow Serving's (batching_util/shared_batch_scheduler.h), ordered by deadlines.

    Tasks of one key share batches: same signature, same outputs, and the same row shapes after padding. A task that
    does not fit the open batch closes it and opens the next, or is split over both.

    Tasks leave in the order of their deadlines, and after a second of waiting as if that were their deadline. Tasks
    that cannot be in time are refused on arrival, or dropped when their batch would start. Not thread-safe.
    """

    def __init__(
        self,
        signatures: Mapping[str, Signature],
        options: Mapping[str, BatchingOptions],
        max_enqueued_batches: int,
        costs: CostModel,
        admission: Admission | None = None,
        deadlines: DeadlineCheck | None = None,
    ) -> None:
        """`max_enqueued_batches` limits the waiting batches of each signature.

        `admission` may refuse tasks for their objective, and `deadlines` for their deadline.
        """
        self._work = Work()
        self._lanes = {
            name: Lane(signature, options.get(name), costs, self._work) for name, signature in signatures.items()
        }
        self._deadlines = deadlines
        # Latest order of any task so far, and the keys whose batches are not in order.
        self._latest_s = -math.inf
        self._unordered: set[Hashable] = set()
        self._hopeless: list[Task] = []
        self._max_enqueued_batches = max_enqueued_batches
        self._admission = admission
        self._batches: dict[Hashable, deque[Batch]] = {}

    def __bool__(self) -> bool:
        """Return whether any task waits."""
        return bool(self._batches)

    @property
    def work_s(self) -> float:
        """Expected seconds on the device of all waiting batches, as far as their costs are known."""
        return self._work.seconds

    def add(self, task: Task, ahead_s: float = 0.0) -> bool:
        """Queue a task, behind `ahead_s` seconds of work of a higher priority. See `BatchQueue.add`."""
        lane = self._lanes[task.signature_name]
        if task.rows > lane.max_task_rows:
            raise too_many_rows(task.rows, lane.max_task_rows, splits=lane.splits)
        key = lane.key(task)
        task.order_s = lane.order_s(task.enqueued_s, task.deadline)
        batches = self._batches.get(key) if task.shareable else None
        if self._admission is not None and not task.priority and self._admission.has_objective(task.signature_name):
            self._check_in_time(self._admission, task, key)
        elif self._deadlines is not None and task.deadline.is_finite and not lane.has_objective:
            self._check_task(self._deadlines, lane, task, ahead_s)
        if lane.regroup is not None:
            lane.regroup.arrived(task.rows, task.enqueued_s)
        last = batches[-1] if batches is not None else None
        if task.order_s >= self._latest_s:
            self._latest_s = task.order_s
        elif key in self._batches:
            self._unordered.add(key)
        if last is not None and last.rows + task.rows <= lane.max_rows:
            last.append(task)
            return last.rows == lane.max_rows or not lane.timeout_s
        if lane.splits and task.shareable and (task.rows > lane.max_rows or not lane.pads):
            self._add_parts(lane, key, last, task)
        else:
            check_room(lane, self._max_enqueued_batches)
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

    def drain(self) -> list[Task]:
        """Remove and return all tasks."""
        drained = [batch for batches in self._batches.values() for batch in batches]
        for batch in drained:
            self._forget(batch)
        tasks = [task for batch in drained for task in batch.tasks]
        for task in tasks:
            task.batch = None
        return tasks

    def queued(self) -> dict[str, QueueDepth]:
        """Return the waiting requests by signature."""
        depths: dict[str, QueueDepth] = {}
        for batch in (each for batches in self._batches.values() for each in batches):
            name = batch.tasks[0].signature_name
            depths[name] = depths.get(name, QueueDepth()).plus(QueueDepth(len(batch.tasks), batch.rows))
        return depths

    def single(self) -> Batch | None:
        """Return the only waiting batch, ready or not, or None if none or several wait."""
        if len(self._batches) != 1:
            return None
        [batches] = self._batches.values()
        return batches[0] if len(batches) == 1 else None

    def ready(self, now_s: float, *, closed: bool = False) -> Batch | None:
        """Return the ready batch with the earliest task in order, or None if no batch is ready.

        With `closed`, return a batch only if some waiting batch takes no more rows. The returned batch may be another:
        if full batches went first, a steady stream of them would starve a lone request.
        """
        ready: Batch | None = None
        since_s = math.inf
        if self._unordered:
            self._restore_order()
        may_run = not closed
        for batches in self._batches.values():
            first = batches[0]
            may_run = may_run or len(batches) > 1 or first.is_full
            order_s = first.tasks[0].order_s
            if order_s < since_s and (not first.lane.waits or ready_s(batches) <= now_s):
                ready, since_s = first, order_s
        return ready if may_run else None

    def next_s(self) -> float:
        """Return when a batch will be ready if no request arrives, or `inf` if none waits."""
        return min(map(ready_s, self._batches.values())) if self._batches else math.inf

    def take(self, batch: Batch, now_s: float) -> list[Task]:
        """Remove and return the tasks of a batch that `ready` returned, as many as the padding policy runs at once.

        The remaining tasks stay first, keep their age, and accept more rows. Those that leave share a `BatchRun`.
        """
        batches = self._batches[batch.key]
        if len(batches) > 1:
            self._fill_holes(batch)
            if self._deadlines is not None and not batch.lane.has_objective:
                self._drop_hopeless(self._deadlines, batch, now_s)
                if not batch.tasks:
                    return []
        rows = batch.rows
        run = begin_run(batches, now_s)
        if rows > batch.lane.least_bucket and (rows := self._rows_to_run(batch, batches, now_s)) < batch.rows:
            popped = batch.pop(rows)
            batch.lane.left(self.run_s(popped))
            share_run(popped, run)
            return popped
        batch.lane.left(batch.work_s)
        self._forget(batch)
        tasks = batch.tasks
        for task in tasks:
            task.batch = None
            task.run = run
        return tasks

    def hopeless(self) -> list[Task]:
        """Remove and return the tasks that `take` has dropped because they cannot be in time."""
        hopeless, self._hopeless = self._hopeless, []
        return hopeless

    def run_s(self, tasks: Sequence[Task]) -> float:
        """Return the expected seconds on the device of a batch of these tasks, or 0 if they are unknown."""
        return self._lanes[tasks[0].signature_name].run_s(sum(task.rows for task in tasks), tasks[0].lengths)

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
        admission.check(task, rows, oldest_s, admission.works_s(others, task.enqueued_s) if others else 0.0)

    def check_deadline(self, signature_name: str, deadline: Deadline, now_s: float, ahead_s: float = 0.0) -> None:
        """Check whether a request that is not decoded yet would be in time, behind `ahead_s` seconds of other work.

        The check is stricter than that of `add`, so that few requests are decoded and then refused.

        Raises:
            TooLate: a request of one row, in a batch like the latest, would be answered after its deadline.
        """
        lane = self._lanes.get(signature_name)
        check = self._deadlines
        if check is None or lane is None or lane.has_objective:
            return
        if not self._batches and not ahead_s and check.device.is_idle:
            return
        run_s = max(lane.latest_run_s, lane.run_s(1, ()))
        finish_s = self._finish_s(check, lane, run_s, deadline, now_s, ahead_s)
        if finish_s > due_s(deadline, now_s):
            raise check.refusal(deadline, now_s, finish_s)

    def lateness_s(self, deadline: Deadline, now_s: float) -> float:
        """Return by how many seconds a request would miss its deadline, whichever signature it is for. 0: not at all.

        Signatures that have not run count as if they took as long as the shortest other one.
        """
        check = self._deadlines
        if check is None or (not self._batches and check.device.is_idle):
            return 0.0
        lanes = self._lanes.values()
        shortest = min((each for each in lanes if each.latest_run_s), key=lambda each: each.latest_run_s, default=None)
        if shortest is None or any(lane.has_objective for lane in lanes):
            return 0.0
        finish_s = self._finish_s(check, shortest, shortest.latest_run_s, deadline, now_s, 0.0)
        return max(finish_s - due_s(deadline, now_s), 0.0)

    def _finish_s(
        self, check: DeadlineCheck, lane: Lane, run_s: float, deadline: Deadline, now_s: float, ahead_s: float
    ) -> float:
        work_s = self._work_before(lane.order_s(now_s, deadline)) + ahead_s
        return check.device.start_s(now_s, work_s) + run_s + check.host_s

    def _check_task(self, check: DeadlineCheck, lane: Lane, task: Task, ahead_s: float) -> None:
        if not self._batches and not ahead_s and check.device.is_idle:
            # Refusing it would speed up no other request, and a run corrects a wrong cost.
            return
        now_s, run_s = task.enqueued_s, lane.run_s(task.rows, task.lengths)
        finish_s = check.device.start_s(now_s, self._work_before(task.order_s) + ahead_s) + run_s
        if finish_s > task.deadline.at_s:
            raise check.refusal(task.deadline, now_s, finish_s)

    def _work_before(self, order_s: float) -> float:
        """Return the expected seconds of the waiting batches that run before a task of this order."""
        if order_s >= self._latest_s:
            return self._work.seconds
        return sum(
            batch.work_s for batches in self._batches.values() for batch in batches if batch.tasks[0].order_s <= order_s
        )

    def _restore_order(self) -> None:
        """Sort the tasks of keys in which a task has overtaken others, and form their batches again."""
        unordered, self._unordered = self._unordered, set()
        for key in unordered:
            batches = self._batches.get(key)
            if batches is None or len(batches) < 2:
                continue
            lane = batches[0].lane
            tasks = sorted((task for batch in batches for task in batch.tasks), key=_order_s)
            for batch in list(batches):
                self._forget(batch)
            last: Batch | None = None
            for task in tasks:
                if last is None or not task.shareable or last.rows + task.rows > lane.max_rows:
                    last = self._open(lane, key, task)
                else:
                    last.append(task)

    def _drop_hopeless(self, check: DeadlineCheck, batch: Batch, now_s: float) -> None:
        """Remove the first tasks of a key that cannot be in time. Other tasks take their place."""
        while batch.tasks:
            earliest_s = check.earliest_s(now_s, batch.work_s)
            hopeless = [task for task in batch.tasks if task.deadline.at_s < earliest_s]
            if not hopeless:
                return
            for task in hopeless:
                batch.remove(task)
            self._hopeless += hopeless
            self._fill_holes(batch)
        self._forget(batch)

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
        batch.leave()
        if not self._batches:
            # Rounding errors must not add up.
            self._work.seconds = 0.0

    def _open(self, lane: Lane, key: Hashable, task: Task) -> Batch:
        batch = Batch(lane, key, [task], task.rows)
        task.batch = batch
        self._batches.setdefault(key, deque()).append(batch)
        lane.enqueued += 1
        return batch

    def _add_parts(self, lane: Lane, key: Hashable, last: Batch | None, task: Task) -> None:
        """Fill the open batch, then open as many as needed. Queue all parts or none."""
        room = lane.max_rows - (last.rows if last is not None else 0)
        check_capacity(lane, self._max_enqueued_batches, task.rows, room, has_open_batch=last is not None)
        sizes = part_sizes(task.rows, room, lane.max_rows)
        for part in task.split(sizes) if len(sizes) > 1 else [task]:
            if last is not None and last.rows < lane.max_rows:
                last.append(part)
            else:
                last = self._open(lane, key, part)

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


def _order_s(task: Task) -> float:
    return task.order_s
