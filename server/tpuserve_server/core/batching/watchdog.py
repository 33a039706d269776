"""Watchdog: finds runs that hang and devices that are lost, and tells when the process should be replaced."""

import logging
import math
import threading
from collections.abc import Callable, Sequence

from tpuserve_server.core.batching.batch_metrics import BatchMetrics
from tpuserve_server.core.batching.device_queue import DeviceQueue
from tpuserve_server.core.batching.task import Task, complete
from tpuserve_server.core.system.changes import Listeners
from tpuserve_server.core.terms.deadline import Clock, WaitingClock
from tpuserve_server.core.terms.errors import DeadlineExceeded, Unavailable, counted
from tpuserve_server.core.terms.options import WatchdogOptions
from tpuserve_server.core.terms.server_state import HUNG, LOST, Replacement
from tpuserve_server.core.terms.types import ServableId

_log = logging.getLogger(__name__)


class Watchdog:
    """One thread that watches the runs of all batchers. Thread-safe.

    A process that is not live cannot repair itself: Python cannot end a thread, and a lost device stays lost.

    `_changed` guards all fields, except the listeners. The thread asks the batchers without it.
    """

    def __init__(self, clock: WaitingClock, options: WatchdogOptions) -> None:
        """Start no thread before `start`."""
        self._clock = clock
        self._limit_s = options.run_timeout_s or math.inf
        self._replace_s = self._limit_s + (options.replace_after_s or math.inf)
        self._changed = threading.Condition()
        self._watched: set[HungRuns] = set()
        self._due_s = math.inf
        self._lost = ""
        self._stopping = False
        self._listeners = Listeners("the watchdog")
        self._thread = threading.Thread(target=self._run, name="watchdog", daemon=True)

    def start(self) -> None:
        """Start the thread, unless runs have no limit."""
        if self._limit_s < math.inf:
            self._thread.start()

    def stop(self) -> None:
        """Stop to watch, and join the thread."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        if self._thread.ident is not None:
            self._thread.join()

    def watch(self, watched: "HungRuns") -> None:
        """Watch the runs of a batcher."""
        with self._changed:
            self._watched.add(watched)
            self._due_s = min(self._due_s, self._clock.monotonic_s() + self._limit_s)
            self._changed.notify()

    def forget(self, watched: "HungRuns") -> None:
        """Stop to watch a batcher."""
        with self._changed:
            self._watched.discard(watched)

    def wake(self) -> None:
        """Look at all batchers soon, because a run that hung has ended."""
        with self._changed:
            self._due_s = -math.inf
            self._changed.notify()

    def lose(self, reason: str) -> None:
        """Record that the device of a model is lost."""
        with self._changed:
            is_first = not self._lost
            self._lost = self._lost or reason
        if is_first:
            _log.error("The server is no longer ready: %s", reason)
            self._listeners.notify()

    def subscribe(self, on_change: Callable[[], None]) -> Callable[[], None]:
        """Call `on_change` after a change of the liveness, on any thread. Return a function to unsubscribe."""
        return self._listeners.subscribe(on_change)

    def lost_device(self) -> str:
        """Return why a device is lost, for people, or "" if none is."""
        return self._lost

    def why_not_live(self) -> str:
        """Return why only another process would help, for people, or "" if this one is live."""
        if self._lost:
            return self._lost
        hung = self._hung()
        return f"{', '.join(map(_describe, hung))}" if hung else ""

    def replacement(self) -> Replacement | None:
        """Return why the process should be replaced now, or None while it should go on."""
        if self._lost:
            return Replacement(LOST, self._lost)
        hung = [one for one in self._hung() if one.hung_s() >= self._replace_s]
        return Replacement(HUNG, ", ".join(map(_describe, hung))) if hung else None

    def _hung(self) -> "list[HungRuns]":
        with self._changed:
            watched = list(self._watched)
        return sorted((one for one in watched if one.hung_s()), key=lambda one: one.servable_id)

    def _run(self) -> None:
        reported = ("", False)
        while self._wait():
            state = (self._review(), self.replacement() is not None)
            if state != reported:
                reported = state
                self._listeners.notify()

    def _wait(self) -> bool:
        """Wait until a run may hang. Return False once stopped."""
        with self._changed:
            while not self._stopping and self._clock.monotonic_s() < self._due_s:
                self._clock.wait_until(self._changed, self._due_s)
            self._due_s = math.inf
            return not self._stopping

    def _review(self) -> str:
        """Release the callers of hung runs, and set when to look again. Return the names of versions that hang."""
        with self._changed:
            watched = list(self._watched)
        due_s = min((one.release_hung(self._limit_s) for one in watched), default=math.inf)
        hung = [one for one in watched if one.hung_s()]
        now_s = self._clock.monotonic_s()
        replace_in_s = [self._replace_s - one.hung_s() for one in hung]
        due_s = min([due_s, *(now_s + wait_s for wait_s in replace_in_s if wait_s > 0)])
        with self._changed:
            self._due_s = min(self._due_s, due_s)
        return " ".join(sorted(str(one.servable_id) for one in hung))


def _describe(hung: "HungRuns") -> str:
    return f"a run of {hung.servable_id} has taken {hung.hung_s():.0f} s (--run_timeout_seconds)"


class HungRuns:
    """The runs of a batcher, as the watchdog sees them. It takes the batcher's lock itself."""

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
        """Use `drain` to empty the queue, and `give_back` to end the turn of a worker, both with `lock` held."""
        self._id = servable_id
        self._device = device
        self._lock = lock
        self._clock = clock
        self._metrics = metrics
        self._drain = drain
        self._give_back = give_back
        self._watchdog = watchdog
        # The error of all requests while every worker hangs. `lock` guards it.
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

        If every worker hangs, answer the queued callers, too, and set the error of new requests until a run
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
