"""Backlog: waiting requests of one priority, grouped into batches. Its owner provides the threads and the clock."""

from collections import deque
from collections.abc import Hashable, Mapping, Sequence

from tpuserve_server.core.batching.batch import Batch, BatchPolicy, SignatureRules, WaitingBatches
from tpuserve_server.core.batching.cost_model import CostModel
from tpuserve_server.core.batching.device_queue import DeadlineCheck, due_s
from tpuserve_server.core.batching.parameters import BatchingOptions, too_many_rows
from tpuserve_server.core.batching.task import QueueDepth, SplitRequest, Task, share_run
from tpuserve_server.core.terms.batch_run import BatchRun, Departure
from tpuserve_server.core.terms.deadline import Deadline
from tpuserve_server.core.terms.errors import Unavailable
from tpuserve_server.core.terms.types import Signature


class Backlog:
    """A queue of batches like TensorFlow Serving's (batching_util/shared_batch_scheduler.h), ordered by deadlines.

    Tasks of one key share batches: same signature, same outputs, and the same row shapes after padding. A task that
    does not fit the open batch closes it and opens the next, or is split over both. The policy of a signature decides
    which of its tasks wait, when their batch leaves, and with how many rows.

    Tasks leave in the order of their deadlines, and after a second of waiting as if that were their deadline. Tasks
    that cannot be in time are refused on arrival, or dropped when their batch would start. Not thread-safe.
    """

    def __init__(
        self,
        signatures: Mapping[str, Signature],
        options: Mapping[str, BatchingOptions],
        policies: Mapping[str, BatchPolicy],
        max_enqueued_batches: int,
        costs: CostModel,
        deadlines: DeadlineCheck,
        hopeless: list[Task],
    ) -> None:
        """`max_enqueued_batches` limits the waiting batches of each signature.

        `take` adds tasks to `hopeless` that cannot meet their deadline any more.
        """
        self.waiting = WaitingBatches()
        self.rules = {
            name: SignatureRules(signature, options.get(name), costs, self.waiting, policies[name])
            for name, signature in signatures.items()
        }
        # The same dictionary as in `waiting`. Without waiting batches it is empty.
        self.batches = self.waiting.by_key
        self._deadlines = deadlines
        self._hopeless = hopeless
        # The keys whose batches are not in order.
        self._unordered: set[Hashable] = set()
        self._max_enqueued_batches = max_enqueued_batches

    def add(self, task: Task, ahead_s: float = 0.0) -> bool:
        """Queue a task, behind `ahead_s` seconds of work of a higher priority. See `BatchQueue.add`."""
        rules = self.rules[task.signature_name]
        if task.rows > rules.max_task_rows:
            raise too_many_rows(task.rows, rules.max_task_rows, splits=rules.splits)
        key = rules.key(task)
        task.order_s = rules.policy.order_s(task.enqueued_s, task.deadline)
        rules.policy.admit(task, rules, key, ahead_s)
        batches = self.batches.get(key) if task.shareable else None
        last = batches[-1] if batches is not None else None
        if task.order_s >= self.waiting.latest_s:
            self.waiting.latest_s = task.order_s
        elif key in self.batches:
            self._unordered.add(key)
        if last is not None and last.rows + task.rows <= rules.max_rows:
            last.append(task)
            return last.rows == rules.max_rows or rules.policy.rows_matter
        if rules.splits and task.shareable and (task.rows > rules.max_rows or not rules.pads):
            self._add_parts(rules, key, last, task)
            return True
        if rules.enqueued >= self._max_enqueued_batches:
            raise Unavailable(
                "The batch scheduling queue to which this task was submitted is full; currently "
                f"{rules.enqueued} batches enqueued and max_enqueued_batches is {self._max_enqueued_batches}"
            )
        self._open(rules, key, task)
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
        drained = [batch for batches in self.batches.values() for batch in batches]
        for batch in drained:
            self._forget(batch)
        tasks = [task for batch in drained for task in batch.tasks]
        for task in tasks:
            task.batch = None
        return tasks

    def queued(self) -> dict[str, QueueDepth]:
        """Return the waiting requests by signature."""
        depths: dict[str, QueueDepth] = {}
        for batch in (each for batches in self.batches.values() for each in batches):
            depth = QueueDepth(len(batch.tasks), batch.rows)
            depths[batch.rules.name] = depths.get(batch.rules.name, QueueDepth()).plus(depth)
        return depths

    @property
    def has_closed(self) -> bool:
        """Whether some waiting batch takes no more rows."""
        return any(len(batches) > 1 or batches[0].is_full for batches in self.batches.values())

    def ready(self, now_s: float, *, closed: bool = False) -> Batch | None:
        """Return the ready batch with the earliest task in order, or None if no batch is ready.

        With `closed`, return a batch only if some waiting batch takes no more rows. The returned batch may be another:
        if full batches went first, a steady stream of them would starve a lone request.
        """
        ready: Batch | None = None
        since_s = float("inf")
        if closed and not self.has_closed:
            return None
        if self._unordered:
            self._restore_order()
        for batches in self.batches.values():
            first = batches[0]
            order_s = first.tasks[0].order_s
            if order_s < since_s and (not first.rules.policy.waits or ready_s(batches) <= now_s):
                ready, since_s = first, order_s
        return ready

    def take(self, batch: Batch, now_s: float) -> list[Task]:
        """Remove and return the tasks of a batch that `ready` returned, as many as the policy runs at once.

        The remaining tasks stay first, keep their age, and accept more rows. Those that leave share a `BatchRun`.
        """
        batches, rules = self.batches[batch.key], batch.rules
        policy = rules.policy
        if len(batches) > 1:
            self._fill_holes(batch)
            if not policy.has_objective:
                self._drop_hopeless(batch, now_s)
                if not batch.tasks:
                    return []
        run = begin_run(batches, now_s) if policy.waits else BatchRun(Departure.AT_ONCE, batch.tasks[0].enqueued_s)
        if batch.rows > policy.most_whole_rows and (rows := policy.rows_to_run(batches, now_s)) < batch.rows:
            tasks = batch.pop(rows)
            rules.left(rules.run_s(sum(task.rows for task in tasks), tasks[0].lengths))
            share_run(tasks, run)
        else:
            rules.left(batch.work_s)
            self._forget(batch)
            tasks = batch.tasks
            for task in tasks:
                task.batch = None
                task.run = run
        policy.taken(tasks)
        return tasks

    def take_up_to(self, rows: int, key: Hashable) -> list[Task]:
        """Remove and return the first tasks of `key` that fit into `rows` rows, ready or not."""
        taken: list[Task] = []
        while rows and (batches := self.batches.get(key)):
            first = batches[0]
            popped = first.pop(rows)
            if not first.tasks:
                self._forget(first)
            if not popped:
                break
            taken += popped
            rows -= sum(task.rows for task in popped)
        return taken

    def check_deadline(self, signature_name: str, deadline: Deadline, now_s: float, ahead_s: float = 0.0) -> None:
        """Check whether a request that is not decoded yet would be in time, behind `ahead_s` seconds of other work.

        The check is stricter than that of `add`, so that few requests are decoded and then refused.

        Raises:
            TooLate: a request of one row, in a batch like the latest, would be answered after its deadline.
        """
        rules = self.rules.get(signature_name)
        if rules is None or rules.policy.has_objective:
            return
        if not self.batches and not ahead_s and self._deadlines.device.is_idle:
            return
        run_s = max(rules.latest_run_s, rules.run_s(1, ()))
        finish_s = self._finish_s(rules, run_s, deadline, now_s, ahead_s)
        if finish_s > due_s(deadline, now_s):
            raise self._deadlines.refusal(deadline, now_s, finish_s)

    def lateness_s(self, deadline: Deadline, now_s: float) -> float:
        """Return by how many seconds a request would miss its deadline, whichever signature it is for. 0: not at all.

        Signatures that have not run count as if they took as long as the shortest other one.
        """
        if not self.batches and self._deadlines.device.is_idle:
            return 0.0
        all_rules = self.rules.values()
        shortest = min((one for one in all_rules if one.latest_run_s), key=lambda one: one.latest_run_s, default=None)
        if shortest is None or any(one.policy.has_objective for one in all_rules):
            return 0.0
        finish_s = self._finish_s(shortest, shortest.latest_run_s, deadline, now_s, 0.0)
        return max(finish_s - due_s(deadline, now_s), 0.0)

    def _finish_s(self, rules: SignatureRules, run_s: float, deadline: Deadline, now_s: float, ahead_s: float) -> float:
        work_s = self.waiting.work_before_s(rules.policy.order_s(now_s, deadline)) + ahead_s
        return self._deadlines.device.start_s(now_s, work_s) + run_s + self._deadlines.host_s

    def _restore_order(self) -> None:
        """Sort the tasks of keys in which a task has overtaken others, and form their batches again."""
        unordered, self._unordered = self._unordered, set()
        for key in unordered:
            batches = self.batches.get(key)
            if batches is None or len(batches) < 2:
                continue
            rules = batches[0].rules
            tasks = sorted((task for batch in batches for task in batch.tasks), key=_order_s)
            for batch in list(batches):
                self._forget(batch)
            last: Batch | None = None
            for task in tasks:
                if last is None or not task.shareable or last.rows + task.rows > rules.max_rows:
                    last = self._open(rules, key, task)
                else:
                    last.append(task)

    def _drop_hopeless(self, batch: Batch, now_s: float) -> None:
        """Remove the first tasks of a key that cannot be in time. Other tasks take their place."""
        while batch.tasks:
            earliest_s = self._deadlines.earliest_s(now_s, batch.work_s)
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
        batches = self.batches[batch.key]
        while len(batches) > 1 and not batch.is_full:
            following = batches[1]
            popped = following.pop(batch.rules.max_rows - batch.rows)
            if not following.tasks:
                self._forget(following)
            if not popped:
                break
            for task in popped:
                batch.append(task)

    def _forget(self, batch: Batch) -> None:
        batches = self.batches[batch.key]
        if batches[0] is batch:
            batches.popleft()
        else:
            batches.remove(batch)
        if not batches:
            del self.batches[batch.key]
        batch.rules.enqueued -= 1
        # Without any batch there is no work: rounding errors must not add up.
        self.waiting.work_s = self.waiting.work_s - batch.work_s if self.batches else 0.0
        batch.work_s = 0.0

    def _open(self, rules: SignatureRules, key: Hashable, task: Task) -> Batch:
        batch = Batch(rules, key, task)
        self.batches.setdefault(key, deque()).append(batch)
        rules.enqueued += 1
        return batch

    def _add_parts(self, rules: SignatureRules, key: Hashable, last: Batch | None, task: Task) -> None:
        """Fill the open batch, then open as many as needed. Queue all parts or none."""
        room = rules.max_rows - (last.rows if last is not None else 0)
        self._check_capacity(rules, task.rows, room, has_open_batch=last is not None)
        sizes = part_sizes(task.rows, room, rules.max_rows)
        for part in task.split(sizes) if len(sizes) > 1 else [task]:
            if last is not None and last.rows < rules.max_rows:
                last.append(part)
            else:
                last = self._open(rules, key, part)

    def _check_capacity(self, rules: SignatureRules, rows: int, room: int, *, has_open_batch: bool) -> None:
        """Raise Unavailable if `rows` rows do not fit into the `room` of the open batch and the batches behind it."""
        # An open batch counts as enqueued, even if it is empty.
        enqueued = rules.enqueued + (not has_open_batch)
        capacity = max(self._max_enqueued_batches - enqueued, 0) * rules.max_rows
        capacity += room if enqueued <= self._max_enqueued_batches else 0
        if rows > capacity:
            raise Unavailable(
                f"The batch scheduling queue to which this task was submitted is full; task size is {rows} but "
                f"scheduling capacity is only {capacity} (num_enqueued_batches={enqueued}, "
                f"max_enqueued_batches={self._max_enqueued_batches}, open_batch_size={rules.max_rows - room}, "
                f"max_execution_batch_size={rules.max_rows})"
            )

    def _discard_parts(self, split_request: SplitRequest) -> bool:
        waiting = [
            part
            for batches in self.batches.values()
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


def ready_s(batches: Sequence[Batch]) -> float:
    """Return when the first batch of a key may leave. A full or closed batch may leave at once."""
    first = batches[0]
    return first.oldest_s if len(batches) > 1 or first.is_full else first.rules.policy.until_s(first)


def begin_run(batches: Sequence[Batch], now_s: float) -> BatchRun:
    """Return the record of the first batch of a key, which leaves now, by a policy that may wait."""
    first = batches[0]
    if not first.tasks[0].shareable:
        return BatchRun(Departure.AT_ONCE, first.oldest_s)
    if first.is_full:
        return BatchRun(Departure.FULL, max(task.enqueued_s for task in first.tasks))
    if len(batches) > 1:
        return BatchRun(Departure.CLOSED, min(batches[1].oldest_s, now_s))
    return BatchRun(first.rules.policy.departure, min(ready_s(batches), now_s))


def part_sizes(rows: int, room: int, max_rows: int) -> list[int]:
    """Return the sizes of a split request's parts: `room` fills the open batch, then full batches and a remainder."""
    first = min(room, rows)
    full, last = divmod(rows - first, max_rows)
    return [size for size in (first, *[max_rows] * full, last) if size]


def _order_s(task: Task) -> float:
    return task.order_s
