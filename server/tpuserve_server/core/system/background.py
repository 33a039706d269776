"""Background work that gives way to requests: runs on a separate thread with a low priority in the kernel."""

import contextlib
import ctypes
import os
import platform
import struct
import sys
import threading
from collections.abc import Callable
from typing import TypeVar

from tpuserve_server.core.system.thread_name import name_thread

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
