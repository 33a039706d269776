"""ObjectivePlan: how one signature keeps its latency objective, by what its batches cost and how fast requests come."""

import math
from collections.abc import Sequence
from statistics import NormalDist

from tpuserve_server.core.batching.host_allowance import HostAllowance
from tpuserve_server.core.batching.objective import Sizes, choose_rows, choose_target
from tpuserve_server.core.batching.options import LatencyObjective
from tpuserve_server.core.batching.task import Task
from tpuserve_server.core.cost_model import CostModel
from tpuserve_server.core.priority import Priority

# The rate is known from what came in this many objectives' time: long enough to count, short enough to see a burst.
_RATE_OBJECTIVES = 2.0
# After this many batches of a shape their costs are looked up again.
_BATCHES_A_LOOK = 8
# Half of what the objective allows to be late, because a controller overshoots; and how fast it reacts: a batch that is
# late altogether widens the margin by this many spreads.
_LATE_SHARE = 0.5
_REACTION = 1.0
# The margin moves between these multiples of the percentile's own in a normal distribution.
_LEAST_MARGIN = 0.4
_MOST_MARGIN = 3.5


class ObjectivePlan:
    """One signature of one version. Not safe for threads."""

    def __init__(
        self, signature_name: str, objective: LatencyObjective, buckets: tuple[int, ...], costs: CostModel
    ) -> None:
        """Nothing has come yet. `buckets` are the allowed sizes, ascending, at least one."""
        self.objective_s = objective.latency_s
        self._host = HostAllowance(objective.latency_s, objective.percentile)
        self._name = signature_name
        self._buckets = buckets
        self._costs = costs
        self._late_share = 1.0 - objective.percentile / 100.0
        self._usual_margin = self._margin = NormalDist().inv_cdf(objective.percentile / 100.0)
        self._rate = 0.0
        self._seen_s = -math.inf
        # By padded lengths: costs, the index of the size to plan for, batches until both are looked up again.
        self._known: dict[tuple[int, ...], tuple[Sizes | None, int, int]] = {}

    @property
    def host_s(self) -> float:
        """What of the objective is kept for the host."""
        return self._host.seconds

    @property
    def latency_s(self) -> float:
        """What is left of it for the queue and the device."""
        return self.objective_s - self._host.seconds

    def sizes(self, lengths: tuple[int, ...]) -> tuple[Sizes | None, int]:
        """What batches cost, None while nobody knows; and the index of the size to plan for."""
        known = self._known.get(lengths)
        if known is None:
            known = self._look_up(lengths)
        return known[0], known[1]

    def margin_s(self, spread_s: float) -> float:
        """How much longer than on average something may take, by its standard deviation, for the percentile to hold.

        Half of the objective at most: where costs vary that much, refusing more helps nobody.
        """
        return min(self._margin * spread_s, self.latency_s / 2)

    @property
    def rows_per_s(self) -> float:
        """How fast requests have come lately."""
        return self._rate

    def saw(self, rows: int, now_s: float) -> None:
        """A request of `rows` rows has come, whether or not it is taken."""
        tau_s = _RATE_OBJECTIVES * self.objective_s
        self._rate = self._rate * math.exp((self._seen_s - now_s) / tau_s) + rows / tau_s
        self._seen_s = now_s

    def started(self, lengths: tuple[int, ...]) -> None:
        """A batch of this shape is about to run: every few of them what it costs is looked up again."""
        sizes, target, batches = self._known.get(lengths, (None, 0, 0))
        if batches and sizes is not None:
            self._known[lengths] = (sizes, target, batches - 1)
        else:
            self._look_up(lengths)

    def rows_to_run(self, tasks: Sequence[Task], now_s: float, others_s: float) -> int:
        """How many rows of these tasks of one key, the oldest first, should run now; others' then take `others_s`."""
        sizes, target = self.sizes(tasks[0].lengths)
        rows = [task.rows for task in tasks]
        if sizes is None or not tasks[0].shareable:
            return sum(rows)
        if tasks[0].priority is Priority.LOW:
            # Whoever of high priority comes while it runs must wait for it, and has time for one more batch.
            target = max(sizes.largest_within(self.latency_s / 2), 0)
            return max(sizes.rows[target], rows[0])
        return choose_rows(sizes, self.latency_s, target, now_s, [task.enqueued_s for task in tasks], rows, others_s)

    def answered(self, latency_s: float) -> None:
        """An answer of high priority went out `latency_s` after its request had come."""
        self._host.answered(latency_s)

    def finished(self, tasks: Sequence[Task], now_s: float) -> None:
        """These were answered together: the margin follows the share of those who had to wait too long."""
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
            # Two batches of the smallest size: else nothing could run any more that would show how little is needed.
            self._host.leave(2 * sizes.mean_s[0])
            target = choose_target(sizes, self.latency_s, self._margin, self._rate)
            self._known[lengths] = (sizes, target, _BATCHES_A_LOOK)
        return self._known[lengths]
