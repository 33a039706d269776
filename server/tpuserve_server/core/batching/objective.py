"""ObjectivePolicy: how one signature keeps its latency objective, given the costs of its batches and its request rate.

`L` is the objective, and `c(b)` is the cost of a batch of `b` rows. Batches run back to back, so a request that arrives
just after a batch has begun waits for that batch and then for its own. If `2 c(b) <= L`, every request is in time, up
to a rate of `b / c(b)` rows a second. Above that rate some requests are late or refused in any case, and larger batches
may pay. The next batch can answer in time only the requests that arrive in the last `L - c(b)` seconds of the batch
before it. The result is `min(b, rate (L - c(b))) / c(b)` rows a second in time.
"""

import bisect
import itertools
import math
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from statistics import NormalDist

from tpuserve_server.core.batching.batch import Batch, BatchPolicy, SignatureRules
from tpuserve_server.core.batching.cost_model import CostModel
from tpuserve_server.core.batching.device_queue import DeadlineCheck
from tpuserve_server.core.batching.parameters import BatchingOptions
from tpuserve_server.core.batching.task import Task
from tpuserve_server.core.terms.deadline import Deadline
from tpuserve_server.core.terms.errors import TooLate, counted
from tpuserve_server.core.terms.priority import Priority

# Smallest retry hint, and smallest host allowance that an error message mentions, in seconds.
_LEAST_RETRY_S = 0.001
_MIN_SHOWN_S = 0.0001
# A request that is too slow even alone still runs once in this many times its own duration. The known cost may be
# wrong, for example after a slow neighbour has left, and only a run can correct it.
_DURATIONS_A_TRIAL = 100.0
# Time constant of the request rate, in objectives: long enough to count requests, short enough to notice a burst.
_RATE_OBJECTIVES = 2.0
# Costs of a batch shape are looked up again after this many of its batches.
_BATCHES_A_LOOK = 8
# Target share of late requests, relative to the share that the objective allows: half, because a controller overshoots.
# A batch that is late as a whole widens the margin by `_REACTION` standard deviations.
_LATE_SHARE = 0.5
_REACTION = 1.0
# Bounds of the margin, as multiples of the percentile's margin in a normal distribution.
_LEAST_MARGIN = 0.4
_MOST_MARGIN = 3.5


class ObjectivePolicy(BatchPolicy):
    """Refuses a request at once if its forecast exceeds its objective or deadline, and chooses rows by the objective.

    The forecast is conservative. Waiting requests of low priority do not delay others, but a batch that has begun does.
    The forecast assumes a batch of the planned size, even if the request is the only one in it so far. No batch waits.
    """

    has_objective = True

    def __init__(self, name: str, options: BatchingOptions, costs: CostModel, deadlines: DeadlineCheck) -> None:
        """Start with a request rate of 0. `options` have an objective."""
        super().__init__(deadlines)
        objective = options.objective
        assert objective is not None, "the mode implies it"
        self._device = deadlines.device
        self.objective_s = objective.latency_s
        self._host = HostAllowance(objective.latency_s, objective.percentile)
        self._name = name
        self._buckets = options.buckets or (options.max_rows,)
        self.most_whole_rows = float(self._buckets[0])
        self._costs = costs
        self._late_share = 1.0 - objective.percentile / 100.0
        self._usual_margin = self._margin = NormalDist().inv_cdf(objective.percentile / 100.0)
        self._rate = 0.0
        self._seen_s = -math.inf
        self._next_trial_s = math.inf
        # By padded lengths: costs, the index of the planned size, and the batches until both are looked up again.
        self._known: dict[tuple[int, ...], tuple[Sizes | None, int, int]] = {}

    # The decisions.

    def order_s(self, now_s: float, deadline: Deadline) -> float:
        """Implement BatchPolicy.order_s: the order of arrival."""
        return now_s + self.objective_s

    def admit(self, task: Task, rules: SignatureRules, key: Hashable, ahead_s: float) -> None:
        """Implement BatchPolicy.admit. Requests of low priority have no promise and are never refused."""
        if task.priority is Priority.LOW:
            return
        rows, oldest_s, waiting = 0, task.enqueued_s, rules.waiting
        if task.shareable and (batches := waiting.by_key.get(key)):
            rows, oldest_s = sum(batch.rows for batch in batches), batches[0].oldest_s
        # A task that runs alone shares no batch with others of its key.
        others = waiting.others(key if task.shareable else None)
        self.check(task, rows, oldest_s, self._grown_work_s(others, task.enqueued_s) if others else 0.0)

    def check(self, task: Task, rows_ahead: int, oldest_s: float, other_work_s: float) -> None:
        """Predict when a new task will be answered, and store the prediction in its `predicted_s`.

        `rows_ahead` rows that can share batches with the task have waited since `oldest_s`. Other waiting batches take
        `other_work_s`, in seconds of one device.

        Raises:
            TooLate: the prediction is later than the task's objective or deadline.
        """
        now_s = task.enqueued_s
        self._saw(task.rows, now_s)
        sizes, target = self._sizes(task.lengths)
        if sizes is None:
            return
        if not rows_ahead and not other_work_s and self._device.is_idle:
            self._check_alone(task, sizes)
            return
        due_s = latency_s = self.latency_s
        if rows_ahead:
            due_s += oldest_s - self._device.start_s(now_s, other_work_s)
        work_s, own = _own_size(sizes, target, rows_ahead, task.rows, due_s, latency_s)
        task.predicted_s = self._device.start_s(now_s, other_work_s + work_s) + sizes.mean_s[own]
        spread_s = (sizes.spread_s[own] ** 2 + self._device.spread_s**2) ** 0.5
        finish_s = task.predicted_s + self._margin_s(spread_s)
        if finish_s <= min(now_s + latency_s, task.deadline.at_s) + 1e-9:
            return
        # A request that is too slow on any device must also get trials here: other models may keep this device always
        # busy.
        work_s, own = _parts(sizes, task.rows)
        alone_s = work_s + sizes.mean_s[own]
        if alone_s <= latency_s or not self._is_trial(now_s, alone_s):
            raise self._refusal(task, finish_s, rows_ahead)

    def rows_to_run(self, batches: Sequence[Batch], now_s: float) -> int:
        """Implement BatchPolicy.rows_to_run, by all waiting batches."""
        first = batches[0]
        waiting = first.rules.waiting
        others = waiting.others(first.key) if len(waiting.by_key) > 1 else ()
        other_work_s = sum(batch.rules.policy.work_s(batch, 0.0) for batch in others) / self._device.threads
        return self.choose([task for batch in batches for task in batch.tasks], now_s, other_work_s)

    def choose(self, tasks: Sequence[Task], now_s: float, other_work_s: float = 0.0) -> int:
        """Return how many rows of these tasks should run now, before batches of other keys that take `other_work_s`.

        The tasks have one key and are in order of arrival.
        """
        sizes, target = self._sizes(tasks[0].lengths)
        rows = [task.rows for task in tasks]
        if sizes is None or not tasks[0].shareable:
            return sum(rows)
        if tasks[0].priority is Priority.LOW:
            # A request of high priority that arrives during this batch waits for it, and needs time for one more batch.
            target = max(sizes.largest_within(self.latency_s / 2), 0)
            return max(sizes.rows[target], rows[0])
        return choose_rows(
            sizes, self.latency_s, target, now_s, [task.enqueued_s for task in tasks], rows, other_work_s
        )

    def work_s(self, batch: Batch, wait_s: float) -> float:
        """Implement BatchPolicy.work_s. The batch grows by the rate at which requests for the signature arrive."""
        task = batch.tasks[0]
        sizes = self._sizes(task.lengths)[0] if task.shareable else None
        return batch.work_s if sizes is None else sizes.mean_s[sizes.index(batch.rows + int(self._rate * wait_s))]

    def full_rows(self, max_rows: int, lengths: tuple[int, ...]) -> int:
        """Implement BatchPolicy.full_rows: the planned size at an unlimited rate of requests."""
        sizes = self._sizes(lengths)[0]
        if sizes is None:
            return max_rows
        return sizes.rows[choose_target(sizes, self.latency_s, self._margin, math.inf)]

    # The events.

    def taken(self, tasks: Sequence[Task]) -> None:
        """Implement BatchPolicy.taken. Every few batches, look up their costs again."""
        lengths = tasks[0].lengths
        if not tasks[0].shareable:
            return
        sizes, target, batches = self._known.get(lengths, (None, 0, 0))
        if batches and sizes is not None:
            self._known[lengths] = (sizes, target, batches - 1)
        else:
            self._look_up(lengths)

    def answered(self, tasks: Sequence[Task], run_s: float, now_s: float) -> Sequence[float]:
        """Implement BatchPolicy.answered. Adjust the margin to the share of the tasks that waited too long."""
        if promised := [task for task in tasks if task.priority is Priority.HIGH]:
            due_s = now_s - self.latency_s - 1e-9
            late = sum(task.enqueued_s < due_s for task in promised) / len(promised)
            margin = self._margin + _REACTION * (late - _LATE_SHARE * self._late_share)
            least, most = _LEAST_MARGIN * self._usual_margin, _MOST_MARGIN * self._usual_margin
            self._margin = min(max(margin, least), most)
        return [now_s - task.predicted_s for task in tasks if task.predicted_s]

    def record_latency(self, latency_s: float) -> None:
        """Implement BatchPolicy.record_latency."""
        self._host.record_latency(latency_s)

    # The state.

    @property
    def host_s(self) -> float:
        """Implement BatchPolicy.host_s."""
        return self._host.seconds

    @property
    def latency_s(self) -> float:
        """Part of the objective that remains for the queue and the device, in seconds."""
        return self.objective_s - self._host.seconds

    def _saw(self, rows: int, now_s: float) -> None:
        """Record the arrival of a request of `rows` rows, whether or not it is admitted."""
        tau_s = _RATE_OBJECTIVES * self.objective_s
        self._rate = self._rate * math.exp((self._seen_s - now_s) / tau_s) + rows / tau_s
        self._seen_s = now_s

    def _sizes(self, lengths: tuple[int, ...]) -> "tuple[Sizes | None, int]":
        """Return the costs of batches, or None if they are unknown, and the index of the planned size."""
        known = self._known.get(lengths)
        if known is None:
            known = self._look_up(lengths)
        return known[0], known[1]

    def _margin_s(self, spread_s: float) -> float:
        """Return the seconds to add to a mean time with this standard deviation for the percentile to hold.

        At most half of `latency_s`: where costs vary more, refusing more requests does not help.
        """
        return min(self._margin * spread_s, self.latency_s / 2)

    def _grown_work_s(self, batches: Sequence[Batch], now_s: float) -> float:
        """Return the predicted seconds on one device of waiting batches of other keys. Each grows until it starts."""
        works_s = 0.0
        keys = Counter(batch.rules.name for batch in batches)
        for batch in batches:
            wait_s = self._device.start_s(now_s, works_s) - now_s
            works_s += batch.rules.policy.work_s(batch, wait_s / (keys[batch.rules.name] + 1))
        return works_s

    def _check_alone(self, task: Task, sizes: "Sizes") -> None:
        """Check a task that starts at once and alone by its mean cost: refusing it would speed up no other request."""
        now_s = task.enqueued_s
        work_s, own = _parts(sizes, task.rows)
        task.predicted_s = self._device.start_s(now_s, work_s) + sizes.mean_s[own]
        due_s = min(now_s + self.latency_s, task.deadline.at_s)
        if task.predicted_s > due_s and not self._is_trial(now_s, task.predicted_s - now_s):
            raise self._refusal(task, task.predicted_s, 0)

    def _is_trial(self, now_s: float, duration_s: float) -> bool:
        """Return whether to run a request that a free device would refuse, to measure its current cost."""
        if self._next_trial_s <= now_s:
            self._next_trial_s = now_s + _DURATIONS_A_TRIAL * duration_s
            return True
        self._next_trial_s = min(self._next_trial_s, now_s + _DURATIONS_A_TRIAL * duration_s)
        return False

    def _refusal(self, task: Task, finish_s: float, rows_ahead: int) -> TooLate:
        now_s = task.enqueued_s
        left_s, deadline_s = self.latency_s, task.deadline.remaining_s(now_s)
        limit = f"its objective of {self.objective_s * 1000:g} ms"
        if self.host_s >= _MIN_SHOWN_S:
            limit += f" minus {self.host_s * 1000:.1f} ms for the host"
        if deadline_s < left_s:
            limit = f"the request's deadline in {deadline_s * 1000:.1f} ms"
        retry_s = max(finish_s - now_s - min(left_s, deadline_s), _LEAST_RETRY_S)
        return TooLate(
            f"Servable {self._deadlines.servable_id} would finish this request in {(finish_s - now_s) * 1000:.1f} ms, "
            f"later than {limit} "
            f"({counted(rows_ahead, 'row')} {'is' if rows_ahead == 1 else 'are'} queued before it); "
            f"retry in {retry_s * 1000:.0f} ms",
            retry_s,
        )

    def _look_up(self, lengths: tuple[int, ...]) -> "tuple[Sizes | None, int, int]":
        costs = [self._costs.cost(self._name, rows, lengths) for rows in self._buckets]
        known = [cost for cost in costs if cost is not None]
        if len(known) < len(costs):
            self._known[lengths] = (None, 0, 0)
        else:
            sizes = Sizes(self._buckets, tuple(cost.mean_s for cost in known), tuple(cost.spread_s for cost in known))
            # Leave room for two batches of the smallest size. Otherwise no batch could run and correct the allowance.
            self._host.cap(2 * sizes.mean_s[0])
            target = choose_target(sizes, self.latency_s, self._margin, self._rate)
            self._known[lengths] = (sizes, target, _BATCHES_A_LOOK)
        return self._known[lengths]


# A late response raises the allowance by about this share of the objective. A response in time lowers it by this step
# times the target share.
_STEP_OBJECTIVES = 1 / 40
# Largest share of the objective. A larger allowance helps no request: the batch and the requests behind it need the
# rest.
_MOST_OBJECTIVES = 0.5


class HostAllowance:
    """Seconds reserved for the time from a request's arrival to the queue, and from a batch's end to its responses.

    This time contains decoding, encoding, and an event loop that is busy with other requests. The allowance rises with
    every late response and falls with every response in time. It settles where the target share of responses is late
    (stochastic approximation of a quantile, Robbins and Monro). Not thread-safe.
    """

    def __init__(self, objective_s: float, percentile: float) -> None:
        """Start with no allowance."""
        self._objective_s = objective_s
        self._late_share = _LATE_SHARE * (1.0 - percentile / 100.0)
        self._most_s = _MOST_OBJECTIVES * objective_s
        self.seconds = 0.0

    def cap(self, needed_s: float) -> None:
        """Cap the allowance so that `needed_s` of the objective remain for the batcher."""
        self._most_s = max(min(_MOST_OBJECTIVES * self._objective_s, self._objective_s - needed_s), 0.0)
        self.seconds = min(self.seconds, self._most_s)

    def record_latency(self, latency_s: float) -> None:
        """Record a response that went out `latency_s` after its request arrived."""
        late = latency_s > self._objective_s
        step = _STEP_OBJECTIVES * self._objective_s * (late - self._late_share)
        self.seconds = min(max(self.seconds + step, 0.0), self._most_s)


# A size for which some requests must be refused is planned only if it raises the goodput by this factor.
_LEAST_GAIN = 1.02


@dataclass(frozen=True, slots=True)
class Sizes:
    """Costs of batches by allowed size: `rows`, ascending, mean seconds and standard deviation."""

    rows: tuple[int, ...]
    mean_s: tuple[float, ...]
    spread_s: tuple[float, ...]

    def index(self, rows: int) -> int:
        """Return the index of the smallest size that holds `rows`, or of the largest size if none does."""
        return min(bisect.bisect_left(self.rows, rows), len(self.rows) - 1)

    def largest_within(self, seconds: float) -> int:
        """Return the index of the largest size that takes at most `seconds` on average, or -1 if none does."""
        return bisect.bisect_right(self.mean_s, seconds) - 1


def capacity(sizes: Sizes, latency_s: float) -> float:
    """Return the rows a second that can be answered within `latency_s` at mean costs if none is refused."""
    return max(
        (rows / mean for rows, mean in zip(sizes.rows, sizes.mean_s, strict=True) if 2 * mean <= latency_s),
        default=0.0,
    )


def choose_target(sizes: Sizes, latency_s: float, margins: float, rows_per_s: float) -> int:
    """Return the index of the size that answers most rows in time, the largest of equals.

    `margins`: the standard deviations by which a batch is expected to exceed its mean.
    """
    safe = 0
    safe_goodput = risky_goodput = 0.0
    risky = -1
    smaller = 0
    for index, (rows, mean_s) in enumerate(zip(sizes.rows, sizes.mean_s, strict=True)):
        window_s = latency_s - mean_s - margins * sizes.spread_s[index]
        if window_s <= 0.0:
            break
        if window_s >= mean_s:
            goodput = min(rows_per_s, rows / mean_s)
            if goodput >= safe_goodput:
                safe, safe_goodput = index, goodput
        else:
            in_time = min(float(rows), rows_per_s * window_s)
            # Rows that the next smaller size also holds are no gain of this size.
            if in_time > smaller and in_time / mean_s > risky_goodput:
                risky, risky_goodput = index, in_time / mean_s
        smaller = rows
    return risky if risky_goodput > _LEAST_GAIN * safe_goodput else safe


def choose_rows(
    sizes: Sizes,
    latency_s: float,
    target: int,
    now_s: float,
    enqueued_s: Sequence[float],
    rows: Sequence[int],
    other_work_s: float = 0.0,
) -> int:
    """Return how many waiting rows to run now if the device is free.

    The result is an allowed size, or the rows of the first task if no size holds them. `enqueued_s` and `rows` belong
    to the tasks, oldest first. The choice minimizes the late rows, including those left for the next batch. Among
    equals it minimizes the cost for each row, then takes the largest size. Batches of other keys take `other_work_s`
    seconds and run before the next batch.
    """
    ends = list(itertools.accumulate(rows))
    total = ends[-1]
    best = sizes.rows[0]
    best_late, best_rate = total + 1, 0.0
    for index, size in enumerate(sizes.rows):
        taken = bisect.bisect_right(ends, size)
        if not taken:
            continue
        finish_s = now_s + sizes.mean_s[index]
        late = _rows_before(finish_s - latency_s, enqueued_s, ends, 0, taken)
        if taken < len(ends):
            rest = sizes.index(total - ends[taken - 1])
            next_s = finish_s + other_work_s + sizes.mean_s[min(rest, max(target, index))]
            late += _rows_before(next_s - latency_s, enqueued_s, ends, taken, len(ends))
        rate = ends[taken - 1] / sizes.mean_s[index]
        if (-late, rate) >= (-best_late, best_rate):
            best, best_late, best_rate = size, late, rate
        if taken == len(ends):
            break
    return max(best, rows[0])


def _rows_before(time_s: float, enqueued_s: Sequence[float], ends: Sequence[int], first: int, last: int) -> int:
    """Return the rows of the tasks from `first` to `last` that arrived more than a nanosecond before `time_s`."""
    late = bisect.bisect_left(enqueued_s, time_s - 1e-9, first, last)
    if late == first:
        return 0
    return ends[late - 1] - (ends[first - 1] if first else 0)


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
