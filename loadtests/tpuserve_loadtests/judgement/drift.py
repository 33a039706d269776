"""Whether a server that has been under load for hours is what it was, or drifts: slower, failing, growing.

A figure drifts if its trend is sure, comes to something over the soak, and goes on: memory that grows while caches
fill, and then no more, does not. The second half is looked at by itself, too, for what began late.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import median
from typing import Final

from tpuserve_loadtests.measurement.segments import Segment
from tpuserve_loadtests.statistics.comparison import LEAST_EFFECT
from tpuserve_loadtests.statistics.trend import LEAST_VALUES, Trend, find_trend

# For each figure, over all and in the second half: five of them make a false alarm in one soak of two hundred.
CONFIDENCE: Final = 0.9995
# In its second half a trend that goes on has at least this share of the slope that it has in all.
_GOES_ON: Final = 0.5
_HOUR_S: Final = 3600.0


class Course(StrEnum):
    """Where a figure goes."""

    STEADY = "steady"
    DRIFTING = "drifting"
    SETTLED = "settled"  # it went the wrong way at first, and does not any more
    BETTER = "better"
    UNKNOWN = "unknown"  # too few segments, or it was not told


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure that is watched. `least`: a smaller change over the soak is none; of the median if `relative`.

    None: as asked for. `direction`: 1 where more is worse, -1 where less is.
    """

    name: str
    least: float | None
    relative: bool = True
    direction: int = 1


# Answers a second are told by latency where the load is open, and by nothing else where users wait for each other.
FIGURES: Final = (
    Figure("p50_ms", None),
    Figure("p99_ms", None),
    Figure("error_rate", 0.001, relative=False),
    Figure("memory_bytes", 0.01),
    Figure("rate_per_s", None, direction=-1),
)


@dataclass(frozen=True, slots=True)
class Drift:
    """What became of a figure: its median, and how it changed in an hour, with the interval of that."""

    figure: Figure
    course: Course
    median: float | None
    per_hour: float | None
    low: float | None
    high: float | None

    @property
    def share_per_hour(self) -> float | None:
        """The change in an hour as a share of the median; None where there is none."""
        return self.per_hour / self.median if self.median and self.per_hour is not None else None


def judge_drift(segments: Sequence[Segment], *, is_open: bool, least_effect: float = LEAST_EFFECT) -> tuple[Drift, ...]:
    """Each figure that the load tells something of. Segments in which a figure is None are left out of it.

    `least_effect`: a smaller change of latencies and rate over all segments is none (0.05: 5 %).
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
    course = _course(figure.direction, trend, later, least)
    # What began late is told as it goes now.
    told = later if course is Course.DRIFTING and abs(later.slope) > abs(trend.slope) else trend
    per_hour, low, high = (slope * _HOUR_S for slope in (told.slope, told.low, told.high))
    return Drift(figure, course, middle, per_hour, low, high)


def _course(direction: int, trend: Trend, later: Trend, least: float) -> Course:
    """`least`: the slope that comes to something."""
    if _is_sure(later, direction, 2 * least):
        return Course.DRIFTING
    if _is_sure(trend, direction, least):
        goes_on = later.slope * direction >= _GOES_ON * abs(trend.slope)
        return Course.DRIFTING if goes_on else Course.SETTLED
    return Course.BETTER if _is_sure(trend, -direction, least) else Course.STEADY


def _is_sure(trend: Trend, direction: int, least: float) -> bool:
    return (trend.rises if direction > 0 else trend.falls) and abs(trend.slope) >= least


def _second_half(times: list[float], figures: list[float]) -> Trend:
    """The trend of it; of LEAST_VALUES values at least, which may be more than half."""
    half = min(len(times) // 2, len(times) - LEAST_VALUES)
    later = find_trend(times[half:], figures[half:], CONFIDENCE)
    assert later is not None  # there are enough values
    return later
