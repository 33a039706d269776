"""Periodic readings of this machine's energy counters during a load.

The process must call give_process_to_gevent (traffic/gevent_setup.py) before it imports this module.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import gevent
from gevent.event import Event

from tpuserve_loadtests.arrivals.load import Load
from tpuserve_loadtests.monitoring.energy import EnergyFound, Meter, Unmeasured
from tpuserve_loadtests.monitoring.rapl import Counters, NoCounters

# The smallest counters restart after 65 kJ, which 1 kW takes 65 s to use.
_INTERVAL_S: Final = 10.0


@dataclass(slots=True)
class Metered:
    """The energy of a load, complete after its end."""

    energy: EnergyFound = None


class EnergyWatch:
    """Reader of the counters. Without a `root` of counters, it measures nothing."""

    def __init__(self, root: Path | None) -> None:
        self._counters: Counters | None = None
        self._unmeasured: Unmeasured | None = None
        try:
            self._counters = None if root is None else Counters(root)
        except NoCounters as error:
            self._unmeasured = Unmeasured(str(error))

    @contextmanager
    def during(self, load: Load) -> Iterator[Metered]:
        """Measure while the block runs the load, from the end of its warm-up to the end of the block."""
        metered = Metered(self._unmeasured)
        if self._counters is None:
            yield metered
            return
        meter, over = Meter(self._counters), Event()
        if not load.warm_up_s:
            meter.read()
        reader = gevent.spawn(_keep_reading, meter, time.perf_counter() + load.warm_up_s, over)
        try:
            yield metered
        finally:
            over.set()
            reader.join()
            # A load that ends in its warm-up has no measured time.
            if meter.has_begun:
                meter.read()
            metered.energy = meter.total()


def _keep_reading(meter: Meter, zero_s: float, over: Event) -> None:
    """Read at the start of the measured time, `zero_s`, and then periodically."""
    wait_s = max(zero_s - time.perf_counter(), 0.0)
    while not over.wait(wait_s):
        meter.read()
        wait_s = _INTERVAL_S
