"""JobThreads: run loads or unloads from a queue, and continue with another thread if one is given up."""

import threading
from collections import deque
from typing import Protocol

# The result of a load is useless to a server that stops. A load that ends now still ends in order.
_STOP_PATIENCE_S = 2.0


class Job(Protocol):
    """A load or an unload. Jobs are equal only if they are identical."""

    def __hash__(self) -> int: ...

    def run(self) -> None:
        """Do the work. Never raises."""
        ...


class JobThreads:
    """Up to `count` threads, created on demand, that run jobs in the order of `submit`.

    Python cannot end a thread. A job that is given up keeps its thread until it returns, which may be never. Another
    thread takes its place. All are daemon threads, so that a job that was given up does not keep the process alive.

    `_changed` guards all fields.
    """

    def __init__(self, count: int, *, name: str = "load", stop_patience_s: float | None = _STOP_PATIENCE_S) -> None:
        """Start no thread before the first job. `name` is that of the threads.

        `stop_patience_s`: maximum wait of `stop` and `finish`; None: no maximum.
        """
        self._name = name
        self._stop_patience_s = stop_patience_s
        self._changed = threading.Condition()
        self._count = count
        self._queue: deque[Job] = deque()
        # Both without the jobs that were given up, and their threads.
        self._running: dict[Job, threading.Thread] = {}
        self._threads: set[threading.Thread] = set()
        self._idle = 0
        self._stopping = False

    def submit(self, job: Job) -> None:
        """Run the job on a thread when one is free. Ignored after `stop`."""
        with self._changed:
            if self._stopping:
                return
            self._queue.append(job)
            self._start_if_needed()

    def give_up(self, job: Job) -> None:
        """Let the next job run on another thread than this one, which runs or has ended."""
        with self._changed:
            if (thread := self._running.pop(job, None)) is not None:
                self._threads.discard(thread)
                self._start_if_needed()

    def finish(self) -> None:
        """Run the jobs in the queue, then stop."""
        with self._changed:
            self._changed.wait_for(lambda: not self._queue, self._stop_patience_s)
        self.stop()

    def stop(self) -> None:
        """Forget the jobs in the queue, wait for those that run, and give up those that do not end."""
        with self._changed:
            self._stopping = True
            self._queue.clear()
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._running, self._stop_patience_s)
            threads = self._threads - set(self._running.values())
        for thread in threads:
            thread.join()

    def _start_if_needed(self) -> None:
        self._changed.notify_all()
        if self._idle < len(self._queue) and len(self._running) + self._idle < self._count:
            # Counted as idle at once, so that the next `submit` sees it.
            self._idle += 1
            thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._threads.add(thread)
            thread.start()

    def _run(self) -> None:
        is_member = True
        while is_member and (job := self._next()) is not None:
            job.run()
            is_member = self._end(job)

    def _next(self) -> Job | None:
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._stopping)
            self._idle -= 1
            if self._stopping:
                return None
            job = self._queue.popleft()
            self._running[job] = threading.current_thread()
            # For `finish`.
            self._changed.notify_all()
            return job

    def _end(self, job: Job) -> bool:
        """Return whether the thread of a job goes on: its place is taken if the job was given up."""
        with self._changed:
            if self._running.pop(job, None) is None:
                return False
            self._idle += 1
            self._changed.notify_all()
            return True
