"""Ctrl-C as events. KeyboardInterrupt would hit whichever greenlet runs, and its request would go uncounted."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from gevent.event import Event

# Events of the blocks that are being run, the innermost last. Signals are handled by the main thread alone.
_OUTER: list[Event] = []


@contextmanager
def ctrl_c(pressed: Event, again: Event | None = None) -> Iterator[None]:
    """Ctrl-C sets the event for as long as the block lasts, and `again` from the second time on.

    Within another such block, that one's, too. Pressed in the outer block before the inner one began, it counts in the
    inner one: it would be lost between them.
    Pressed in the outermost block, it is ignored from its end on: who has ended all loads gets the report.
    Who started this process may have it ignore SIGINT, as a shell does in the background: then it stays ignored.
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
            # Ignored first: given back first, the next of many presses would raise KeyboardInterrupt in between.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            if not pressed.is_set():
                signal.signal(signal.SIGINT, before)
