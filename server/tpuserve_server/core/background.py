"""Work that gives way to requests: run on a thread of its own, which the kernel serves last."""

import os
import sys
import threading
from collections.abc import Callable
from typing import TypeVar

_Result = TypeVar("_Result")

# A thread at 10 has a tenth of the weight of one at 0: it takes what is left over, and never starves.
_NICENESS = 10


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
        os.setpriority(os.PRIO_PROCESS, thread, max(os.getpriority(os.PRIO_PROCESS, thread), _NICENESS))
