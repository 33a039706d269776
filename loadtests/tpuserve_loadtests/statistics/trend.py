"""Trends of a series over time: the slope (Theil-Sen) and its significance (Mann-Kendall).

Both methods use pairs of values, so outliers have little effect, and the distribution is arbitrary. A server's
neighbouring values are correlated, which alone could make noise look like a trend. The test's variance is therefore
corrected for the correlation of detrended neighbours (Yue & Wang 2004, with the first lag alone).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

# With fewer values, a trend cannot reach the confidence that callers use.
LEAST_VALUES: Final = 10
# A higher correlation is not noise: 48 increasing values are a trend of any shape.
_MOST_CORRELATION: Final = 0.8
_NOTHING: Final = 1e-20  # rounding error of squares

_Floats: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Trend:
    """A slope in units of the values per unit of time, with its interval.

    `rises` and `falls` mark a significant direction.
    """

    slope: float
    low: float
    high: float
    rises: bool
    falls: bool


def find_trend(times: Sequence[float], values: Sequence[float], confidence: float) -> Trend | None:
    """Return the trend of values at ascending times, or None for too few values.

    Each direction is significant at `confidence` (0 to 1).
    """
    if len(values) < LEAST_VALUES:
        return None
    when, what = np.asarray(times, np.float64), np.asarray(values, np.float64)
    slopes = _pairs(what) / _pairs(when)
    slope = float(np.median(slopes))
    score = float(np.sign(slopes).sum())
    spread = math.sqrt(_variance(what) * _correction(when, what))
    z = NormalDist().inv_cdf(confidence)
    low, high = _interval(np.sort(slopes), z * spread)
    # Continuity correction: the score moves in steps of two (Kendall 1975).
    return Trend(slope, low, high, rises=score - 1 > z * spread, falls=score + 1 < -z * spread)


def _pairs(values: _Floats) -> _Floats:
    earlier, later = np.triu_indices(len(values), 1)
    differences: _Floats = values[later] - values[earlier]
    return differences


def _variance(values: _Floats) -> float:
    _, ties = np.unique(values, return_counts=True)
    counts = np.concatenate(([len(values)], ties)).astype(np.float64)
    terms = counts * (counts - 1) * (2 * counts + 5)
    return float(terms[0] - terms[1:].sum()) / 18


def _correction(when: _Floats, what: _Floats) -> float:
    """Return the factor by which correlation increases the score's variance: (1 + r) / (1 - r), at least 1.

    r is the correlation of neighbours after subtraction of a parabola. With a line, a curved trend would count as
    noise.
    """
    scaled = (when - when.mean()) / (when[-1] - when[0])
    residuals = what - np.polyval(np.polyfit(scaled, what, 2), scaled)
    is_nothing = float(residuals @ residuals) <= _NOTHING * float(what @ what)
    return 1.0 if is_nothing else inflation(residuals, 3)


def inflation(residuals: NDArray[np.float64], coefficients: int) -> float:
    """Return the factor by which the correlation of neighbours increases the variance of a mean: (1 + r) / (1 - r).

    The fit of some `coefficients` lowers the apparent correlation of few residuals, which r corrects.
    """
    size, power = len(residuals), float(residuals @ residuals)
    if not power:
        return 1.0
    correlation = float(residuals[1:] @ residuals[:-1]) / power
    correlation = min(max((size * correlation + coefficients) / (size - 2 * coefficients), 0.0), _MOST_CORRELATION)
    return (1 + correlation) / (1 - correlation)


def _interval(slopes: _Floats, width: float) -> tuple[float, float]:
    """Return the interval of slopes by rank (Gilbert 1987), as wide as the score's random variation."""
    last = len(slopes) - 1
    low = max(round((len(slopes) - width) / 2) - 1, 0)
    return float(slopes[low]), float(slopes[min(last - low, last)])
