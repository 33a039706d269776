"""LoopRunner: wakes whoever runs the next batch of a version: a device thread or the event loop."""

import asyncio
import threading
from collections.abc import Callable
from typing import TypeAlias

from tpuserve_server.core.batching.loop_runs import LoopRuns
from tpuserve_server.core.batching.queue import BatchQueue
from tpuserve_server.core.batching.task import Task
from tpuserve_server.core.deadline import WaitingClock
from tpuserve_server.core.loop_share import LoopShare

_Loop: TypeAlias = asyncio.AbstractEventLoop


class LoopRunner:
    """Wakes a device thread for new requests, or runs a short batch on their event loop while the only thread waits.

    The lock of `changed` guards all state. `idle` counts the device threads that wait for a batch. While `is_running`,
    the loop uses the runner and the turn of the device thread.
    """

    __slots__ = (
        "_changed",
        "_clock",
        "_is_held",
        "_loops",
        "_queue",
        "_run",
        "_take",
        "_waking",
        "choice",
        "idle",
        "is_running",
    )

    def __init__(
        self,
        changed: threading.Condition,
        queue: BatchQueue,
        choice: LoopRuns,
        loops: LoopShare,
        clock: WaitingClock,
        take: Callable[[float], list[Task]],
        run: Callable[[list[Task], _Loop], float | None],
    ) -> None:
        """Run batches of `queue`, which `choice` allows.

        `take` returns the tasks of the ready batch, or none without the turn of the device. It is called with the lock
        held. `run` runs them, gives the turn back, and returns the seconds of the run, or None if all requests had
        ended.
        """
        self.choice = choice
        self.idle = 0
        self.is_running = False
        self._changed = changed
        self._queue = queue
        self._loops = loops
        self._clock = clock
        self._take = take
        self._run = run
        # The loop that is about to run a batch or to wake a device thread.
        self._waking: _Loop | None = None
        # Whether the device thread waits for the end of the run.
        self._is_held = False

    # The event loop.

    def must_wake(self, loop: _Loop) -> bool:
        """Return whether to call `wake_soon`, because tasks of this loop were queued. The lock must be held."""
        if not self.idle or self.is_running or self._waking is loop:
            return False
        self._waking = loop
        return True

    def wake_soon(self, loop: _Loop) -> None:
        """Wake a device thread, or run the batch here, after the requests that the loop is about to submit.

        At once, they would compete with the device thread for the interpreter's lock, and the device would run a batch
        of one. One wake-up after them serves all.
        """
        loop.call_soon(self._wake, loop)

    def _wake(self, loop: _Loop) -> None:
        with self._changed:
            self._waking = None
            tasks = self._take_allowed(loop)
            if not tasks:
                self._changed.notify()
        if tasks:
            self._run_here(tasks, loop)

    def _take_allowed(self, loop: _Loop) -> list[Task]:
        if not self.choice.may_run or not self.idle or self.is_running or not self._loops.may_run(loop):
            return []
        now_s = self._clock.monotonic_s()
        tasks = self._take(now_s) if self._is_allowed(now_s) else []
        self.is_running = bool(tasks)
        return tasks

    def _is_allowed(self, now_s: float) -> bool:
        batch = self._queue.single()
        return batch is not None and self.choice.allows(batch, now_s)

    def _run_here(self, tasks: list[Task], loop: _Loop) -> None:
        self._loops.ran(loop)
        run_s = self._run(tasks, loop)
        with self._changed:
            if run_s is not None:
                self.choice.ended(run_s, self._clock.monotonic_s())
            self.is_running = False
            if self._is_held:
                self._is_held = False
                self._changed.notify_all()
            elif self._queue:
                self._waking = loop
                self.wake_soon(loop)

    # A device thread.

    def wait_for_loop(self) -> None:
        """Wait for the end of the run on the loop. The lock must be held."""
        self._is_held = True
        self.idle += 1
        self._changed.wait()
        self.idle -= 1

    def wait_for_batch(self) -> None:
        """Wait for new requests, or until the next batch is ready. The lock must be held."""
        self.idle += 1
        self._clock.wait_until(self._changed, self._queue.next_s())
        self.idle -= 1
