"""Admission control: refuses a request at once if its forecast exceeds its objective or deadline."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence

from tpuserve_server.core.batching.cost_model import CostModel
from tpuserve_server.core.batching.device_queue import DeviceQueue
from tpuserve_server.core.batching.objective_plan import ObjectivePlan, Sizes
from tpuserve_server.core.batching.parameters import BatchingOptions
from tpuserve_server.core.batching.task import Task
from tpuserve_server.core.terms.errors import TooLate, counted
from tpuserve_server.core.terms.priority import Priority
from tpuserve_server.core.terms.types import ServableId

# Smallest retry hint, and smallest host allowance that an error message mentions, in seconds.
_LEAST_RETRY_S = 0.001
_MIN_SHOWN_S = 0.0001
# A request that is too slow even alone still runs once in this many times its own duration. The known cost may be
# wrong, for example after a slow neighbour has left, and only a run can correct it.
_DURATIONS_A_TRIAL = 100.0


class Admission:
    """Admission control of one batcher, for the signatures that have an objective. The batcher's lock guards it.

    The forecast is conservative. Waiting requests of low priority do not delay others, but a batch that has begun does.
    The forecast assumes a batch of the planned size, even if the request is the only one in it so far.
    """

    def __init__(
        self, servable_id: ServableId, options: Mapping[str, BatchingOptions], costs: CostModel, device: DeviceQueue
    ) -> None:
        """Forecast for the batches behind those of `device`. Objectives need allowed sizes."""
        self._id = servable_id
        self._costs = costs
        self._device = device
        self._next_trial_s = math.inf
        self._plans = {
            name: ObjectivePlan(name, sizes.objective, sizes.buckets, costs)
            for name, sizes in options.items()
            if sizes.objective is not None and sizes.buckets
        }

    def has_objective(self, signature_name: str) -> bool:
        """Return whether the signature has an objective, so that its requests must be checked."""
        return signature_name in self._plans

    def record_latency(self, signature_name: str, latency_s: float) -> None:
        """Record a response of high priority that went out `latency_s` after its request arrived."""
        if (plan := self._plans.get(signature_name)) is not None:
            plan.record_latency(latency_s)

    def host_s(self, signature_name: str) -> float:
        """Return the part of a signature's objective that is reserved for the host, or 0 without an objective."""
        plan = self._plans.get(signature_name)
        return 0.0 if plan is None else plan.host_s

    def check(self, task: Task, rows_ahead: int, oldest_s: float, other_work_s: float) -> None:
        """Predict when a new task will be answered, and store the prediction in its `predicted_s`.

        `rows_ahead` rows that can share batches with the task have waited since `oldest_s`. Other waiting batches take
        `other_work_s`, in seconds of one device.

        Raises:
            TooLate: the prediction is later than the task's objective or deadline.
        """
        plan = self._plans.get(task.signature_name)
        if plan is None or task.priority is not Priority.HIGH:
            return
        now_s = task.enqueued_s
        plan.saw(task.rows, now_s)
        sizes, target = plan.sizes(task.lengths)
        if sizes is None:
            return
        if not rows_ahead and not other_work_s and self._device.is_idle:
            self._check_alone(task, plan, sizes)
            return
        due_s = plan.latency_s
        if rows_ahead:
            due_s += oldest_s - self._device.start_s(now_s, other_work_s)
        work_s, own = _own_size(sizes, target, rows_ahead, task.rows, due_s, plan.latency_s)
        task.predicted_s = self._device.start_s(now_s, other_work_s + work_s) + sizes.mean_s[own]
        spread_s = (sizes.spread_s[own] ** 2 + self._device.spread_s**2) ** 0.5
        finish_s = task.predicted_s + plan.margin_s(spread_s)
        if finish_s <= min(now_s + plan.latency_s, task.deadline.at_s) + 1e-9:
            return
        # A request that is too slow on any device must also get trials here: other models may keep this device always
        # busy.
        work_s, own = _parts(sizes, task.rows)
        alone_s = work_s + sizes.mean_s[own]
        if alone_s <= plan.latency_s or not self._is_trial(now_s, alone_s):
            raise self._refusal(task, plan, finish_s, rows_ahead)

    def _check_alone(self, task: Task, plan: ObjectivePlan, sizes: Sizes) -> None:
        """Check a task that starts at once and alone by its mean cost: refusing it would speed up no other request."""
        now_s = task.enqueued_s
        work_s, own = _parts(sizes, task.rows)
        task.predicted_s = self._device.start_s(now_s, work_s) + sizes.mean_s[own]
        due_s = min(now_s + plan.latency_s, task.deadline.at_s)
        if task.predicted_s > due_s and not self._is_trial(now_s, task.predicted_s - now_s):
            raise self._refusal(task, plan, task.predicted_s, 0)

    def work_s(self, task: Task, rows: int) -> float:
        """Return the mean cost of a batch of `rows` rows like this task's, in seconds, or 0 if it is unknown."""
        plan = self._plans.get(task.signature_name)
        sizes = plan.sizes(task.lengths)[0] if plan is not None and task.shareable else None
        if sizes is not None:
            return sizes.mean_s[sizes.index(rows)]
        cost = self._costs.cost(task.signature_name, rows, task.lengths)
        return 0.0 if cost is None else cost.mean_s

    def works_s(self, batches: Sequence[tuple[Task, int]], now_s: float) -> float:
        """Return the predicted seconds on one device of waiting batches of other keys.

        `batches` holds the first task and the rows of each. A batch grows until it starts, by its share of the rate at
        which requests for its signature arrive.
        """
        works_s = 0.0
        keys = Counter(task.signature_name for task, _ in batches)
        for task, rows in batches:
            plan = self._plans.get(task.signature_name)
            if plan is not None and task.shareable:
                wait_s = self._device.start_s(now_s, works_s) - now_s
                rows += int(plan.rows_per_s * wait_s / (keys[task.signature_name] + 1))
            works_s += self.work_s(task, rows)
        return works_s

    def rows_to_run(self, tasks: Sequence[Task], now_s: float, others: Sequence[tuple[Task, int]] = ()) -> int:
        """Return how many rows of these tasks should run now that a device thread is free.

        The tasks have one key and are in order of arrival. `others` holds the first task and the rows of each waiting
        batch of other keys.
        """
        plan = self._plans.get(tasks[0].signature_name)
        if plan is None:
            return sum(task.rows for task in tasks)
        other_work_s = sum(self.work_s(task, rows) for task, rows in others) / self._device.threads
        return plan.rows_to_run(tasks, now_s, other_work_s)

    def taken(self, tasks: Sequence[Task]) -> None:
        """Record that these tasks have left the queue as a batch."""
        first = tasks[0]
        plan = self._plans.get(first.signature_name)
        if plan is not None and first.shareable:
            plan.started(first.lengths)

    def answered(self, tasks: Sequence[Task], now_s: float) -> Sequence[float]:
        """Record that a batch of these tasks has been answered.

        Return the actual minus the predicted finish, in seconds, for each task that had a prediction.
        """
        plan = self._plans.get(tasks[0].signature_name)
        if plan is not None:
            plan.finished(tasks, now_s)
        return [now_s - task.predicted_s for task in tasks if task.predicted_s]

    def _is_trial(self, now_s: float, duration_s: float) -> bool:
        """Return whether to run a request that a free device would refuse, to measure its current cost."""
        if self._next_trial_s <= now_s:
            self._next_trial_s = now_s + _DURATIONS_A_TRIAL * duration_s
            return True
        self._next_trial_s = min(self._next_trial_s, now_s + _DURATIONS_A_TRIAL * duration_s)
        return False

    def _refusal(self, task: Task, plan: ObjectivePlan, finish_s: float, rows_ahead: int) -> TooLate:
        now_s = task.enqueued_s
        left_s, deadline_s = plan.latency_s, task.deadline.remaining_s(now_s)
        limit = f"its objective of {plan.objective_s * 1000:g} ms"
        if plan.host_s >= _MIN_SHOWN_S:
            limit += f" minus {plan.host_s * 1000:.1f} ms for the host"
        if deadline_s < left_s:
            limit = f"the request's deadline in {deadline_s * 1000:.1f} ms"
        retry_s = max(finish_s - now_s - min(left_s, deadline_s), _LEAST_RETRY_S)
        return TooLate(
            f"Servable {self._id} would finish this request in {(finish_s - now_s) * 1000:.1f} ms, later than {limit} "
            f"({counted(rows_ahead, 'row')} {'is' if rows_ahead == 1 else 'are'} queued before it); "
            f"retry in {retry_s * 1000:.0f} ms",
            retry_s,
        )


def _parts(sizes: Sizes, rows: int) -> tuple[float, int]:
    """Return how `rows` rows run without a queue: seconds of the full batches, and the index of the last one's size."""
    full, last = divmod(rows - 1, sizes.rows[-1])
    return full * sizes.mean_s[-1], sizes.index(last + 1)


def _own_size(
    sizes: Sizes, target: int, rows_ahead: int, rows: int, due_s: float, latency_s: float
) -> tuple[float, int]:
    """Return the seconds of the batches before the one with the last of `rows` rows, and the index of its size.

    `due_s`: seconds from the start of the next batch until the oldest waiting request must be answered.
    """
    total = rows_ahead + rows
    first = sizes.largest_within(due_s)
    if first < 0:
        # The oldest request is late in any size, so its batch uses a size that costs little for each row.
        first = max(min(target, sizes.largest_within(latency_s / 2)), 0)
    if not rows_ahead or total <= sizes.rows[first]:
        work_s, own = _parts(sizes, total)
        return work_s, max(own, target)
    total = max(total - sizes.rows[first], rows)
    chunk = max(target, sizes.index(rows))
    full, last = divmod(total - 1, sizes.rows[chunk])
    return sizes.mean_s[first] + full * sizes.mean_s[chunk], max(sizes.index(last + 1), target)
