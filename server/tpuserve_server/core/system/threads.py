"""Threads: run jobs from a queue, work at a low priority, let other threads run, and names in the kernel."""

import contextlib
import ctypes
import os
import platform
import struct
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol, TypeVar

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


_Result = TypeVar("_Result")

# A thread of niceness 10 has a tenth of the weight of one of niceness 0: it uses idle CPU time, and never starves.
_NICENESS = 10

# The longest slice that the kernel grants. A waking thread preempts one with a longer slice at once (Linux 6.12 and
# later). With equal slices it waits for the end of the other's slice, 3 ms, whatever the niceness.
_SLICE_NS = 100_000_000
# sched_setattr(2). Its glibc wrapper needs glibc 2.41 or later.
_SCHED_SETATTR = {"x86_64": 314, "aarch64": 274}
_SCHED_ATTR = struct.Struct("=IIQiIQQQ")


def run_in_background(work: Callable[[], _Result], name: str) -> _Result:
    """Run `work` on a new thread of low priority, block until it has ended, and return or raise its outcome.

    The thread must be new, because a process without privileges cannot lower its niceness again. Threads inherit
    niceness, so `work` must start none that outlives it. `work` should hold the interpreter's lock only briefly: while
    the kernel delays this thread, every thread that needs the lock waits.
    """
    outcome: list[_Result] = []
    failure: list[BaseException] = []

    def run() -> None:
        name_thread()
        _step_back()
        try:
            outcome.append(work())
        except BaseException as error:
            # Raised again below, in the calling thread.
            failure.append(error)

    thread = threading.Thread(target=run, name=name)
    thread.start()
    thread.join()
    if failure:
        try:
            raise failure[0]
        finally:
            # The error's traceback holds this frame, so this frame must not hold the error.
            failure.clear()
    return outcome[0]


def _step_back() -> None:
    """Raise the niceness of this thread on Linux. On other systems the number would name a process."""
    if sys.platform == "linux":
        thread = threading.get_native_id()
        niceness = max(os.getpriority(os.PRIO_PROCESS, thread), _NICENESS)
        # A sandbox may refuse. Then the thread competes with requests, which is better than not doing the work.
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, thread, niceness)
        _lengthen_slice(niceness)


def _lengthen_slice(niceness: int) -> None:
    """Request a longer slice. A kernel that does not support or allow it leaves the thread's priority unchanged."""
    number = _SCHED_SETATTR.get(platform.machine())
    if number is not None:
        attributes = _SCHED_ATTR.pack(_SCHED_ATTR.size, os.SCHED_OTHER, 0, niceness, 0, _SLICE_NS, 0, 0)
        ctypes.CDLL(None).syscall(number, 0, attributes, 0)


# The kernel keeps 15 bytes (prctl(2), PR_SET_NAME).
_MAX_NAME_BYTES = 15


def name_thread() -> None:
    """Give the calling thread its Python name, cut to 15 bytes, on Linux. A new thread has its parent's otherwise."""
    if sys.platform == "linux":
        # A character that is cut in two would make the names of a trace invalid.
        name = threading.current_thread().name.encode()[:_MAX_NAME_BYTES].decode(errors="ignore")
        # A sandbox may refuse. Then only the display suffers.
        with contextlib.suppress(OSError):
            Path(f"/proc/self/task/{threading.get_native_id()}/comm").write_text(name)


# The shortest sleep that a kernel knows ends after about 60 us: enough for a waiting thread to wake up.
_PAUSE_S: Final = 1e-5
# Work between two pauses. With a step of at most a millisecond after it, others wait 2 ms at most.
_WORK_BETWEEN_PAUSES_S: Final = 1e-3


class _Paused(threading.local):
    """The time at which each thread ended its last pause."""

    at_s = 0.0


_paused = _Paused()


def let_others_run() -> None:
    """Sleep for a moment, without the lock, if the last such pause of this thread is a millisecond ago.

    Call it between steps that take at most a millisecond, in a worker thread. numpy releases the lock for a moment in
    each larger operation. That is too short for a thread that must wake up first: it would wait until it may force a
    switch, 5 ms later (sys.getswitchinterval).
    """
    if time.monotonic() - _paused.at_s >= _WORK_BETWEEN_PAUSES_S:
        time.sleep(_PAUSE_S)
        _paused.at_s = time.monotonic()
