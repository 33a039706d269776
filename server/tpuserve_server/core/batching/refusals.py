"""Refusals: answers requests of one batcher that would be late, before they cost anything."""

import threading
from collections.abc import Sequence

from tpuserve_server.core.batching.batch_metrics import BatchMetrics
from tpuserve_server.core.batching.deadline_check import DeadlineCheck
from tpuserve_server.core.batching.queue import BatchQueue
from tpuserve_server.core.batching.task import Task, complete
from tpuserve_server.core.terms.deadline import Clock, Deadline
from tpuserve_server.core.terms.errors import TooLate
from tpuserve_server.core.terms.priority import Priority
from tpuserve_server.core.terms.types import ServableId

# After a refusal, requests are checked before they are decoded for this long.
_REFUSES_FOR_S = 1.0


class Refusals:
    """Counts requests that are late, and checks others before they are decoded for a second after each of them.

    Without late requests the check costs nothing. Thread-safe: it takes the batcher's lock for the queue. A lost update
    of its time is harmless.
    """

    def __init__(
        self,
        servable_id: ServableId,
        queue: BatchQueue,
        deadlines: DeadlineCheck,
        lock: threading.RLock,
        clock: Clock,
        metrics: BatchMetrics,
    ) -> None:
        """Check the requests of `queue`, which `lock` guards."""
        self._id = servable_id
        self._queue = queue
        self._deadlines = deadlines
        self._lock = lock
        self._clock = clock
        self._metrics = metrics
        # Requests are checked before they are decoded until then. 0 if none has been refused for a while.
        self._until_s = 0.0

    @property
    def is_active(self) -> bool:
        """Whether a request has been late within the last second, or is expected to be."""
        return self._until_s > 0.0

    def check(self, signature_name: str, deadline: Deadline, priority: Priority = Priority.HIGH) -> None:
        """Check whether a request would be in time, before it is decoded. Cheap.

        Raises:
            TooLate: even a request of one row would be answered after its deadline.
        """
        if not self._until_s:
            return
        now_s = self._clock.monotonic_s()
        try:
            with self._lock:
                self._queue.check_deadline(signature_name, deadline, priority, now_s)
                if now_s > self._until_s:
                    self._until_s = 0.0
        except TooLate:
            self.refused(priority, now_s)
            raise

    def lateness_s(self, deadline: Deadline, now_s: float) -> float:
        """Return by how many seconds a request of high priority for any signature would miss its deadline, or 0.

        It is 0, too, for a signature with a latency objective, and if no request has been refused lately.
        """
        if not self._until_s:
            return 0.0
        with self._lock:
            lateness_s = self._queue.lateness_s(deadline, now_s)
        if lateness_s:
            self.begin(now_s)
        return lateness_s

    def begin(self, now_s: float) -> None:
        """Check requests before they are decoded from now on, because one is late."""
        self._until_s = now_s + _REFUSES_FOR_S

    def refused(self, priority: Priority, now_s: float) -> None:
        """Count a request that was refused because it would be late."""
        self.begin(now_s)
        self._metrics.task_dropped(servable=self._id, reason="too_late", priority=priority)

    def answer(self, tasks: Sequence[Task], now_s: float) -> None:
        """Answer waiting tasks that cannot be in time any more."""
        self.begin(now_s)
        for task in tasks:
            if task.split_request is not None and task.split_request.failed:
                continue
            reason = "expired" if task.deadline.expired(now_s) else "too_late"
            self._metrics.task_dropped(servable=self._id, reason=reason, priority=task.priority)
            complete([(task, self._deadlines.hopeless_error(task.deadline, now_s))])
