"""Delay of Ctrl-C and SIGTERM during output, so that no partial output stays on the screen."""

import contextlib
import signal
import threading
from collections.abc import Iterator

_DELAYED = (signal.SIGINT, signal.SIGTERM)


@contextlib.contextmanager
def delayed_signals() -> Iterator[None]:
    """Delay signals until the body ends, and then raise the first one. The body must be short.

    Python runs signal handlers only in the main thread, so this has no effect in other threads.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    # getsignal returns None for handlers of C code, which Python cannot restore.
    handlers = {number: handler for number in _DELAYED if (handler := signal.getsignal(number)) is not None}
    try:
        for number in handlers:
            signal.signal(number, lambda number, _frame: came.append(number))
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    if came:
        signal.raise_signal(came[0])
