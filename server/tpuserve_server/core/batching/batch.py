"""Batch and BatchPolicy: the waiting tasks that will run together, the rules of their signature, and who decides."""

import math
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias

from tpuserve_server.core.batching.arrays import choose_bucket
from tpuserve_server.core.batching.cost_model import CostModel
from tpuserve_server.core.batching.device_queue import DeadlineCheck
from tpuserve_server.core.batching.parameters import BatchingOptions
from tpuserve_server.core.batching.task import Task
from tpuserve_server.core.terms.batch_run import Departure
from tpuserve_server.core.terms.deadline import Deadline
from tpuserve_server.core.terms.types import Signature

if TYPE_CHECKING:
    from collections import deque

# Mean seconds of a run by its rows and by the lengths that its sequences are padded to, or None if unknown.
RunCost: TypeAlias = Callable[[int, tuple[int, ...]], float | None]

# Order of a request without a deadline, or with a late one, in seconds after its arrival. Requests with earlier
# deadlines overtake it until then, so that it waits, but not for ever.
_PATIENCE_S: Final = 1.0
# Costs are looked up again after this many batches.
_BATCHES_A_LOOK: Final = 16
# Without this limit, requests of many lengths would fill the memory.
_MOST_RUNS: Final = 4096


class BatchPolicy:
    """Decides which requests of a signature wait, when their batch leaves, and with how many of its rows.

    This one accepts requests that can meet their deadlines, and whole batches leave at once. `policies.py` has the
    others (decision 86). A policy reads the waiting batches and changes none of them. The batcher's lock guards it.
    """

    # Whether a batch that is not full may have to wait while the device is free.
    waits = False
    # Whether another row may change when a batch leaves that is still not full.
    rows_matter = True
    # Whether it accepts requests by an objective instead of their deadlines, and learns from the latency of responses.
    has_objective = False

    def __init__(self, deadlines: DeadlineCheck) -> None:
        """Refuse requests that miss their deadline by `deadlines`, whose device runs the batches."""
        self._deadlines = deadlines
        # Batches of at most this many rows leave whole. `rows_to_run` decides about others.
        self.most_whole_rows = math.inf
        # Why a batch leaves that has waited and is not full.
        self.departure = Departure.AT_ONCE
        # The latency objective, in seconds.
        self.objective_s = math.inf

    @property
    def host_s(self) -> float:
        """Part of an objective that is reserved for the host, in seconds."""
        return 0.0

    def for_low_priority(self) -> "BatchPolicy":
        """Return the policy for requests of low priority."""
        return self

    def order_s(self, now_s: float, deadline: Deadline) -> float:
        """Return the time by which a task that arrives now is ordered: its deadline, or the end of its patience."""
        order_s = now_s + _PATIENCE_S
        return order_s if order_s < deadline.at_s else deadline.at_s

    def admit(self, task: Task, rules: "SignatureRules", key: Hashable, ahead_s: float) -> None:
        """Accept a new task of `key`, behind `ahead_s` seconds of work of a higher priority.

        Raises:
            TooLate: it would be answered too late.
        """
        if task.deadline.at_s < math.inf:
            self._check_deadline(task, rules, ahead_s)

    def until_s(self, batch: "Batch") -> float:
        """Return when a batch leaves that takes more rows."""
        return batch.tasks[0].enqueued_s

    def rows_to_run(self, batches: "Sequence[Batch]", now_s: float) -> int:
        """Return how many rows of the first of these batches of one key should run now that the device is free."""
        return batches[0].rows

    def work_s(self, batch: "Batch", wait_s: float) -> float:
        """Return the expected seconds on the device of a waiting batch that grows for `wait_s` before it starts."""
        return batch.work_s

    def full_rows(self, max_rows: int, lengths: tuple[int, ...]) -> int:
        """Return the most rows of a batch, of at most `max_rows`, while more requests wait than can be answered."""
        return max_rows

    def taken(self, tasks: Sequence[Task]) -> None:
        """Record that these tasks have left the queue as a batch."""

    def answered(self, tasks: Sequence[Task], run_s: float, now_s: float) -> Sequence[float]:
        """Record that a batch of these tasks has been answered, after `run_s` on the device.

        Return the actual minus the predicted finish, in seconds, for each task that had a prediction.
        """
        return ()

    def record_latency(self, latency_s: float) -> None:
        """Record a response of high priority that went out `latency_s` after its request arrived."""

    def hurry(self) -> None:
        """Stop all waiting, from now on."""

    def _check_deadline(self, task: Task, rules: "SignatureRules", ahead_s: float) -> None:
        waiting, device = rules.waiting, self._deadlines.device
        if not waiting.by_key and not ahead_s and device.is_idle:
            # Refusing it would speed up no other request, and a run corrects a wrong cost.
            return
        now_s = task.enqueued_s
        start_s = device.start_s(now_s, waiting.work_before_s(task.order_s) + ahead_s)
        finish_s = start_s + rules.run_s(task.rows, task.lengths)
        if finish_s > task.deadline.at_s:
            raise self._deadlines.refusal(task.deadline, now_s, finish_s)


class SignatureRules:
    """Limits, keys and costs of requests for one signature and priority. `enqueued` counts their waiting batches.

    `waiting` has the batches of all signatures of this priority.
    """

    __slots__ = (
        "_mean_s", "_prices_s", "_runs_s", "_uses_left", "buckets", "enqueued", "free_rows", "has_equal_rows",
        "latest_run_s", "max_rows", "max_task_rows", "name", "pads", "policy", "sequences", "splits", "waiting",
    )  # fmt: skip

    def __init__(
        self,
        signature: Signature,
        options: BatchingOptions | None,
        costs: CostModel,
        waiting: "WaitingBatches",
        policy: BatchPolicy,
    ) -> None:
        """Run every request in a separate batch if there are no `options`."""
        self.name = signature.name
        self.waiting = waiting
        self.policy = policy
        self.max_task_rows = options.max_batch_size if options else 1
        self.max_rows = options.max_rows if options else 1
        self.splits = options is not None and options.splits
        self.pads = options is not None and options.pad_variable_length_inputs
        self.sequences = options.sequences if options else None
        shapes = [spec.shape for spec in signature.inputs.values()]
        # A signature with batching has no input of unknown rank.
        self.free_rows = any(shape is not None and None in shape[1:] for shape in shapes)
        # Whether a row takes the same time as any other. Strings differ in length, and free dimensions in size.
        texts = any(spec.dtype == object for spec in signature.inputs.values())
        self.has_equal_rows = options is not None and not texts and not (self.free_rows and self.sequences is None)
        self.enqueued = 0
        # Expected seconds of the latest whole batch that has left.
        self.latest_run_s = 0.0
        # Expected seconds by rows and lengths, for this many batches.
        self._runs_s: dict[tuple[int, tuple[int, ...]], float] = {}
        self._prices_s: dict[tuple[int, tuple[int, ...]], float] = {}
        self._uses_left = _BATCHES_A_LOOK
        self.buckets = options.buckets if options else ()
        self._mean_s: RunCost = partial(costs.mean_s, signature.name)

    def key(self, task: Task) -> Hashable:
        """Return the key of a task. Tasks with the same key may share batches.

        The key of a task that runs alone is its signature's name.

        Raises:
            InvalidArgument: a sequence is longer than the largest bucket, or lengths that must be equal differ.
        """
        if not task.shareable:
            return task.signature_name
        if not self.free_rows:
            return (task.signature_name, task.output_names)
        if self.sequences is not None:
            task.lengths = self.sequences.padded_lengths(task.inputs)
            return (task.signature_name, task.output_names, task.lengths)
        arrays = task.inputs.values()
        # Rows without elements have no value to pad with. Parts of one request would each be padded differently.
        if self.pads and task.rows <= self.max_rows and all(array.size for array in arrays):
            return (task.signature_name, task.output_names, "padded")
        return (task.signature_name, task.output_names, *(array.shape[1:] for array in arrays))

    def run_s(self, rows: int, lengths: tuple[int, ...]) -> float:
        """Return the expected seconds of batches that hold `rows` rows, or 0 if they are unknown."""
        key = (rows, lengths)
        run_s = self._runs_s.get(key)
        if run_s is None:
            if len(self._runs_s) >= _MOST_RUNS:
                self._runs_s.clear()
            run_s = self._runs_s[key] = self._look_up_s(rows, lengths)
        return run_s

    def price_s(self, task: Task) -> float:
        """Return the seconds of the device that a request needs under full load, or 0 if they are unknown.

        It is the request's share of the batch size that costs least for each such request, among the sizes that the
        policy uses under full load. A rate of requests times this price is 1 if all capacity is used.
        """
        if not task.shareable:
            return self.run_s(task.rows, task.lengths)
        key = (task.rows, task.lengths)
        price_s = self._prices_s.get(key)
        if price_s is None:
            price_s = self._look_up_price_s(task.rows, task.lengths)
            if price_s and len(self._prices_s) < _MOST_RUNS:
                self._prices_s[key] = price_s
        return price_s

    def left(self, run_s: float) -> None:
        """Record that a whole batch has left that should run for `run_s`. Costs are looked up again now and then."""
        self.latest_run_s = run_s
        self._uses_left -= 1
        if not self._uses_left:
            self._uses_left = _BATCHES_A_LOOK
            self._runs_s.clear()
            self._prices_s.clear()

    def may_cut(self, task: Task) -> bool:
        """Return whether a waiting task may run in parts.

        If rows are padded to the shape of others, only a task that is already a part may be cut again. Parts of a whole
        request would be padded differently.
        """
        return self.splits and task.shareable and (not self.pads or task.split_request is not None)

    def _look_up_s(self, rows: int, lengths: tuple[int, ...]) -> float:
        if rows <= self.max_rows:
            return self._mean_s(choose_bucket(rows, self.buckets), lengths) or 0.0
        full, last = divmod(rows, self.max_rows)
        return full * self.run_s(self.max_rows, lengths) + (self.run_s(last, lengths) if last else 0.0)

    def _look_up_price_s(self, rows: int, lengths: tuple[int, ...]) -> float:
        if rows > self.max_rows:
            full, last = divmod(rows, self.max_rows)
            rest_s = self._look_up_price_s(last, lengths) if last else 0.0
            return full * self._look_up_price_s(self.max_rows, lengths) + rest_s
        most = max(self.policy.full_rows(self.max_rows, lengths), rows)
        powers = (rows << power for power in range((most // rows).bit_length()))
        least_s = math.inf
        for size in self.buckets or (*powers, most):
            if rows <= size <= choose_bucket(most, self.buckets) and (run_s := self._mean_s(size, lengths)):
                held = min(size, most)
                # Rows of a size that are no whole request stay empty, unless requests may be cut.
                least_s = min(least_s, run_s * rows / held if self.splits else run_s / (held // rows))
        return least_s if least_s < math.inf else 0.0


class Batch:
    """Tasks that will run together. The last batch of a key accepts more tasks; the others are closed."""

    __slots__ = ("key", "rows", "rules", "tasks", "work_s")

    def __init__(self, rules: SignatureRules, key: Hashable, task: Task) -> None:
        """Open a batch with its first task."""
        self.rules = rules
        self.key = key
        self.tasks = [task]
        self.rows = task.rows
        task.batch = self
        # Expected seconds on the device, 0 if unknown. They are part of `waiting.work_s` until the batch leaves.
        self.work_s = rules.run_s(task.rows, task.lengths)
        rules.waiting.work_s += self.work_s

    @property
    def oldest_s(self) -> float:
        """Arrival time of the first task."""
        return self.tasks[0].enqueued_s

    @property
    def is_full(self) -> bool:
        """Whether no task can join."""
        return self.rows >= self.rules.max_rows or not (self.tasks == [] or self.tasks[0].shareable)

    def append(self, task: Task) -> None:
        """Add a task. The caller checks that there is room for it."""
        task.batch = self
        self.tasks.append(task)
        self.rows += task.rows
        self._weigh()

    def remove(self, task: Task) -> None:
        """Remove a task whose caller no longer waits."""
        task.batch = None
        self.tasks.remove(task)
        self.rows -= task.rows
        self._weigh()

    def pop(self, rows: int) -> list[Task]:
        """Remove and return the first tasks, of at most `rows` rows in total.

        These are whole tasks, and the beginning of the next one if it may be cut. The rest of that task stays first.
        """
        left, count = rows, 0
        for task in self.tasks:
            if task.rows > left:
                break
            left -= task.rows
            count += 1
        popped = self.tasks[:count]
        del self.tasks[:count]
        if left and self.tasks and self.rules.may_cut(self.tasks[0]):
            popped.append(self._cut(left))
        for task in popped:
            task.batch = None
        self.rows -= sum(task.rows for task in popped)
        self._weigh()
        return popped

    def _weigh(self) -> None:
        work_s = self.rules.run_s(self.rows, self.tasks[0].lengths) if self.tasks else 0.0
        self.rules.waiting.work_s += work_s - self.work_s
        self.work_s = work_s

    def _cut(self, rows: int) -> Task:
        task = self.tasks[0]
        head, tail = task.split([rows, task.rows - rows])
        task.batch, tail.batch = None, self
        self.tasks[0] = tail
        return head


class WaitingBatches:
    """The waiting batches of one priority, by key and in order of their tasks. Policies read it; the backlog owns it.

    `work_s` are the expected seconds of all of them on the device. `latest_s` is the latest order of any task so far.
    """

    __slots__ = ("by_key", "latest_s", "work_s")

    def __init__(self) -> None:
        """Start without batches."""
        self.by_key: dict[Hashable, deque[Batch]] = {}
        self.work_s = 0.0
        self.latest_s = -math.inf

    def work_before_s(self, order_s: float) -> float:
        """Return the expected seconds of the batches that run before a task of this order."""
        if order_s >= self.latest_s:
            return self.work_s
        return sum(
            batch.work_s for batches in self.by_key.values() for batch in batches if batch.tasks[0].order_s <= order_s
        )

    def others(self, key: Hashable) -> list[Batch]:
        """Return the batches of other keys."""
        return [batch for other, batches in self.by_key.items() if other != key for batch in batches]
