"""ObjectivePlan: how one signature keeps its latency objective, given the costs of its batches and its request rate."""

import math
from collections.abc import Sequence
from statistics import NormalDist

from tpuserve_server.core.batching.host_allowance import HostAllowance
from tpuserve_server.core.batching.objective import Sizes, choose_rows, choose_target
from tpuserve_server.core.batching.options import LatencyObjective
from tpuserve_server.core.batching.task import Task
from tpuserve_server.core.cost_model import CostModel
from tpuserve_server.core.priority import Priority

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
