"""Autoscaling of Ray Serve by the work that arrives, admitted or refused. Ray's controller runs it.

Light imports only: Ray copies this module into the controller.
"""

import math
from collections.abc import Mapping
from typing import Any, Final

# Name of the replicas' own metric (`Replica.record_autoscaling_stats`): `tpuserve_demand_ratio`.
DEMAND: Final = "demand_ratio"
# The number of replicas stays if the demand differs from the target by at most this share, as in Kubernetes.
_TOLERANCE: Final = 0.1


class DemandPolicy:
    """Chooses the number of replicas that keeps the demand of each at a target.

    In a Serve configuration: `policy_function: tpuserve_server.hosts.ray.demand_policy:DemandPolicy`, and
    `policy_kwargs: {target_demand: 0.7}`.
    """

    def __init__(self, target_demand: float = 0.7) -> None:
        """Keep the mean demand at `target_demand`, above 0. Raises ValueError."""
        if not target_demand > 0:
            raise ValueError(f"target_demand must be above 0; was {target_demand!r}")
        self._target = target_demand

    def __call__(self, ctx: Any) -> tuple[int, dict[str, Any]]:  # noqa: ANN401 - Ray's AutoscalingContext
        """Return the number of replicas to run, within the limits of the deployment, and no state."""
        queued = (ctx.total_queued_requests or 0) > 0
        wished = self.choose(ctx.current_num_replicas, (ctx.aggregated_metrics or {}).get(DEMAND, {}), queued)
        return min(max(wished, ctx.capacity_adjusted_min_replicas), ctx.capacity_adjusted_max_replicas), {}

    def choose(self, current: int, demands: Mapping[Any, float], is_queued: bool) -> int:
        """Return the number of replicas for `current` ones, of which some report these demands.

        Replicas that do not report yet start, and have no demand. `is_queued`: requests wait at the proxies, because
        every replica has `max_ongoing_requests`. No replica knows of them.
        """
        total = sum(demands.values())
        wished = math.ceil(total / self._target)
        # A deployment without replicas may still have the reports of those that have ended.
        if not demands or not current or abs(total / (current * self._target) - 1) <= _TOLERANCE:
            wished = current
        return max(wished, current + 1) if is_queued else wished
