"""Ctrl-C as events. A KeyboardInterrupt would hit an arbitrary greenlet, whose request would not be counted."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from gevent.event import Event

# Events of the active blocks, innermost last. Only the main thread handles signals.
_OUTER: list[Event] = []


@contextmanager
def ctrl_c(pressed: Event, again: Event | None = None) -> Iterator[None]:
    """Set `pressed` on Ctrl-C during the block, and `again` on every further Ctrl-C.

    In nested blocks, Ctrl-C also sets the outer block's events. If it arrives before the inner block starts, it also
    counts there, so that it is not lost between the blocks. If it arrives during the outermost block, the process
    ignores SIGINT after the block, so that the user gets the report. If the parent process made SIGINT ignored, as a
    shell does for background jobs, it stays ignored.
    """
    before = signal.getsignal(signal.SIGINT)

    def press(number: int, frame: FrameType | None) -> None:
        if again is not None and pressed.is_set():
            again.set()
        pressed.set()
        if callable(before) and before is not signal.default_int_handler:
            before(number, frame)

    if before != signal.SIG_IGN:
        signal.signal(signal.SIGINT, press)
    if any(outer.is_set() for outer in _OUTER):
        pressed.set()
    _OUTER.append(pressed)
    try:
        yield
    finally:
        _OUTER.pop()
        if _OUTER:
            signal.signal(signal.SIGINT, before)
        else:
            # Ignore SIGINT first. Otherwise, another Ctrl-C could raise KeyboardInterrupt before the check.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            if not pressed.is_set():
                signal.signal(signal.SIGINT, before)
