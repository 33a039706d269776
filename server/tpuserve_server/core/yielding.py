"""Lets other threads take the interpreter's lock during long work of a worker thread."""

import time
from typing import Final

# The shortest sleep that a kernel knows ends after about 60 us: enough for a waiting thread to wake up.
_PAUSE_S: Final = 1e-5


def let_others_run() -> None:
    """Sleep for a moment, without the lock. Call it in a worker thread about once a millisecond.

    numpy releases the lock for a moment in each larger operation. That is too short for a thread that must wake up
    first: it would wait until it may force a switch, 5 ms later (sys.getswitchinterval).
    """
    time.sleep(_PAUSE_S)
