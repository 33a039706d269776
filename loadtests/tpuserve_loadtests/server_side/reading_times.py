"""Times at which a load's server is read: periodically, from the end of the warm-up on."""

import math
import time
from collections.abc import Iterator
from typing import Final, TypeVar

from gevent.event import Event

from tpuserve_loadtests.arrivals.load import Load

# Rendering a page takes the server some milliseconds, and a chart has few pixels.
LEAST_INTERVAL_S: Final = 1.0
MOST_READINGS: Final = 60

_Reading = TypeVar("_Reading")


def reading_times(zero_s: float, load: Load, over: Event, readings: list[_Reading]) -> Iterator[None]:
    """Yield at each time to read, until shortly before the end of the load, or until `over`.

    The caller reads the end of the load itself. The measured time starts at `zero_s`. A load without a duration doubles
    the interval after every MOST_READINGS `readings`, and drops every second reading.
    """
    is_timed = math.isfinite(load.seconds)
    interval_s = max(LEAST_INTERVAL_S, load.seconds / MOST_READINGS) if is_timed else LEAST_INTERVAL_S
    at_s = 0.0 if load.warm_up_s else interval_s
    # The end of the warm-up is always read.
    while not at_s or at_s < load.seconds - interval_s / 2:
        if over.wait(max(zero_s + at_s - time.perf_counter(), 0)):
            return
        yield
        if not is_timed and len(readings) >= MOST_READINGS:
            del readings[1::2]
            interval_s *= 2
        # After a slow reading, skip the times that passed meanwhile.
        at_s = max(at_s + interval_s, time.perf_counter() - zero_s)
