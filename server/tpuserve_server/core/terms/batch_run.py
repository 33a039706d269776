"""Records of a run: BatchRun of a batch, which all its tasks share, and TaskTimes of one request."""

import enum
import itertools

from tpuserve_server.core.terms.types import ServableId

_numbers = itertools.count(1)


class Departure(enum.Enum):
    """Why a batch was ready to leave the queue. The value completes `waited …`, for people."""

    AT_ONCE = "for no other request"
    FULL = "until the batch was full"
    CLOSED = "until the next request did not fit into the batch"
    TIMEOUT = "for more requests (batch_timeout_micros)"
    REGROUP = "for clients that had just been answered"


class BatchRun:
    """One batch from the moment it leaves the queue: why it left, how large it was, and when it ran.

    Its device thread writes the fields, others read them later.

    Times are those of `Clock.monotonic_s`, and 0 until they are known.
    """

    __slots__ = (
        "begun_s", "bucket", "departure", "ended_s", "failed", "number", "ready_s", "requests", "rows", "started_s",
    )  # fmt: skip

    def __init__(self, departure: Departure, ready_s: float) -> None:
        """Record that a batch leaves that was ready at `ready_s`."""
        # Unique in this process.
        self.number = next(_numbers)
        self.departure = departure
        self.ready_s = ready_s
        self.requests = 0
        # Rows of the requests, and with padding.
        self.rows = 0
        self.bucket = 0
        # A device thread began to join the rows.
        self.started_s = 0.0
        # The device had the batch: it was joined, and the batch before it had ended.
        self.begun_s = 0.0
        self.ended_s = 0.0
        self.failed = False

    def again(self) -> "BatchRun":
        """Return the record of another run of a part of this batch."""
        return BatchRun(self.departure, self.ready_s)


class TaskTimes:
    """One pass of a request through a batcher. Read-only after its creation. Times are those of `Clock.monotonic_s`.

    `runs` are the batches that the request left the queue with: none if it ended in the queue, several if it ran in
    parts. A request that ended while its batch was about to start has a run whose `started_s` is 0. The request's
    coroutine continued at `resumed_s`.
    """

    __slots__ = ("enqueued_s", "resumed_s", "runs", "servable")

    def __init__(self, servable: ServableId, enqueued_s: float, runs: tuple[BatchRun, ...], resumed_s: float) -> None:
        """Store the fields."""
        self.servable = servable
        self.enqueued_s = enqueued_s
        self.runs = runs
        self.resumed_s = resumed_s
