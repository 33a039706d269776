"""The start of a run that its figures should omit: caches fill, code compiles, queues and connections build up.

The rule is MSER (White, "An effective truncation heuristic for bias reduction in simulation output", Simulation 1997):
drop the windows whose removal makes the standard error of the rest smallest. MSER-5 takes means of five values. A
run's windows are such means already. The rule alone also drops some windows of steady runs, so a test decides
whether the dropped windows differ from the rest by more than noise.
"""

import math
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tpuserve_loadtests.statistics.trend import inflation

# With fewer windows, the noise of the rest is unknown.
_LEAST_KEPT: Final = 10
# The smallest of the starts that are nearly as good is dropped.
_AS_GOOD: Final = 1.2
# Standard errors between both parts. The rule chooses the most different start, so the limit is far above 2.
_DIFFERENT: Final = 5.0


def windows_to_drop(values: Sequence[float | None]) -> int:
    """Return the number of windows at the start that differ from the rest, at most half of them.

    `values` are a figure of each window, such as its mean latency; None marks a window without one. In simulated steady
    runs of 40 windows, with noise of 5 to 30 % and a correlation of neighbours of 0 to 0.5, the result was above 0 in
    0.3 % of them, or 2.5 % with heavy tails (Student t with three degrees of freedom).
    """
    known = np.array([value for value in values if value is not None], np.float64)
    at = [number for number, value in enumerate(values) if value is not None]
    most = min(len(known) // 2, len(known) - _LEAST_KEPT)
    if most < 1:
        return 0
    errors = np.array([known[drop:].var() / (len(known) - drop) for drop in range(most + 1)])
    drop = int(np.argmax(errors <= _AS_GOOD * errors.min()))
    return at[drop] if drop and _differs(known[:drop], known[drop:]) else 0


def _differs(dropped: NDArray[np.float64], kept: NDArray[np.float64]) -> bool:
    centred = kept - kept.mean()
    variance = float(centred @ centred) / (len(kept) - 1) * inflation(centred, 0)
    error = math.sqrt(variance * (1 / len(dropped) + 1 / len(kept)))
    return abs(float(dropped.mean() - kept.mean())) > _DIFFERENT * error
