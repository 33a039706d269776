"""Admission: refuses at once whoever cannot be answered in time, by what is known of the device and the queue."""

import math
from collections import Counter, deque
from collections.abc import Mapping, Sequence

from tpuserve_server.core.batching.forecast import DeviceForecast
from tpuserve_server.core.batching.objective import Sizes
from tpuserve_server.core.batching.objective_plan import ObjectivePlan
from tpuserve_server.core.batching.options import BatchingOptions
from tpuserve_server.core.batching.task import Task
from tpuserve_server.core.cost_model import CostModel
from tpuserve_server.core.errors import TooLate
from tpuserve_server.core.priority import Priority
from tpuserve_server.core.types import ServableId

# Nobody is told to come back sooner, nor of a shorter way through the host.
_LEAST_RETRY_S = 0.001
_LEAST_TOLD_S = 0.0001
# While a free device refuses, one request in so many times its own duration is run all the same. What is known may be
# wrong, a neighbour that slowed everything down long gone; and without a run nothing would ever be learned.
_DURATIONS_A_TRIAL = 100.0


class Admission:
    """Of one batcher, some of whose signatures have an objective. Guarded by the batcher's lock.

    What it predicts is conservative: requests of low priority are not ahead of others, but whatever has begun is, and
    whoever is admitted will run in a batch of the size that is planned for, even if it is the only one as yet.
    """

    def __init__(
        self, servable_id: ServableId, options: Mapping[str, BatchingOptions], costs: CostModel, devices: int
    ) -> None:
        """`devices` batches run at a time. Objectives need allowed sizes."""
        self._id = servable_id
        self._costs = costs
        self._devices = devices
        self._forecast = DeviceForecast(devices)
        self._running: dict[int, deque[Sequence[Task]]] = {}
        self._next_trial_s = math.inf
        self._plans = {
            name: ObjectivePlan(name, sizes.objective, sizes.buckets, costs)
            for name, sizes in options.items()
            if sizes.objective is not None and sizes.buckets
        }

    def promises(self, signature_name: str) -> bool:
        """Whether the signature has an objective, so that its requests are to be checked."""
        return signature_name in self._plans

    def answered(self, signature_name: str, latency_s: float) -> None:
        """An answer of high priority went out `latency_s` after its request had come."""
        if (plan := self._plans.get(signature_name)) is not None:
            plan.answered(latency_s)

    def host_s(self, signature_name: str) -> float:
        """What of a signature's objective is kept for the host, 0 without one."""
        plan = self._plans.get(signature_name)
        return 0.0 if plan is None else plan.host_s

    def check(self, task: Task, rows_ahead: int, oldest_s: float, others_s: Sequence[float]) -> None:
        """Predict when a task that has just come will be answered; its own `predicted_s`.

        `rows_ahead` wait that it would share batches with, since `oldest_s`; other batches cost `others_s`.

        Raises:
            TooLate: that is after its objective, or its deadline.
        """
        plan = self._plans.get(task.signature_name)
        if plan is None or task.priority is not Priority.HIGH:
            return
        now_s = task.enqueued_s
        plan.saw(task.rows, now_s)
        sizes, target = plan.sizes(task.lengths)
        if sizes is None:
            return
        if not rows_ahead and not others_s and self._is_free():
            self._check_alone(task, plan, sizes)
            return
        runs_s = list(others_s)
        due_s = oldest_s + plan.latency_s - self._forecast.start_s(now_s, runs_s) if rows_ahead else plan.latency_s
        own = _own_size(sizes, target, rows_ahead, task.rows, due_s, plan.latency_s, runs_s)
        start_s = self._forecast.start_s(now_s, runs_s)
        task.predicted_s = start_s + sizes.mean_s[own]
        spread_s = (sizes.spread_s[own] ** 2 + self._forecast.spread_s**2) ** 0.5
        finish_s = task.predicted_s + plan.margin_s(spread_s)
        if finish_s <= min(now_s + plan.latency_s, task.deadline.at_s) + 1e-9:
            return
        # What its costs say is too long on any device must be tried on this one too, which others may keep busy always.
        runs_s, own = _parts(sizes, task.rows)
        alone_s = sum(runs_s) + sizes.mean_s[own]
        if alone_s <= plan.latency_s or not self._is_trial(now_s, alone_s):
            raise self._refusal(task, plan, finish_s, rows_ahead)

    def _check_alone(self, task: Task, plan: ObjectivePlan, sizes: Sizes) -> None:
        """It starts at once, and alone: what it costs on average counts. To refuse it brings nobody forward."""
        now_s = task.enqueued_s
        runs_s, own = _parts(sizes, task.rows)
        task.predicted_s = self._forecast.start_s(now_s, runs_s) + sizes.mean_s[own]
        due_s = min(now_s + plan.latency_s, task.deadline.at_s)
        if task.predicted_s > due_s and not self._is_trial(now_s, task.predicted_s - now_s):
            raise self._refusal(task, plan, task.predicted_s, 0)

    def work_s(self, task: Task, rows: int) -> float:
        """What a batch of `rows` rows like this task's costs; 0 while nobody knows."""
        plan = self._plans.get(task.signature_name)
        sizes = plan.sizes(task.lengths)[0] if plan is not None and task.shareable else None
        if sizes is not None:
            return sizes.mean_s[sizes.index(rows)]
        cost = self._costs.cost(task.signature_name, rows, task.lengths)
        return 0.0 if cost is None else cost.mean_s

    def works_s(self, batches: Sequence[tuple[Task, int]], now_s: float) -> list[float]:
        """What batches of other keys will cost that wait: the first task and the rows of each. They grow until they
        start, each by its part of the rate at which requests for its signature come.
        """
        runs_s: list[float] = []
        keys = Counter(task.signature_name for task, _ in batches)
        for task, rows in batches:
            plan = self._plans.get(task.signature_name)
            if plan is not None and task.shareable:
                wait_s = self._forecast.start_s(now_s, runs_s) - now_s
                rows += int(plan.rows_per_s * wait_s / (keys[task.signature_name] + 1))
            runs_s.append(self.work_s(task, rows))
        return runs_s

    def rows_to_run(self, tasks: Sequence[Task], now_s: float, others: Sequence[tuple[Task, int]] = ()) -> int:
        """How many rows of these tasks of one key, the oldest first, should run now that a device thread is free.

        `others`: the first task and the rows of each batch of other keys that waits.
        """
        plan = self._plans.get(tasks[0].signature_name)
        if plan is None:
            return sum(task.rows for task in tasks)
        others_s = sum(self.work_s(task, rows) for task, rows in others) / self._devices
        return plan.rows_to_run(tasks, now_s, others_s)

    def started(self, thread: int, tasks: Sequence[Task], now_s: float) -> None:
        """A device thread has taken these tasks, which it runs when it has finished what it took before."""
        first = tasks[0]
        plan = self._plans.get(first.signature_name)
        if plan is not None and first.shareable:
            plan.started(first.lengths)
        run_s = self.work_s(first, sum(task.rows for task in tasks))
        self._forecast.started(thread, now_s, first.enqueued_s, run_s)
        self._running.setdefault(thread, deque()).append(tasks)

    def dropped(self, thread: int) -> None:
        """A device thread has not run the last batch that it took: nobody waited for it any more."""
        self._running[thread].pop()
        self._forecast.dropped(thread)

    def finished(self, thread: int, in_flight: int, now_s: float) -> tuple[str, Sequence[float]]:
        """A device thread has answered all but the last `in_flight` of the batches that it took.

        The signature of the last one answered, and of its tasks for which there was a prediction the actual time less
        the predicted.
        """
        running = self._running[thread]
        tasks: Sequence[Task] = ()
        while len(running) > in_flight:
            tasks = running.popleft()
            self._forecast.finished(thread)
            plan = self._plans.get(tasks[0].signature_name)
            if plan is not None:
                plan.finished(tasks, now_s)
        errors_s = [now_s - task.predicted_s for task in tasks if task.predicted_s]
        return tasks[0].signature_name if tasks else "", errors_s

    def _is_free(self) -> bool:
        """Whether a device thread has nothing to run."""
        return sum(map(bool, self._running.values())) < self._devices

    def _is_trial(self, now_s: float, duration_s: float) -> bool:
        """Whether a request that a free device would refuse is run to see how long it takes now."""
        if self._next_trial_s <= now_s:
            self._next_trial_s = now_s + _DURATIONS_A_TRIAL * duration_s
            return True
        self._next_trial_s = min(self._next_trial_s, now_s + _DURATIONS_A_TRIAL * duration_s)
        return False

    def _refusal(self, task: Task, plan: ObjectivePlan, finish_s: float, rows_ahead: int) -> TooLate:
        now_s = task.enqueued_s
        left_s, deadline_s = plan.latency_s, task.deadline.remaining_s(now_s)
        limit = f"its objective of {plan.objective_s * 1000:g} ms"
        if plan.host_s >= _LEAST_TOLD_S:
            limit += f" less {plan.host_s * 1000:.1f} ms for its way in and out"
        if deadline_s < left_s:
            limit = f"the request's deadline in {deadline_s * 1000:.1f} ms"
        retry_s = max(finish_s - now_s - min(left_s, deadline_s), _LEAST_RETRY_S)
        return TooLate(
            f"Servable {self._id} would finish this request in {(finish_s - now_s) * 1000:.1f} ms, later than {limit} "
            f"({rows_ahead} rows wait before it); try again in {retry_s * 1000:.0f} ms",
            retry_s,
        )


def _parts(sizes: Sizes, rows: int) -> tuple[list[float], int]:
    """How rows run that nothing is ahead of: costs of the batches that they fill, and the index of the last's size."""
    full, last = divmod(rows - 1, sizes.rows[-1])
    return [sizes.mean_s[-1]] * full, sizes.index(last + 1)


def _own_size(
    sizes: Sizes, target: int, rows_ahead: int, rows: int, due_s: float, latency_s: float, runs_s: list[float]
) -> int:
    """The index of the size in which `rows` rows will run; the costs of batches before that go to `runs_s`.

    `due_s`: seconds from the next batch's start to when the first in the queue must be answered.
    """
    total = rows_ahead + rows
    first = sizes.largest_within(due_s)
    if first < 0:
        # It will be late in any, and then runs in one that costs little for each row.
        first = max(min(target, sizes.largest_within(latency_s / 2)), 0)
    if not rows_ahead or total <= sizes.rows[first]:
        parts_s, own = _parts(sizes, total)
        runs_s += parts_s
        return max(own, target)
    runs_s.append(sizes.mean_s[first])
    total = max(total - sizes.rows[first], rows)
    chunk = max(target, sizes.index(rows))
    full, last = divmod(total - 1, sizes.rows[chunk])
    runs_s += [sizes.mean_s[chunk]] * full
    return max(sizes.index(last + 1), target)
