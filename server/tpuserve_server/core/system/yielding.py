"""Lets other threads take the interpreter's lock during long work of a worker thread."""

import threading
import time
from typing import Final

# The shortest sleep that a kernel knows ends after about 60 us: enough for a waiting thread to wake up.
_PAUSE_S: Final = 1e-5
# Work between two pauses. With a step of at most a millisecond after it, others wait 2 ms at most.
_WORK_S: Final = 1e-3


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
    if time.monotonic() - _paused.at_s >= _WORK_S:
        time.sleep(_PAUSE_S)
        _paused.at_s = time.monotonic()
