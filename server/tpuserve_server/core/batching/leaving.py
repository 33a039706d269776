"""When and why a waiting batch may leave the queue."""

from collections import deque

from tpuserve_server.core.batching.batch import Batch
from tpuserve_server.core.batching.batch_run import BatchRun, Departure


def ready_s(batches: deque[Batch]) -> float:
    """Return when the first batch of a key may leave.

    A full or closed batch may leave at once. Any other waits for its timeout, or until the clients that were just
    answered have had time to send again.
    """
    first = batches[0]
    if len(batches) > 1 or first.is_full:
        return first.oldest_s
    regroup = first.lane.regroup
    if regroup is not None:
        return max(first.oldest_s, regroup.until_s(first.rows))
    return first.oldest_s + first.lane.timeout_s


def begin_run(batches: deque[Batch], now_s: float) -> BatchRun:
    """Return the record of the first batch of a key, which leaves now."""
    first = batches[0]
    if not first.lane.waits or not first.tasks[0].shareable:
        return BatchRun(Departure.AT_ONCE, first.oldest_s)
    if first.is_full:
        return BatchRun(Departure.FULL, max(task.enqueued_s for task in first.tasks))
    if len(batches) > 1:
        return BatchRun(Departure.CLOSED, min(batches[1].oldest_s, now_s))
    waits_for_clients = first.lane.regroup is not None
    return BatchRun(Departure.REGROUP if waits_for_clients else Departure.TIMEOUT, min(ready_s(batches), now_s))
