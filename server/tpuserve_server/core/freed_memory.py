"""Returns freed memory to the system, where the C library keeps it."""

import ctypes
import threading
from typing import Final

# Objects that refer to freed bytes, such as tracebacks, are gone after this time.
_DELAY_S: Final = 1.0


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
