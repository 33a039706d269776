"""Work that gives way to requests: run on a thread of its own, which the kernel serves last."""

import contextlib
import ctypes
import os
import platform
import struct
import sys
import threading
from collections.abc import Callable
from typing import TypeVar

_Result = TypeVar("_Result")

# A thread at 10 has a tenth of the weight of one at 0: it takes what is left over, and never starves.
_NICENESS = 10

# The longest slice that the kernel grants. A thread that wakes takes the CPU at once from one whose slice is longer
# (Linux 6.12 on); with equal slices it waits until that one has used its own up, 3 ms, however nice it is.
_SLICE_NS = 100_000_000
# sched_setattr(2), for which glibc has a function from 2.41 on only.
_SCHED_SETATTR = {"x86_64": 314, "aarch64": 274}
_SCHED_ATTR = struct.Struct("=IIQiIQQQ")


def run_in_background(work: Callable[[], _Result], name: str) -> _Result:
    """What `work` returns or raises; blocks until it has ended.

    On a new thread, because niceness goes one way: without privileges nobody gets it back. Threads inherit it, so
    `work` must start none that is to outlive it. It should hold the interpreter's lock for moments only: a thread that
    has to wait for the kernel makes all wait who want that lock.
    """
    outcome: list[_Result] = []
    failure: list[BaseException] = []

    def run() -> None:
        _step_back()
        try:
            outcome.append(work())
        except BaseException as error:
            # Raised again below, in the thread that waits for it.
            failure.append(error)

    thread = threading.Thread(target=run, name=name)
    thread.start()
    thread.join()
    if failure:
        try:
            raise failure[0]
        finally:
            # The error's traceback holds this frame, and this frame must not hold the error.
            failure.clear()
    return outcome[0]


def _step_back() -> None:
    """Only Linux has a niceness for each thread; elsewhere the number would name a process."""
    if sys.platform == "linux":
        thread = threading.get_native_id()
        niceness = max(os.getpriority(os.PRIO_PROCESS, thread), _NICENESS)
        # A sandbox may refuse: then it competes with requests, which is better than not being done.
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, thread, niceness)
        _lengthen_slice(niceness)


def _lengthen_slice(niceness: int) -> None:
    """Ask for it; a kernel that does not know it, or may not grant it, leaves the thread as nice as it is."""
    number = _SCHED_SETATTR.get(platform.machine())
    if number is not None:
        attributes = _SCHED_ATTR.pack(_SCHED_ATTR.size, os.SCHED_OTHER, 0, niceness, 0, _SLICE_NS, 0, 0)
        ctypes.CDLL(None).syscall(number, 0, attributes, 0)
