"""Answers for the callers of a run that hangs, and for those behind it."""

from collections.abc import Sequence

from tpuserve_server.core.batching.task import Task, complete
from tpuserve_server.core.errors import DeadlineExceeded, Unavailable
from tpuserve_server.core.metrics import Metrics
from tpuserve_server.core.types import ServableId


def hung_error(servable_id: ServableId, limit_s: float) -> Unavailable:
    """Return the error of requests that did not begin, because a run has taken `limit_s`."""
    return Unavailable(f"Servable {servable_id} does not respond: a run has taken {limit_s:g} s")


def release(
    servable_id: ServableId, hung: Sequence[Task], behind: Sequence[Task], limit_s: float, metrics: Metrics
) -> None:
    """Answer the tasks of runs that have taken `limit_s`, and of those behind them."""
    for task in behind:
        metrics.task_dropped(servable=servable_id, reason="hung", priority=task.priority)
    # Clients retry UNAVAILABLE on other servers. A request that may be the reason of the hang must not go there.
    late = DeadlineExceeded(f"The run of {servable_id} has taken more than {limit_s:g} s")
    blocked = hung_error(servable_id, limit_s)
    complete([*((task, late) for task in hung), *((task, blocked) for task in behind)])
