"""Whether a series of figures rises or falls over time: its slope (Theil-Sen) and how sure that is (Mann-Kendall).

Both go by pairs of values: a few wild ones change little, and nothing is assumed of how they are spread. Neighbouring
values of a server are alike, which alone would make trends of noise; the test's variance is corrected for how alike
neighbours are once the trend is taken out (Yue & Wang 2004, with the first lag alone).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

# Fewer values tell nothing at the confidence that is asked for here.
LEAST_VALUES: Final = 10
# Beyond this it is no noise that is left: 48 values, each higher than the last, are a trend however it bends.
_MOST_CORRELATION: Final = 0.8
_NOTHING: Final = 1e-20  # what rounding leaves of squares

_Floats: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Trend:
    """A slope in units of the values for each unit of time, and its interval. `rises`, `falls`: surely."""

    slope: float
    low: float
    high: float
    rises: bool
    falls: bool


def find_trend(times: Sequence[float], values: Sequence[float], confidence: float) -> Trend | None:
    """The trend of values at ascending times; each direction is told with `confidence` (0 to 1). None for too few."""
    if len(values) < LEAST_VALUES:
        return None
    when, what = np.asarray(times, np.float64), np.asarray(values, np.float64)
    slopes = _pairs(what) / _pairs(when)
    slope = float(np.median(slopes))
    score = float(np.sign(slopes).sum())
    spread = math.sqrt(_variance(what) * _correction(when, what))
    z = NormalDist().inv_cdf(confidence)
    low, high = _interval(np.sort(slopes), z * spread)
    # The score moves in steps of two: one less is what a continuous one would have had to pass (Kendall 1975).
    return Trend(slope, low, high, rises=score - 1 > z * spread, falls=score + 1 < -z * spread)


def _pairs(values: _Floats) -> _Floats:
    """Later less earlier, of all pairs."""
    earlier, later = np.triu_indices(len(values), 1)
    differences: _Floats = values[later] - values[earlier]
    return differences


def _variance(values: _Floats) -> float:
    """Of the score, where there is no trend; equal values tell nothing and take away from it."""
    _, ties = np.unique(values, return_counts=True)
    counts = np.concatenate(([len(values)], ties)).astype(np.float64)
    terms = counts * (counts - 1) * (2 * counts + 5)
    return float(terms[0] - terms[1:].sum()) / 18


def _correction(when: _Floats, what: _Floats) -> float:
    """How much more the score varies than with independent values: (1 + r) / (1 - r), never less than 1.

    r is the correlation of neighbours about a parabola: what a trend that bends leaves of a line would count as noise.
    """
    scaled = (when - when.mean()) / (when[-1] - when[0])
    residuals = what - np.polyval(np.polyfit(scaled, what, 2), scaled)
    power = float(residuals @ residuals)
    if power <= _NOTHING * float(what @ what):
        return 1.0
    # Three coefficients were fitted, which makes so few residuals look less alike than they are.
    size = len(residuals)
    correlation = float(residuals[1:] @ residuals[:-1]) / power
    correlation = min(max((size * correlation + 3) / (size - 6), 0.0), _MOST_CORRELATION)
    return (1 + correlation) / (1 - correlation)


def _interval(slopes: _Floats, width: float) -> tuple[float, float]:
    """Slopes by rank (Gilbert 1987): as far from the middle as the score may be by chance."""
    last = len(slopes) - 1
    low = max(round((len(slopes) - width) / 2) - 1, 0)
    return float(slopes[low]), float(slopes[min(last - low, last)])
