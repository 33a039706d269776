"""Drift of a server over hours of load: slower, failing, or growing in memory.

A figure drifts if its trend is significant, large enough over the soak, and continues. Memory that grows only while
caches fill does not drift. A separate trend of the second half detects drifts that start late.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import median
from typing import Final

from tpuserve_loadtests.measurement.segments import Segment
from tpuserve_loadtests.statistics.comparison import LEAST_EFFECT
from tpuserve_loadtests.statistics.trend import LEAST_VALUES, Trend, find_trend

# Confidence of each interval. Five figures, each with two trends, give a false alarm in one soak of 200.
CONFIDENCE: Final = 0.9995
# A trend continues if the slope of the second half is at least this share of the whole slope.
_GOES_ON: Final = 0.5
# A figure is unclear if its interval includes a deterioration of this many least changes.
_UNCLEAR_FROM: Final = 10
_HOUR_S: Final = 3600.0


class Course(StrEnum):
    """The course of a figure over the soak."""

    STEADY = "steady"
    DRIFTING = "drifting"
    SETTLED = "settled"  # worse at first, then stable
    BETTER = "better"
    UNCLEAR = "unclear"  # no trend is certain, but a large one is possible
    UNKNOWN = "unknown"  # too few segments, or the server does not report the figure


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure that the soak judges.

    `least` is the smallest change over the soak that counts, as a share of the median if `relative`. None stands for
    the command's --least-effect. `direction` is 1 if an increase is worse and -1 if a decrease is worse.
    """

    name: str
    least: float | None
    relative: bool = True
    direction: int = 1


# Only closed loads judge the rate. An open load sets the rate, and latency shows a slow server.
FIGURES: Final = (
    Figure("p50_ms", None),
    Figure("p99_ms", None),
    Figure("error_rate", 0.001, relative=False),
    Figure("memory_bytes", 0.01),
    Figure("rate_per_s", None, direction=-1),
)


@dataclass(frozen=True, slots=True)
class Drift:
    """The result for a figure: its median, and its change per hour with a confidence interval."""

    figure: Figure
    course: Course
    median: float | None
    per_hour: float | None
    low: float | None
    high: float | None

    @property
    def share_per_hour(self) -> float | None:
        """The change per hour as a share of the median; None without a median or change."""
        return self.per_hour / self.median if self.median and self.per_hour is not None else None


def judge_drift(segments: Sequence[Segment], *, is_open: bool, least_effect: float = LEAST_EFFECT) -> tuple[Drift, ...]:
    """Judge each figure that the load can show. Ignore segments in which a figure is None.

    A smaller change of latencies and rate than `least_effect` over all segments does not count (0.05: 5 %).
    """
    watched = [figure for figure in FIGURES if not (is_open and figure.name == "rate_per_s")]
    return tuple(_judge(figure, segments, least_effect) for figure in watched)


def _judge(figure: Figure, segments: Sequence[Segment], least_effect: float) -> Drift:
    values = {segment.at_s: getattr(segment, figure.name) for segment in segments}
    known = {at_s: float(value) for at_s, value in values.items() if value is not None}
    times, figures = list(known), list(known.values())
    trend = find_trend(times, figures, CONFIDENCE)
    if trend is None:
        return Drift(figure, Course.UNKNOWN, median(figures) if figures else None, None, None, None)
    middle = median(figures)
    share = least_effect if figure.least is None else figure.least
    least = share * (abs(middle) if figure.relative else 1.0) / (times[-1] - times[0])
    later = _second_half(times, figures)
    course, reported = _course(figure.direction, trend, later, least)
    per_hour, low, high = (slope * _HOUR_S for slope in (reported.slope, reported.low, reported.high))
    return Drift(figure, course, middle, per_hour, low, high)


def _course(direction: int, trend: Trend, later: Trend, least: float) -> tuple[Course, Trend]:
    """Return the course of a figure, and the trend that decides it, whose interval shows it.

    `least` is the smallest slope that counts. The interval of the second half can be wide by chance, so only a certain
    trend of that half replaces the trend of the whole soak.
    """
    if _is_sure(later, direction, 2 * least):
        # Series that started late report their current trend.
        is_steeper = abs(later.slope) > abs(trend.slope) or not _is_sure(trend, direction, least)
        return Course.DRIFTING, later if is_steeper else trend
    if _is_sure(trend, direction, least):
        goes_on = later.slope * direction >= _GOES_ON * abs(trend.slope)
        return Course.DRIFTING if goes_on else Course.SETTLED, trend
    if _is_sure(trend, -direction, least):
        return Course.BETTER, trend
    at_worst = trend.high if direction > 0 else -trend.low
    return Course.UNCLEAR if at_worst >= _UNCLEAR_FROM * least else Course.STEADY, trend


def _is_sure(trend: Trend, direction: int, least: float) -> bool:
    """Return whether the test and the interval both show a change in the direction that counts."""
    is_certain = (trend.rises and trend.low >= 0) if direction > 0 else (trend.falls and trend.high <= 0)
    return is_certain and abs(trend.slope) >= least


def _second_half(times: list[float], figures: list[float]) -> Trend:
    """Return the trend of the second half, or of the last LEAST_VALUES values if these are more."""
    half = min(len(times) // 2, len(times) - LEAST_VALUES)
    later = find_trend(times[half:], figures[half:], CONFIDENCE)
    assert later is not None  # there are enough values
    return later
