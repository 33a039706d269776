"""Autoscaling of Ray Serve by the time that requests wait for the device. Ray's controller runs it.

Light imports only: Ray copies this module into the controller.
"""

import math
from collections.abc import Mapping
from typing import Any, Final

# Name of the replicas' own metric (`Replica.record_autoscaling_stats`): mean wait in seconds.
QUEUE_WAIT: Final = "queue_wait_s"
# Below this share of the target, one replica less is enough. A busy device without a queue also waits about 0, so the
# policy removes one replica at a time, and Ray waits `downscale_delay_s` before each.
_IDLE_SHARE: Final = 0.25
# The most that one decision multiplies the replicas by: the wait of an overloaded server has no limit.
_MOST_GROWTH: Final = 2.0


class QueueWaitPolicy:
    """Chooses the number of replicas that keeps the mean queue wait at a target.

    In a Serve configuration: `policy_function: tpuserve_server.hosts.ray.queue_wait_policy:QueueWaitPolicy`, and
    `policy_kwargs: {target_queue_wait_s: 0.01}`.
    """

    def __init__(self, target_queue_wait_s: float = 0.01) -> None:
        """Keep the mean wait at `target_queue_wait_s` seconds, above 0. Raises ValueError."""
        if not target_queue_wait_s > 0:
            raise ValueError(f"target_queue_wait_s must be above 0; was {target_queue_wait_s!r}")
        self._target_s = target_queue_wait_s

    def __call__(self, ctx: Any) -> tuple[int, dict[str, Any]]:  # noqa: ANN401 - Ray's AutoscalingContext
        """Return the number of replicas to run, within the limits of the deployment, and no state."""
        queued = (ctx.total_queued_requests or 0) > 0
        wished = self.choose(ctx.current_num_replicas, (ctx.aggregated_metrics or {}).get(QUEUE_WAIT, {}), queued)
        return min(max(wished, ctx.capacity_adjusted_min_replicas), ctx.capacity_adjusted_max_replicas), {}

    def choose(self, current: int, waits_s: Mapping[Any, float], is_queued: bool) -> int:
        """Return the number of replicas for `current` ones with these mean waits.

        `is_queued`: requests wait at the proxies, because every replica has `max_ongoing_requests`.
        """
        wait_s = sum(waits_s.values()) / len(waits_s) if waits_s else 0.0
        if wait_s > self._target_s:
            return math.ceil(current * min(wait_s / self._target_s, _MOST_GROWTH))
        if is_queued:
            return current + 1
        return current - 1 if waits_s and wait_s < _IDLE_SHARE * self._target_s else current
