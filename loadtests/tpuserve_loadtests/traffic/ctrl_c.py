"""Ctrl-C and SIGTERM as events. An exception would hit an arbitrary greenlet, whose request would not be counted."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

from gevent.event import Event

# CI systems and Kubernetes end a job with SIGTERM. A closed terminal sends SIGHUP.
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# Events of the active blocks, innermost last. Only the main thread handles signals.
_OUTER: list[Event] = []


@contextmanager
def ctrl_c(pressed: Event, again: Event | None = None) -> Iterator[None]:
    """Set `pressed` on Ctrl-C, SIGTERM or SIGHUP during the block, and `again` on every further one.

    In nested blocks, a signal also sets the outer block's events. If it arrives before the inner block starts, it also
    counts there, so that it is not lost between the blocks. If it arrives during the outermost block, the process
    ignores the signals after the block, so that the user gets the report. Signals that the parent process made ignored,
    as a shell does for background jobs and nohup, stay ignored.
    """
    before = {each: handler for each in _SIGNALS if (handler := signal.getsignal(each)) != signal.SIG_IGN}

    def press(number: int, frame: FrameType | None) -> None:
        if again is not None and pressed.is_set():
            again.set()
        pressed.set()
        outer = before[signal.Signals(number)]
        if callable(outer) and outer is not signal.default_int_handler:
            outer(number, frame)

    for each in before:
        signal.signal(each, press)
    if any(outer.is_set() for outer in _OUTER):
        pressed.set()
    _OUTER.append(pressed)
    try:
        yield
    finally:
        _OUTER.pop()
        for each, handler in before.items():
            if not _OUTER:
                # Ignore the signal first. Otherwise, another one could end the process before the check.
                signal.signal(each, signal.SIG_IGN)
            if _OUTER or not pressed.is_set():
                signal.signal(each, handler)
