"""Ctrl-C as an event. KeyboardInterrupt would hit whichever greenlet runs, and its request would go uncounted."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager

from gevent.event import Event


@contextmanager
def ctrl_c(pressed: Event) -> Iterator[None]:
    """Ctrl-C sets the event for as long as the block lasts.

    Who started this process may have it ignore SIGINT, as a shell does in the background: then it stays ignored.
    """
    before = signal.getsignal(signal.SIGINT)
    if before != signal.SIG_IGN:
        signal.signal(signal.SIGINT, lambda *_: pressed.set())
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
