"""Ctrl-C as an event. KeyboardInterrupt would hit whichever greenlet runs, and its request would go uncounted."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from gevent.event import Event


@contextmanager
def ctrl_c(pressed: Event) -> Iterator[None]:
    """Ctrl-C sets the event for as long as the block lasts; within another such block, that one's, too.

    Who started this process may have it ignore SIGINT, as a shell does in the background: then it stays ignored.
    """
    before = signal.getsignal(signal.SIGINT)

    def press(number: int, frame: FrameType | None) -> None:
        pressed.set()
        if callable(before) and before is not signal.default_int_handler:
            before(number, frame)

    if before != signal.SIG_IGN:
        signal.signal(signal.SIGINT, press)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
