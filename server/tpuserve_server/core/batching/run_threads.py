"""RunThreads: the threads that run the batches of all versions of a server."""

import math
import os
import threading
from collections import deque
from collections.abc import Callable
from typing import Final, TypeAlias

from tpuserve_server.core.system.threads import name_thread
from tpuserve_server.core.terms.deadline import WaitingClock
from tpuserve_server.core.terms.errors import ResourceExhausted

# Most threads for each core, and in all on small machines. A run may wait for its device or for another process, so
# that more runs than cores go on at a time.
_THREADS_PER_CORE: Final = 4
_LEAST_LIMIT: Final = 32

# Runs what it has to run, and returns when it waits for something.
Worker: TypeAlias = Callable[[], None]


class RunThreads:
    """Threads that run workers: each worker runs the batches of one version, one at a time. Thread-safe.

    A worker that waits has no thread, so that the number of threads does not depend on the number of versions. Threads
    start on demand, and end when the last version leaves. With all threads busy, workers wait in order of `submit`.

    `_changed` guards all fields. It may be taken inside the lock of a batcher or a device, and takes no other.
    """

    def __init__(self, clock: WaitingClock, most: int | None = None) -> None:
        """Start no thread before the first version joins. `most` limits the threads, and depends on the cores if None.

        A version that requests more threads raises the limit.
        """
        self._clock = clock
        self._most = most or max(_LEAST_LIMIT, _THREADS_PER_CORE * (os.cpu_count() or 1))
        self._changed = threading.Condition()
        self._members = 0
        # Those that do not end.
        self._threads: set[threading.Thread] = set()
        # Threads whose run hangs. Another one takes the place of each.
        self._hung = 0
        # Workers to run, in order.
        self._queue: deque[Worker] = deque()
        self._queued: set[Worker] = set()
        # Workers that run when their time comes.
        self._due_s: dict[Worker, float] = {}
        # Threads that wait for a worker, and the earliest time at which one of them wakes.
        self._idle = 0
        self._watched_s = math.inf

    def join(self, threads: int) -> None:
        """Add a version that runs up to `threads` batches at a time, and start that many threads if there are fewer.

        Raises:
            ResourceExhausted: the system cannot start them.
        """
        with self._changed:
            self._members += 1
            self._most = max(self._most, threads)
            try:
                while len(self._threads) < threads:
                    self._start()
            except RuntimeError as error:
                ended = self._leave()
                failure = ResourceExhausted(f"Not {threads} batch threads can be started: {error}")
                failure.__cause__ = error
            else:
                return
        _join(ended)
        raise failure

    def leave(self) -> None:
        """Remove a version whose workers have ended. The last one joins the threads."""
        with self._changed:
            ended = self._leave()
        _join(ended)

    def submit(self, worker: Worker) -> None:
        """Run a worker on the next free thread. Does nothing if it already waits for one."""
        with self._changed:
            if self._due_s:
                self._due_s.pop(worker, None)
            if worker not in self._queued:
                self._queued.add(worker)
                self._queue.append(worker)
                self._serve()

    def submit_at(self, worker: Worker, at_s: float) -> None:
        """Run a worker at this time, unless it is submitted earlier. The worker itself calls this before it returns."""
        with self._changed:
            self._due_s[worker] = at_s

    @property
    def is_short(self) -> bool:
        """Whether a worker waits for a busy thread. May be late: read without the lock."""
        return len(self._queue) > self._idle

    def replace(self) -> None:
        """Allow one more thread in place of one whose run hangs."""
        with self._changed:
            self._hung += 1
            if self._queue:
                self._serve()

    def restore(self) -> None:
        """Record that a run that hung has ended."""
        with self._changed:
            self._hung -= 1

    # The methods below are called with the lock held, except `_run`.

    def _serve(self) -> None:
        """Wake or start a thread if workers wait for one, or for a time at which no thread wakes."""
        needed = len(self._queue) + (self._next_s() < self._watched_s)
        if needed <= self._idle:
            self._changed.notify()
        elif len(self._threads) - self._hung < self._most:
            try:
                self._start()
            except RuntimeError:
                # The system has no more threads. A thread of this object takes the worker later.
                if not self._threads:
                    raise

    def _start(self) -> None:
        thread = threading.Thread(target=self._run, name=f"device-{len(self._threads)}")
        thread.start()
        self._threads.add(thread)

    def _leave(self) -> set[threading.Thread]:
        """Return the threads that end, because the last version has left."""
        self._members -= 1
        if self._members:
            return set()
        ended, self._threads = self._threads, set()
        self._changed.notify_all()
        return ended

    def _run(self) -> None:
        name_thread()
        while (worker := self._next()) is not None:
            worker()

    def _next(self) -> Worker | None:
        """Wait for a worker and return it, or None if this thread ends."""
        with self._changed:
            while True:
                if self._due_s:
                    self._queue_due()
                if self._queue:
                    worker = self._queue.popleft()
                    self._queued.discard(worker)
                    if self._queue or self._due_s:
                        self._serve()
                    return worker
                if threading.current_thread() not in self._threads:
                    return None
                self._wait()

    def _next_s(self) -> float:
        """Return the earliest time of a worker."""
        return min(self._due_s.values()) if self._due_s else math.inf

    def _wait(self) -> None:
        at_s = self._next_s()
        # One thread is enough to wait for a time.
        at_s = at_s if at_s < self._watched_s else math.inf
        if at_s < math.inf:
            self._watched_s = at_s
        self._idle += 1
        self._clock.wait_until(self._changed, at_s)
        self._idle -= 1
        if at_s == self._watched_s:
            self._watched_s = math.inf

    def _queue_due(self) -> None:
        now_s = self._clock.monotonic_s()
        for worker in [worker for worker, at_s in self._due_s.items() if at_s <= now_s]:
            del self._due_s[worker]
            if worker not in self._queued:
                self._queued.add(worker)
                self._queue.append(worker)


def _join(threads: set[threading.Thread]) -> None:
    for thread in threads:
        thread.join()
