"""Keeps freed memory for the next run, and returns it to the system when a user of much memory ends."""

import ctypes
import os
import threading
from typing import Final

# Options of mallopt (malloc.h), and values with which glibc maps and unmaps nothing by itself.
_TRIM_THRESHOLD, _MMAP_MAX, _ARENA_MAX = -1, -4, -8
_OPTIONS: Final = {_TRIM_THRESHOLD: 2**31 - 1, _MMAP_MAX: 0, _ARENA_MAX: 1}
# Variables with which the operator sets such options.
_OPERATORS_VARIABLES: Final = ("MALLOC_", "GLIBC_TUNABLES")

# Objects that refer to freed bytes, such as tracebacks, are gone after this time.
_DELAY_S: Final = 1.0


def keep_freed_memory() -> None:
    """Make glibc keep freed memory, in one heap for all threads, until `trim_memory`. Call it before threads start.

    By default glibc maps new memory for each large tensor, and the system fills its pages with zeros. Heaps of further
    threads have at most 64 MB. Does nothing with another C library or allocator, or if the operator has set options of
    glibc.
    """
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is not None and not any(name.startswith(_OPERATORS_VARIABLES) for name in os.environ):
        for option, value in _OPTIONS.items():
            set_option(option, value)


def trim_memory() -> None:
    """Return freed memory to the system, if the C library keeps it, as glibc does."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


class LateTrim:
    """Trims the memory in a thread, at most once a second."""

    def __init__(self) -> None:
        """Create it without a timer."""
        self._timer: threading.Timer | None = None

    def __call__(self) -> None:
        """Trim after a second. Does nothing if that is already due."""
        if self._timer is None or not self._timer.is_alive():
            self._timer = threading.Timer(_DELAY_S, trim_memory)
            self._timer.name = "trim-memory"
            self._timer.daemon = True
            self._timer.start()
