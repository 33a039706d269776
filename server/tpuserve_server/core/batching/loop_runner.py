"""LoopRunner: runs the next batch of a version on the event loop, or wakes a worker of the version, which runs it."""

import asyncio
import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Final, TypeAlias

from tpuserve_server.core.batching.arrays import choose_bucket
from tpuserve_server.core.batching.batch import Batch
from tpuserve_server.core.batching.device_share import LoopShare
from tpuserve_server.core.batching.queue import BatchQueue
from tpuserve_server.core.batching.task import Task
from tpuserve_server.core.terms.deadline import WaitingClock

# LoopRuns: whether the event loop may run a batch instead of a device thread.
#
# A device thread costs a few requests for a small model more than the model itself: the thread wakes up, competes with
# the event loop for the interpreter's lock, and wakes the loop again. Such a batch is cheaper on the loop, if it surely
# ends soon.

# The event loop answers no other request during a run, so a run must be short.
MOST_RUN_S: Final = 0.0003
# More requests share the cost of the device thread, which leaves the loop time for other requests.
MOST_REQUESTS: Final = 4
# After a batch of more requests, this many smaller ones run on the device thread: with many clients, the thread works
# while the loop decodes, and single requests that come between large batches should join the next one.
QUIET_BATCHES: Final = 8
# A run that takes this long in spite of its expected cost sends the following runs to the device thread.
SLOW_RUN_S: Final = 0.001
# They stay there for this many times the duration of the slow run, so that slow runs take at most 2 % of the loop's
# time.
LEAST_PAUSE: Final = 50.0
# Each slow run doubles the pause of the next one, up to about a minute for 1 ms, and each other run shortens it by 1 %.
# The pause therefore grows if more than one run in 70 is slow. A process may lose the CPU now and then.
MOST_PAUSE: Final = 64000.0
_SHORTENED: Final = 0.99
# Turns of the loop in which a batch may grow before it leaves. Without a limit, a busy loop would keep an idle device
# waiting until the batch is full.
MOST_TURNS: Final = 4
# More than the combinations of signatures, outputs and buckets. Clients choose the outputs.
_MOST_KINDS: Final = 1024

# Signature, outputs, padded lengths and bucket: all that decides what a runtime prepares in a first run.
_Kind: TypeAlias = tuple[str, tuple[str, ...], tuple[int, ...], int]


class LoopRuns:
    """The choice for one version, by the expected and the actual duration of runs. The batcher's lock guards it."""

    __slots__ = ("_crowded", "_kinds", "_not_before_s", "_pause", "may_run")

    def __init__(self, may_run: bool) -> None:
        """Start without runs. `may_run`: the version and its threads allow runs on an event loop."""
        self.may_run = may_run
        self._kinds: set[_Kind] = set()
        # Small batches that the device thread must still run.
        self._crowded = 0
        self._not_before_s = -math.inf
        self._pause = LEAST_PAUSE

    def allows(self, batch: Batch, now_s: float) -> bool:
        """Return whether the only waiting batch may run on the event loop. Its expected seconds must be known."""
        if self._crowded or len(batch.tasks) > MOST_REQUESTS or now_s < self._not_before_s:
            return False
        if not 0.0 < batch.work_s <= MOST_RUN_S:
            return False
        rules, policy, first = batch.rules, batch.rules.policy, batch.tasks[0]
        if policy.waits or not rules.has_equal_rows or not first.shareable:
            return False
        rows = batch.rows if batch.rows <= policy.most_whole_rows else policy.rows_to_run([batch], now_s)
        return _kind(first, choose_bucket(rows, rules.buckets)) in self._kinds

    def ran_on_thread(self, tasks: Sequence[Task]) -> None:
        """Record a batch of the device thread: runs of its kind are prepared from now on."""
        if not self.may_run:
            return
        self._crowded = QUIET_BATCHES if len(tasks) > MOST_REQUESTS else max(self._crowded - 1, 0)
        run = tasks[0].run
        if run is not None and not run.failed and len(self._kinds) < _MOST_KINDS:
            self._kinds.add(_kind(tasks[0], run.bucket))

    def ended(self, run_s: float, now_s: float) -> None:
        """Record the duration of a run on the event loop."""
        if run_s < SLOW_RUN_S:
            self._pause = max(_SHORTENED * self._pause, LEAST_PAUSE)
        else:
            self._not_before_s = now_s + self._pause * run_s
            self._pause = min(2.0 * self._pause, MOST_PAUSE)


def _kind(task: Task, bucket: int) -> _Kind:
    return (task.signature_name, task.output_names, task.lengths, bucket)


_Loop: TypeAlias = asyncio.AbstractEventLoop


class LoopRunner:
    """Wakes a worker for new requests, or runs a short batch on their event loop while the only worker waits.

    `lock` guards all state. While `is_running`, the loop uses the runner and the turn of the worker.
    """

    __slots__ = (
        "_clock",
        "_idle",
        "_is_held",
        "_lock",
        "_loops",
        "_queue",
        "_run",
        "_seen",
        "_take",
        "_turns_left",
        "_wake_worker",
        "_waking",
        "choice",
        "is_running",
    )

    def __init__(
        self,
        lock: AbstractContextManager[object],
        idle: Sequence[object],
        wake: Callable[[], None],
        queue: BatchQueue,
        choice: LoopRuns,
        loops: LoopShare,
        clock: WaitingClock,
        take: Callable[[float], list[Task]],
        run: Callable[[list[Task], _Loop], float | None],
    ) -> None:
        """Run batches of `queue`, which `choice` allows.

        `idle` has the workers that wait for a batch. `wake` lets one of them look, and is called with the lock held.
        `take` returns the tasks of the ready batch, or none without the turn of the device. It is called with the lock
        held. `run` runs them, gives the turn back, and returns the seconds of the run, or None if all requests had
        ended.
        """
        self.choice = choice
        self.is_running = False
        self._lock = lock
        self._idle = idle
        self._wake_worker = wake
        self._queue = queue
        self._loops = loops
        self._clock = clock
        self._take = take
        self._run = run
        # The loop that is about to run a batch or to wake a worker.
        self._waking: _Loop | None = None
        # Requests of the batch that the loop has seen, and turns that it may still wait for more.
        self._seen, self._turns_left = 1, MOST_TURNS
        # Whether the worker waits for the end of the run.
        self._is_held = False

    # The event loop.

    def wake_soon(self, loop: _Loop) -> None:
        """Wake a worker, or run the batch here, after the requests that the loop is about to submit.

        At once, they would compete with the device thread for the interpreter's lock, and the device would run a batch
        of one. One wake-up after them serves all. The lock must be held.
        """
        if self._idle and not self.is_running and self._waking is not loop:
            self._waking = loop
            self._seen, self._turns_left = 1, MOST_TURNS
            loop.call_soon(self._wake, loop)

    def _wake(self, loop: _Loop) -> None:
        with self._lock:
            if self._is_growing():
                loop.call_soon(self._wake, loop)
                return
            self._waking = None
            tasks = self._take_allowed(loop)
            if not tasks:
                self._wake_worker()
        if tasks:
            self._run_here(tasks, loop)

    def _is_growing(self) -> bool:
        """Return whether the last turn has added requests to the only waiting batch, which may wait for more."""
        batch = self._queue.single()
        if batch is None or self._queue.has_closed or not self._turns_left:
            return False
        self._turns_left -= 1
        seen, self._seen = self._seen, len(batch.tasks)
        return seen < self._seen

    def _take_allowed(self, loop: _Loop) -> list[Task]:
        if not self.choice.may_run or not self._idle or self.is_running or not self._loops.may_run(loop):
            return []
        batch, now_s = self._queue.single(), self._clock.monotonic_s()
        if batch is None or not self.choice.allows(batch, now_s):
            return []
        tasks = self._take(now_s)
        self.is_running = bool(tasks)
        return tasks

    def _run_here(self, tasks: list[Task], loop: _Loop) -> None:
        self._loops.ran(loop)
        run_s = self._run(tasks, loop)
        with self._lock:
            if run_s is not None:
                self.choice.ended(run_s, self._clock.monotonic_s())
            self.is_running = False
            if self._is_held:
                self._is_held = False
                self._wake_worker()
            elif self._queue:
                self._waking = loop
                loop.call_soon(self._wake, loop)

    def hold(self) -> None:
        """Wake the worker at the end of the run on the loop. Called by the worker, with the lock held."""
        self._is_held = True
