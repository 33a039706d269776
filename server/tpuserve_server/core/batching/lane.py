"""Lane and Batch: the batching rules and state of one signature, and its waiting batches."""

import bisect
import itertools
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from tpuserve_server.core.batching.arrays import choose_bucket
from tpuserve_server.core.batching.cost_model import CostModel
from tpuserve_server.core.batching.parameters import BatchingMode, BatchingOptions, PaddingPolicy
from tpuserve_server.core.batching.task import Task
from tpuserve_server.core.terms.deadline import Deadline
from tpuserve_server.core.terms.types import Signature

# Longest wait, as a share of the run that has ended and in seconds. The device loses it if no client comes back.
_MOST_OF_RUN = 1 / 20
MOST_WAIT_S = 0.02
# Shortest run that justifies a wait: after a shorter one the wait would be shorter than any client's round trip.
LEAST_RUN_S = 0.002
# Smallest share of rows that must usually come back for a wait. Clients that send at random rarely send in so short a
# time, and not after several batches in a row. Most clients that send again at once do.
_LEAST_SHARE = 0.5
# Weight of the latest batch in the running mean of the share that comes back.
_WEIGHT = 0.25


class Regroup:
    """A short wait of one signature for the clients that were just answered, if they usually send again at once.

    Such clients fall into two groups under a batcher that never waits. One group runs while the other waits, in batches
    half as large as they could be. A batch of all clients may cost less than two half batches, each of which waits for
    the other. Then a short wait makes every request faster and raises the throughput of the device.

    It counts the rows that come back after every batch, even if none waits for them. Not thread-safe.
    """

    def __init__(self, cost_s: Callable[[int], float | None], max_rows: int) -> None:
        """`cost_s` returns the seconds of a batch of this many rows, or None. A batch has at most `max_rows`."""
        self._cost_s = cost_s
        self._max_rows = max_rows
        self._share = 0.0
        self._completed = 0
        self._arrived = 0
        self._wait_s = self._end_s = 0.0

    def completed(self, rows: int, run_s: float, now_s: float) -> None:
        """Record that a batch of `rows` rows was answered now, after `run_s` on the device."""
        if self._completed:
            self._share += _WEIGHT * (min(self._arrived / self._completed, 1.0) - self._share)
        self._completed, self._arrived = rows, 0
        self._wait_s = min(_MOST_OF_RUN * run_s, MOST_WAIT_S)
        self._end_s = now_s + self._wait_s

    def arrived(self, rows: int, now_s: float) -> None:
        """Record the arrival of a request of `rows` rows."""
        if now_s <= self._end_s:
            self._arrived += rows

    def until_s(self, waiting: int) -> float:
        """Return until when a batch of `waiting` rows should wait for the expected rows, or 0 if it should not wait."""
        if self._share < _LEAST_SHARE:
            return 0.0
        expected = round(self._share * self._completed) - self._arrived
        if expected < 1 or waiting + expected > self._max_rows:
            return 0.0
        first_s, second_s, both_s = (self._cost_s(rows) for rows in (waiting, expected, waiting + expected))
        if first_s is None or second_s is None or both_s is None:
            return 0.0
        return self._end_s if first_s + second_s - both_s > self._wait_s else 0.0


# Mean seconds of a run by its rows and by the lengths that its sequences are padded to, or None if unknown.
RunCost: TypeAlias = Callable[[int, tuple[int, ...]], float | None]

# A smaller batch must be cheaper for each row by this factor: less is noise, and larger batches shorten the queue.
_WORTH_WAITING = 0.95
# Costs change slowly, so choices are cached for this many batches.
_REMEMBERED_FOR = 64


class BatchPlan:
    """The padding policy of one signature. A choice is a pure function of the rows and the costs. Not thread-safe.

    The policies are TensorFlow's (batching_util/batch_scheduler_utils.h, MaybeBatchDown), except that MIN_COST
    considers every size. TensorFlow's considers the next smaller and the next larger size. MIN_COST also counts only
    the rows that whole requests fill.
    """

    def __init__(self, buckets: Sequence[int], policy: PaddingPolicy, cost: RunCost) -> None:
        """`buckets` ascend, and the last holds the largest batch. `cost` is called only with these sizes."""
        self._buckets = tuple(buckets)
        self._choose = {
            PaddingPolicy.PAD_UP: self._pad_up,
            PaddingPolicy.BATCH_DOWN: self._batch_down,
            PaddingPolicy.MIN_COST: self._min_cost,
        }[policy]
        self._cost = cost
        self._remembered: dict[tuple[int, tuple[int, ...]], int] = {}
        self._uses_left = 0

    def choose(self, rows: int, ends: Sequence[int] | None = None, lengths: tuple[int, ...] = ()) -> int:
        """Return how many of `rows` to run, counted from the first: one of `ends`, or any number if `ends` is None.

        `ends` ascend and contain the row counts at which requests end. The last is `rows`.
        """
        if ends is not None:
            return self._choose(rows, ends, lengths)
        if not self._uses_left:
            self._remembered.clear()
            self._uses_left = _REMEMBERED_FOR
        self._uses_left -= 1
        chosen = self._remembered.get((rows, lengths))
        if chosen is None:
            chosen = self._remembered[rows, lengths] = self._choose(rows, None, lengths)
        return chosen

    def _pad_up(self, rows: int, ends: Sequence[int] | None, lengths: tuple[int, ...]) -> int:
        return rows

    def _batch_down(self, rows: int, ends: Sequence[int] | None, lengths: tuple[int, ...]) -> int:
        """Return the largest size that the rows fill, or all rows if they fill none or no request ends there."""
        smaller = bisect.bisect_right(self._buckets, rows)
        if not smaller:
            return rows
        size = self._buckets[smaller - 1]
        return size if ends is None or size in ends else rows

    def _min_cost(self, rows: int, ends: Sequence[int] | None, lengths: tuple[int, ...]) -> int:
        best = rows
        best_s = self._per_row_s(rows, lengths)
        if best_s is None:
            return rows
        for size in reversed(self._buckets[: bisect.bisect_left(self._buckets, rows)]):
            fits = size if ends is None else _last_up_to(size, ends)
            if fits and (cost_s := self._per_row_s(fits, lengths)) is not None and cost_s < best_s * _WORTH_WAITING:
                best, best_s = fits, cost_s
        return best

    def _per_row_s(self, rows: int, lengths: tuple[int, ...]) -> float | None:
        cost_s = self._cost(choose_bucket(rows, self._buckets), lengths)
        return None if cost_s is None else cost_s / rows


def _last_up_to(rows: int, ends: Sequence[int]) -> int:
    index = bisect.bisect_right(ends, rows)
    return ends[index - 1] if index else 0


# Order of a request without a deadline, or with a late one, in seconds after its arrival. Requests with earlier
# deadlines overtake it until then, so that it waits, but not for ever.
_PATIENCE_S = 1.0
# Costs are looked up again after this many batches.
_BATCHES_A_LOOK = 16
# Without this limit, requests of many lengths would fill the memory.
_MOST_RUNS = 4096


class Work:
    """Expected seconds on the device of all waiting batches of one priority."""

    __slots__ = ("seconds",)

    def __init__(self) -> None:
        """Start without batches."""
        self.seconds = 0.0


class Lane:
    """One signature's rules, for tasks of one priority. `enqueued` counts its waiting batches of all keys."""

    __slots__ = (
        "_is_greedy",
        "_mean_s",
        "_objective_s",
        "_runs_s",
        "_uses_left",
        "buckets",
        "enqueued",
        "free_rows",
        "has_equal_rows",
        "has_objective",
        "latest_run_s",
        "least_bucket",
        "max_rows",
        "max_task_rows",
        "pads",
        "plan",
        "regroup",
        "sequences",
        "splits",
        "timeout_s",
        "work",
    )

    def __init__(
        self, signature: Signature, options: BatchingOptions | None, costs: CostModel, work: Work | None = None
    ) -> None:
        """Run every request in a separate batch if there are no `options`. All lanes of a priority share `work`."""
        self.work = Work() if work is None else work
        self.max_task_rows = options.max_batch_size if options else 1
        self.max_rows = options.max_rows if options else 1
        self.timeout_s = options.timeout_s if options else 0.0
        self.splits = options is not None and options.splits
        self.pads = options is not None and options.pad_variable_length_inputs
        self.sequences = options.sequences if options else None
        shapes = [spec.shape for spec in signature.inputs.values()]
        # A signature with batching has no input of unknown rank.
        self.free_rows = any(shape is not None and None in shape[1:] for shape in shapes)
        # Whether a row takes the same time as any other. Strings differ in length, and free dimensions in size.
        texts = any(spec.dtype == object for spec in signature.inputs.values())
        self.has_equal_rows = options is not None and not texts and not (self.free_rows and self.sequences is None)
        objective = None if options is None else options.objective
        self.has_objective = objective is not None
        self._objective_s = _PATIENCE_S if objective is None else objective.latency_s
        self.enqueued = 0
        # Expected seconds of the latest whole batch that has left.
        self.latest_run_s = 0.0
        # Expected seconds by rows and lengths, for this many batches.
        self._runs_s: dict[tuple[int, tuple[int, ...]], float] = {}
        self._uses_left = _BATCHES_A_LOOK
        # Only batches above this size leave a choice of how many rows to run.
        self.least_bucket = options.buckets[0] if options and options.buckets else self.max_rows
        self.buckets = options.buckets if options else ()
        self._mean_s = _mean_costs(signature.name, costs)
        self.plan = None if options is None else _make_plan(options, self._mean_s)
        # Set once a batch has taken long enough to make a short wait worthwhile.
        self.regroup: Regroup | None = None
        self._is_greedy = options is not None and options.mode is BatchingMode.GREEDY

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

    def order_s(self, now_s: float, deadline: Deadline) -> float:
        """Return the time by which a task that arrives now is ordered.

        This is its deadline, or the end of its patience if that is earlier. With an objective, tasks keep their order
        of arrival.
        """
        order_s = now_s + self._objective_s
        return order_s if self.has_objective or order_s < deadline.at_s else deadline.at_s

    def run_s(self, rows: int, lengths: tuple[int, ...]) -> float:
        """Return the expected seconds of batches that hold `rows` rows, or 0 if they are unknown."""
        key = (rows, lengths)
        run_s = self._runs_s.get(key)
        if run_s is None:
            if len(self._runs_s) >= _MOST_RUNS:
                self._runs_s.clear()
            run_s = self._runs_s[key] = self._look_up_s(rows, lengths)
        return run_s

    def left(self, run_s: float) -> None:
        """Record that a whole batch has left that should run for `run_s`. Costs are looked up again now and then."""
        self.latest_run_s = run_s
        self._uses_left -= 1
        if not self._uses_left:
            self._uses_left = _BATCHES_A_LOOK
            self._runs_s.clear()

    def _look_up_s(self, rows: int, lengths: tuple[int, ...]) -> float:
        if rows <= self.max_rows:
            return self._mean_s(choose_bucket(rows, self.buckets), lengths) or 0.0
        full, last = divmod(rows, self.max_rows)
        return full * self.run_s(self.max_rows, lengths) + (self.run_s(last, lengths) if last else 0.0)

    @property
    def waits(self) -> bool:
        """Whether a batch may have to wait while the device is free."""
        return self.timeout_s > 0 or self.regroup is not None

    def completed(self, tasks: Sequence[Task], run_s: float, now_s: float) -> None:
        """Record a batch that was answered, because its callers may send again soon."""
        if not self._is_greedy or not tasks[0].shareable:
            return
        rows = sum(task.rows for task in tasks)
        if self.regroup is None:
            # The mean decides, so that a single slow run of a light model does not start regrouping.
            if (self._cost_s(rows) or 0.0) < LEAST_RUN_S:
                return
            self.regroup = Regroup(self._cost_s, self.max_rows)
        self.regroup.completed(rows, run_s, now_s)

    def hurry(self) -> None:
        """Stop all waiting, from now on."""
        self.timeout_s = 0.0
        self.regroup, self._is_greedy = None, False

    def _cost_s(self, rows: int) -> float | None:
        """Return the mean seconds of a batch without padded lengths. Padded ones have other costs and never regroup."""
        return self._mean_s(choose_bucket(rows, self.buckets), ())

    def may_cut(self, task: Task) -> bool:
        """Return whether a waiting task may run in parts.

        If rows are padded to the shape of others, only a task that is already a part may be cut again. Parts of a whole
        request would be padded differently.
        """
        return self.splits and task.shareable and (not self.pads or task.split_request is not None)


def _mean_costs(signature_name: str, costs: CostModel) -> RunCost:
    def mean_s(rows: int, lengths: tuple[int, ...]) -> float | None:
        cost = costs.cost(signature_name, rows, lengths)
        return None if cost is None else cost.mean_s

    return mean_s


def _make_plan(options: BatchingOptions, mean_s: RunCost) -> BatchPlan | None:
    """Return the plan, or None if there is no choice of sizes or rows."""
    if len(options.buckets) < 2 or options.padding_policy is PaddingPolicy.PAD_UP:
        return None
    return BatchPlan(options.buckets, options.padding_policy, mean_s)


@dataclass(slots=True, eq=False)
class Batch:
    """Tasks that will run together. The last batch of a key accepts more tasks; the others are closed."""

    lane: Lane
    key: Hashable
    tasks: list[Task]
    rows: int
    # Expected seconds on the device, 0 if unknown. It is part of `lane.work` until the batch leaves.
    work_s: float = 0.0

    def __post_init__(self) -> None:
        self._weigh()

    @property
    def oldest_s(self) -> float:
        """Arrival time of the first task."""
        return self.tasks[0].enqueued_s

    @property
    def is_full(self) -> bool:
        """Whether no task can join."""
        return self.rows >= self.lane.max_rows or not (self.tasks == [] or self.tasks[0].shareable)

    def rows_to_run(self) -> int:
        """Return how many rows the padding policy runs now: whole tasks, unless the first task may be cut."""
        lane, tasks = self.lane, self.tasks
        if lane.plan is None:
            return self.rows
        if len(tasks) == self.rows or lane.may_cut(tasks[0]):
            return lane.plan.choose(self.rows, None, tasks[0].lengths)
        return lane.plan.choose(self.rows, list(itertools.accumulate(task.rows for task in tasks)), tasks[0].lengths)

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
        if left and self.tasks and self.lane.may_cut(self.tasks[0]):
            popped.append(self._cut(left))
        for task in popped:
            task.batch = None
        self.rows -= sum(task.rows for task in popped)
        self._weigh()
        return popped

    def leave(self) -> None:
        """Take the batch out of the waiting work."""
        self.lane.work.seconds -= self.work_s
        self.work_s = 0.0

    def _weigh(self) -> None:
        work_s = self.lane.run_s(self.rows, self.tasks[0].lengths) if self.tasks else 0.0
        self.lane.work.seconds += work_s - self.work_s
        self.work_s = work_s

    def _cut(self, rows: int) -> Task:
        task = self.tasks[0]
        head, tail = task.split([rows, task.rows - rows])
        task.batch, tail.batch = None, self
        self.tasks[0] = tail
        return head
