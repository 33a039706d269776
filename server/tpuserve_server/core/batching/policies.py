"""The policies by which batches leave the queue: greedily or after a timeout, and which of their rows then run.

A new policy is a subclass of `BatchPolicy`, its line in `POLICIES`, and its mode and settings in parameters.py.
Configuration files need both in batching_parameters.proto, and flags need a line in startup/flag_help.py.
"""

import bisect
import itertools
import math
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import TypeAlias

from tpuserve_server.core.batching.arrays import choose_bucket
from tpuserve_server.core.batching.batch import Batch, BatchPolicy, RunCost, SignatureRules
from tpuserve_server.core.batching.cost_model import CostModel
from tpuserve_server.core.batching.device_queue import DeadlineCheck
from tpuserve_server.core.batching.objective import ObjectivePolicy
from tpuserve_server.core.batching.parameters import BatchingMode, BatchingOptions, PaddingPolicy
from tpuserve_server.core.batching.task import Task
from tpuserve_server.core.terms.batch_run import Departure


class _FittedPolicy(BatchPolicy):
    """Runs as many rows as the padding policy of the options chooses."""

    def __init__(self, name: str, options: BatchingOptions, costs: CostModel, deadlines: DeadlineCheck) -> None:
        super().__init__(deadlines)
        self._options = options
        self._mean_s: RunCost = partial(costs.mean_s, name)
        # None if there is no choice of sizes or rows.
        self._plan: BatchPlan | None = None
        if len(options.buckets) > 1 and options.padding_policy is not PaddingPolicy.PAD_UP:
            self._plan = BatchPlan(options.buckets, options.padding_policy, self._mean_s)
            self.most_whole_rows = float(options.buckets[0])

    def rows_to_run(self, batches: Sequence[Batch], now_s: float) -> int:
        """Implement BatchPolicy.rows_to_run: whole tasks, unless the first task may be cut."""
        batch = batches[0]
        if self._plan is None:
            return batch.rows
        tasks, lengths = batch.tasks, batch.tasks[0].lengths
        if len(tasks) == batch.rows or batch.rules.may_cut(tasks[0]):
            return self._plan.choose(batch.rows, None, lengths)
        return self._plan.choose(batch.rows, list(itertools.accumulate(task.rows for task in tasks)), lengths)


class GreedyPolicy(_FittedPolicy):
    """A batch leaves as soon as the device is free, or after a short wait for clients that were just answered."""

    def __init__(self, name: str, options: BatchingOptions, costs: CostModel, deadlines: DeadlineCheck) -> None:
        """Start without waits. Regrouping needs a device that runs one batch at a time.

        Then the callers that come back are those of the batch that has just ended.
        """
        super().__init__(name, options, costs, deadlines)
        self.departure = Departure.REGROUP
        self._may_regroup = deadlines.device.runs_one
        self._low = _FittedPolicy(name, options, costs, deadlines)
        # Set once a batch has taken long enough to make a short wait worthwhile.
        self._regroup: Regroup | None = None

    def for_low_priority(self) -> BatchPolicy:
        """Implement BatchPolicy.for_low_priority: never wait."""
        return self._low

    def admit(self, task: Task, rules: SignatureRules, key: Hashable, ahead_s: float) -> None:
        """Implement BatchPolicy.admit."""
        if task.deadline.at_s < math.inf:
            self._check_deadline(task, rules, ahead_s)
        if self._regroup is not None:
            self._regroup.arrived(task.rows, task.enqueued_s)

    def until_s(self, batch: Batch) -> float:
        """Implement BatchPolicy.until_s."""
        oldest_s = batch.tasks[0].enqueued_s
        return oldest_s if self._regroup is None else max(oldest_s, self._regroup.until_s(batch.rows))

    def answered(self, tasks: Sequence[Task], run_s: float, now_s: float) -> Sequence[float]:
        """Implement BatchPolicy.answered. The callers may send again soon."""
        if run_s < LEAST_RUN_S or not self._may_regroup or not tasks[0].shareable:
            return ()
        rows = sum(task.rows for task in tasks)
        if self._regroup is None:
            # The mean decides, so that a single slow run of a light model does not start regrouping.
            if (self._cost_s(rows) or 0.0) < LEAST_RUN_S:
                return ()
            self._regroup, self.waits = Regroup(self._cost_s, self._options.max_rows), True
        self._regroup.completed(rows, run_s, now_s)
        return ()

    def hurry(self) -> None:
        """Implement BatchPolicy.hurry."""
        self._regroup, self.waits, self._may_regroup = None, False, False

    def _cost_s(self, rows: int) -> float | None:
        """Return the mean seconds of a batch without padded lengths. Padded ones have other costs and never regroup."""
        return self._mean_s(choose_bucket(rows, self._options.buckets), ())


class TimeoutPolicy(_FittedPolicy):
    """A batch that is not full waits `timeout_s`, counted from its oldest request: TensorFlow Serving's rule."""

    waits = True
    rows_matter = False

    def __init__(self, name: str, options: BatchingOptions, costs: CostModel, deadlines: DeadlineCheck) -> None:
        """Wait for the timeout of `options`."""
        super().__init__(name, options, costs, deadlines)
        self.departure = Departure.TIMEOUT

    def until_s(self, batch: Batch) -> float:
        """Implement BatchPolicy.until_s."""
        return batch.tasks[0].enqueued_s + (self._options.timeout_s if self.waits else 0.0)

    def rows_to_run(self, batches: Sequence[Batch], now_s: float) -> int:
        """Implement BatchPolicy.rows_to_run. TensorFlow Serving does not cut a batch that is full or closed."""
        if self.waits and (len(batches) > 1 or batches[0].is_full):
            return batches[0].rows
        return super().rows_to_run(batches, now_s)

    def hurry(self) -> None:
        """Implement BatchPolicy.hurry."""
        self.waits = False


MakePolicy: TypeAlias = Callable[[str, BatchingOptions, CostModel, DeadlineCheck], BatchPolicy]

# The policy of each mode, made for the name of a signature, its options, the costs of its batches and its deadlines.
POLICIES: dict[BatchingMode, MakePolicy] = {
    BatchingMode.GREEDY: GreedyPolicy,
    BatchingMode.TIMEOUT: TimeoutPolicy,
    BatchingMode.OBJECTIVE: ObjectivePolicy,
}


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
