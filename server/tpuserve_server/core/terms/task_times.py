"""TaskTimes: when one request, or one step of it, passed through a batcher."""

from dataclasses import dataclass

from tpuserve_server.core.terms.batch_run import BatchRun
from tpuserve_server.core.terms.types import ServableId


@dataclass(slots=True)
class TaskTimes:
    """One pass of a request through a batcher. Read-only after its creation. Times are those of `Clock.monotonic_s`.

    Not frozen, because that takes three times as long to create, and every request creates one.

    `runs` are the batches that the request left the queue with: none if it ended in the queue, several if it ran in
    parts. A request that ended while its batch was about to start has a run whose `started_s` is 0. The request's
    coroutine continued at `resumed_s`.
    """

    servable: ServableId
    enqueued_s: float
    runs: tuple[BatchRun, ...]
    resumed_s: float
