"""HungRuns: finds the runs of a batcher that hang, and answers their callers and those behind them."""

import logging
import threading
from collections.abc import Callable, Sequence

from tpuserve_server.core.batching.batch_metrics import BatchMetrics
from tpuserve_server.core.batching.device_queue import DeviceQueue
from tpuserve_server.core.batching.task import Task, complete
from tpuserve_server.core.batching.watchdog import Watchdog
from tpuserve_server.core.terms.deadline import Clock
from tpuserve_server.core.terms.errors import DeadlineExceeded, Unavailable, counted
from tpuserve_server.core.terms.types import ServableId

_log = logging.getLogger(__name__)


class HungRuns:
    """The part of a batcher that the watchdog sees (`watchdog.Watched`). It takes the batcher's lock itself."""

    def __init__(
        self,
        servable_id: ServableId,
        device: DeviceQueue,
        lock: threading.Condition,
        clock: Clock,
        metrics: BatchMetrics,
        *,
        drain: Callable[[], Sequence[Task]],
        give_back: Callable[[int], None],
        watchdog: Watchdog | None,
    ) -> None:
        """Use `drain` to empty the queue, and `give_back` to end the turn of a device thread, both with `lock` held."""
        self._id = servable_id
        self._device = device
        self._lock = lock
        self._clock = clock
        self._metrics = metrics
        self._drain = drain
        self._give_back = give_back
        self._watchdog = watchdog
        # The error of all requests while every device thread hangs. `lock` guards it.
        self.error: Unavailable | None = None

    @property
    def servable_id(self) -> ServableId:
        """The version whose batches run."""
        return self._id

    def watch(self) -> None:
        """Let the watchdog find runs that hang."""
        if self._watchdog is not None:
            self._watchdog.watch(self)

    def forget(self) -> None:
        """End the watch."""
        if self._watchdog is not None:
            self._watchdog.forget(self)

    def release_hung(self, limit_s: float) -> float:
        """Answer the callers of runs that have taken `limit_s`. Return when the next run may have taken that long.

        If every device thread hangs, answer the queued callers, too, and set the error of new requests until a run
        ends.
        """
        with self._lock:
            now_s = self._clock.monotonic_s()
            batches, behind = self._device.mark_hung(now_s, limit_s)
            hung = [task for batch in batches for task in batch.tasks]
            threads = self._device.hung_threads()
            if batches and len(threads) == self._device.threads:
                self.error = self._blocked(limit_s)
                behind += self._drain()
            for thread in threads:
                self._give_back(thread)
            next_s = self._device.next_hung_s(now_s, limit_s)
        if batches:
            self._metrics.runs_hung(servable=self._id, count=len(batches))
            _log.error(
                "A run of %s has taken more than %g s (--run_timeout_seconds). The server answers its %s and %d "
                "behind it with errors",
                *(self._id, limit_s, counted(len(hung), "request"), len(behind)),
            )
            self._answer(hung, behind, limit_s)
        return next_s

    def hung_s(self) -> float:
        """Return for how long the longest hung run has taken, or 0 if none hangs."""
        with self._lock:
            since_s = self._device.hung_since_s()
        return 0.0 if since_s is None else self._clock.monotonic_s() - since_s

    def ended(self) -> None:
        """Record that a batch that counted as hung has ended. Called with the lock held."""
        self.error = None
        _log.warning("The run of %s that hung has ended", self._id)
        if self._watchdog is not None:
            self._watchdog.wake()

    def _blocked(self, limit_s: float) -> Unavailable:
        return Unavailable(f"Servable {self._id} does not respond: a run has taken {limit_s:g} s")

    def _answer(self, hung: Sequence[Task], behind: Sequence[Task], limit_s: float) -> None:
        for task in behind:
            self._metrics.task_dropped(servable=self._id, reason="hung", priority=task.priority)
        # Clients retry UNAVAILABLE on other servers. A request that may be the reason of the hang must not go there.
        late = DeadlineExceeded(f"The run of {self._id} has taken more than {limit_s:g} s")
        blocked = self._blocked(limit_s)
        complete([*((task, late) for task in hung), *((task, blocked) for task in behind)])
