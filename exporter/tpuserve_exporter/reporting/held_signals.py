"""Ctrl-C and SIGTERM wait while something is drawn: half of it would stay on the screen."""

import contextlib
import signal
import threading
from collections.abc import Iterator

_HELD = (signal.SIGINT, signal.SIGTERM)


@contextlib.contextmanager
def held_signals() -> Iterator[None]:
    """A signal that comes during the body takes effect when it has ended, as it would have: the body has to be short.

    Python runs handlers in the main thread alone; in others nothing is held, and nothing would break off.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    # What C code has put there, None, cannot be put back.
    handlers = {number: handler for number in _HELD if (handler := signal.getsignal(number)) is not None}
    try:
        for number in handlers:
            signal.signal(number, lambda number, _frame: came.append(number))
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    if came:
        signal.raise_signal(came[0])
