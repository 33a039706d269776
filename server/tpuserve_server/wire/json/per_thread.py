"""The objects of each thread that reads numbers of JSON."""

import contextvars
import threading
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import simdjson

if TYPE_CHECKING:
    from collections.abc import Callable


class _PerThread(threading.local):
    """A thread's parser of short texts, and `quietly`, which runs conversions whose overflows are no error.

    Entering the context takes a third of the time of numpy's errstate.
    """

    def __init__(self) -> None:
        self.parse: Callable[[bytes], Any] = simdjson.Parser().parse
        context = contextvars.Context()
        context.run(np.seterr, over="ignore")
        self.quietly = context.run


per_thread: Final = _PerThread()
