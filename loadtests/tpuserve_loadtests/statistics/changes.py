"""Changes of a series that are no trend: a new level, a level for some time, and single bad values.

A new level, of any length and place, is the window whose mean differs most from that of the rest, in standard errors:
the statistic of circular binary segmentation (Olshen, Venkatraman, Lucito & Wigler, Biostatistics 2004). As neighbours
of a server's series are correlated, the standard error counts fewer values (as in `trend`). Bad values are far from
the median by the median absolute deviation, which they hardly move (Iglewicz & Hoaglin, 1993).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from tpuserve_loadtests.statistics.trend import inflation

# With fewer values, chance alone makes levels.
LEAST_VALUES: Final = 20
# The shortest window. Shorter ones are bad values.
_LEAST_WINDOW: Final = 3
# Standard errors of the difference. The window is the best of n², so the limit is high.
_CERTAIN: Final = 7.0
_FAR: Final = 7.0
# The median absolute deviation of normal values is 0.6745 standard deviations.
_NORMAL: Final = 0.6745


@dataclass(frozen=True, slots=True)
class Level:
    """A window of values, `start` to `end` (exclusive), whose mean is higher than that of the rest by `rise`."""

    start: int
    end: int
    rise: float
    residual: float


def find_level(values: Sequence[float], least: float) -> Level | None:
    """Return the window with a certainly higher level, by `least` or more, or None.

    A level at the start means that the series became lower. `residual` is the sum of squares that remains.
    """
    series = np.asarray(values, np.float64)
    size = len(series)
    if size < LEAST_VALUES:
        return None
    sums = np.concatenate(([0.0], np.cumsum(series - series.mean())))
    lengths = np.subtract.outer(np.arange(size + 1), np.arange(size + 1)).T.astype(np.float64)
    inside = (lengths >= _LEAST_WINDOW) & (lengths <= size - _LEAST_WINDOW)
    with np.errstate(divide="ignore", invalid="ignore"):
        gains = np.where(
            inside, np.subtract.outer(sums, sums).T * np.sqrt(size / (lengths * (size - lengths))), -np.inf
        )
    start, end = map(int, np.unravel_index(int(np.argmax(gains)), gains.shape))
    within = np.zeros(size, bool)
    within[start:end] = True
    rise = float(series[within].mean() - series[~within].mean())
    residuals = np.where(within, series - series[within].mean(), series - series[~within].mean())
    power = float(residuals @ residuals)
    error = math.sqrt(power / (size - 4) * inflation(residuals, 2))
    if rise < least or gains[start, end] <= _CERTAIN * error:
        return None
    return Level(start, end, rise, power)


def find_bad(values: Sequence[float], least: float) -> list[int]:
    """Return the places of values above the median by `least` or more, and by more than noise.

    A single one must be twice as far, because heavy tails alone make one in 20 series.
    """
    series = np.asarray(values, np.float64)
    if len(series) < LEAST_VALUES:
        return []
    above = series - np.median(series)
    limit = max(least, _FAR * float(np.median(np.abs(above))) / _NORMAL)
    bad = above >= limit
    return np.flatnonzero(bad).tolist() if bad.sum() > 1 or above.max() >= 2 * limit else []
