"""ObjectivePlan: how one signature keeps its latency objective, given the costs of its batches and its request rate.

`L` is the objective, and `c(b)` is the cost of a batch of `b` rows. Batches run back to back, so a request that arrives
just after a batch has begun waits for that batch and then for its own. If `2 c(b) <= L`, every request is in time, up
to a rate of `b / c(b)` rows a second. Above that rate some requests are late or refused in any case, and larger batches
may pay. The next batch can answer in time only the requests that arrive in the last `L - c(b)` seconds of the batch
before it. The result is `min(b, rate (L - c(b))) / c(b)` rows a second in time.
"""

import bisect
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

from tpuserve_server.core.batching.cost_model import CostModel
from tpuserve_server.core.batching.parameters import LatencyObjective
from tpuserve_server.core.batching.task import Task
from tpuserve_server.core.terms.priority import Priority

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


class ObjectivePlan:
    """The objective of one signature of one version. Not thread-safe."""

    def __init__(
        self, signature_name: str, objective: LatencyObjective, buckets: tuple[int, ...], costs: CostModel
    ) -> None:
        """Start with a request rate of 0. `buckets` are the allowed sizes, ascending, at least one."""
        self.objective_s = objective.latency_s
        self._host = HostAllowance(objective.latency_s, objective.percentile)
        self._name = signature_name
        self._buckets = buckets
        self._costs = costs
        self._late_share = 1.0 - objective.percentile / 100.0
        self._usual_margin = self._margin = NormalDist().inv_cdf(objective.percentile / 100.0)
        self._rate = 0.0
        self._seen_s = -math.inf
        # By padded lengths: costs, the index of the planned size, and the batches until both are looked up again.
        self._known: dict[tuple[int, ...], tuple[Sizes | None, int, int]] = {}

    @property
    def host_s(self) -> float:
        """Part of the objective that is reserved for the host, in seconds."""
        return self._host.seconds

    @property
    def latency_s(self) -> float:
        """Part of the objective that remains for the queue and the device, in seconds."""
        return self.objective_s - self._host.seconds

    def sizes(self, lengths: tuple[int, ...]) -> tuple[Sizes | None, int]:
        """Return the costs of batches, or None if they are unknown, and the index of the planned size."""
        known = self._known.get(lengths)
        if known is None:
            known = self._look_up(lengths)
        return known[0], known[1]

    def margin_s(self, spread_s: float) -> float:
        """Return the seconds to add to a mean time with this standard deviation for the percentile to hold.

        At most half of `latency_s`: where costs vary more, refusing more requests does not help.
        """
        return min(self._margin * spread_s, self.latency_s / 2)

    @property
    def rows_per_s(self) -> float:
        """Current rate of requests, in rows a second."""
        return self._rate

    def saw(self, rows: int, now_s: float) -> None:
        """Record the arrival of a request of `rows` rows, whether or not it is admitted."""
        tau_s = _RATE_OBJECTIVES * self.objective_s
        self._rate = self._rate * math.exp((self._seen_s - now_s) / tau_s) + rows / tau_s
        self._seen_s = now_s

    def started(self, lengths: tuple[int, ...]) -> None:
        """Record that a batch of these lengths is about to run. Every few batches, look up its costs again."""
        sizes, target, batches = self._known.get(lengths, (None, 0, 0))
        if batches and sizes is not None:
            self._known[lengths] = (sizes, target, batches - 1)
        else:
            self._look_up(lengths)

    def rows_to_run(self, tasks: Sequence[Task], now_s: float, other_work_s: float) -> int:
        """Return how many rows of these tasks should run now, before batches of other keys that take `other_work_s`.

        The tasks have one key and are in order of arrival.
        """
        sizes, target = self.sizes(tasks[0].lengths)
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

    def record_latency(self, latency_s: float) -> None:
        """Record a response of high priority that went out `latency_s` after its request arrived."""
        self._host.record_latency(latency_s)

    def finished(self, tasks: Sequence[Task], now_s: float) -> None:
        """Adjust the margin to the share of these tasks, answered in one batch, that waited too long."""
        promised = [task for task in tasks if task.priority is Priority.HIGH]
        if not promised:
            return
        due_s = now_s - self.latency_s - 1e-9
        late = sum(task.enqueued_s < due_s for task in promised) / len(promised)
        margin = self._margin + _REACTION * (late - _LATE_SHARE * self._late_share)
        least, most = _LEAST_MARGIN * self._usual_margin, _MOST_MARGIN * self._usual_margin
        self._margin = min(max(margin, least), most)

    def _look_up(self, lengths: tuple[int, ...]) -> tuple[Sizes | None, int, int]:
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
