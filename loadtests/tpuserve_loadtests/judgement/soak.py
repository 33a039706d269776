"""Drift of a server over hours of load (slower, failing, or growing in memory), and the outcome of a soak.

A figure drifts if its trend is significant, large enough over the soak, and continues. Memory that grows only while
caches fill does not drift. A separate trend of the second half detects drifts that start late. A figure has changed if
some segments have another level, or if single segments are far worse than the median.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from statistics import median
from typing import Final

import numpy as np

from tpuserve_formats.counted import counted
from tpuserve_loadtests.judgement.exit_codes import exit_code, first_of
from tpuserve_loadtests.judgement.run import UNSETTLED, Rules, RunOutcome
from tpuserve_loadtests.measurement.measured import Segment, Segments
from tpuserve_loadtests.rendering.report import Case
from tpuserve_loadtests.rendering.scales import MIB
from tpuserve_loadtests.statistics.changes import find_bad, find_level
from tpuserve_loadtests.statistics.comparison import LEAST_EFFECT
from tpuserve_loadtests.statistics.trend import LEAST_VALUES, Trend, find_trend

# Confidence of each interval. Five figures, each with two trends, give a false alarm in one soak of 200.
CONFIDENCE: Final = 0.9995
# A trend continues if the slope of the second half is at least this share of the whole slope.
_GOES_ON: Final = 0.5
# A figure is unclear if its interval includes a deterioration of this many least changes.
_UNCLEAR_FROM: Final = 10
# A single segment is bad from this factor of the median on, or from this share of failures above it.
_BAD_FACTOR: Final = 2.0
_BAD_SHARE: Final = 0.01
# Numbers of bad segments that a report lists.
_SHOWN: Final = 8
_HOUR_S: Final = 3600.0


class Course(StrEnum):
    STEADY = "steady"
    DRIFTING = "drifting"
    CHANGED = "changed"  # some segments are certainly worse than the others
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
    """The result for a figure: its median, and its change per hour with a confidence interval.

    If the figure changed, `change` describes the worse segments, and `at_s` is the start of each period of them.
    """

    figure: Figure
    course: Course
    median: float | None
    per_hour: float | None
    low: float | None
    high: float | None
    change: str = ""
    at_s: tuple[float, ...] = ()

    @property
    def share_per_hour(self) -> float | None:
        """The change per hour as a share of the median; None without a median or change."""
        return self.per_hour / self.median if self.median and self.per_hour is not None else None


def judge_drift(segments: Sequence[Segment], *, is_open: bool, least_effect: float = LEAST_EFFECT) -> tuple[Drift, ...]:
    """Judge each figure that the load can show. Ignore segments in which a figure is None.

    A smaller change of latencies and rate than `least_effect` over all segments does not count (0.05: 5 %).
    """
    watched = [figure for figure in FIGURES if not (is_open and figure.name == "rate_per_s")]
    return tuple(
        _with_change(_judge(figure, segments, least_effect), segments, least_effect)
        if figure.name != "memory_bytes"  # it rises in steps while caches fill
        else _judge(figure, segments, least_effect)
        for figure in watched
    )


def _with_change(drift: Drift, segments: Sequence[Segment], least_effect: float) -> Drift:
    """Return the result of a figure that changed, if a level or single segments explain it better than the trend."""
    figure = drift.figure
    known = [(number, one) for number, one in enumerate(segments, 1) if getattr(one, figure.name) is not None]
    values = [float(getattr(one, figure.name)) for _, one in known]
    if figure.relative:
        if min(values, default=0.0) <= 0:
            return drift
        values = [figure.direction * math.log(value) for value in values]
    of = f"of {len(segments)}"
    level = find_level(values, math.log1p(least_effect) if figure.least is None else figure.least)
    if level and level.start == 0:
        # The server became faster: judge the segments since then.
        known, values, level = known[level.end :], values[level.end :], None
    if level and (drift.course is not Course.DRIFTING or level.residual < _residual_of_line(values)):
        (first, start), (last, end) = known[level.start], known[level.end - 1]
        place = f"from segment {first} {of} on (at {_clock(start.start_s)})"
        if level.end < len(known):
            place = (
                f"in segments {first} to {last} {of} ({_clock(start.start_s)} to {_clock(end.at_s + end.seconds / 2)})"
            )
        words = f"{TITLES[figure.name]} {_size(figure, level.rise)} {place}"
        return replace(drift, course=Course.CHANGED, change=words, at_s=(start.start_s,))
    bad = find_bad(values, math.log(_BAD_FACTOR) if figure.relative else _BAD_SHARE)
    if not bad or drift.course is Course.DRIFTING:
        return drift
    size = _size(figure, median(values[at] for at in bad) - median(values))
    numbers = ", ".join(str(known[at][0]) for at in bad[:_SHOWN]) + (", …" if len(bad) > _SHOWN else "")
    words = f"{TITLES[figure.name]} {size} in {counted(len(bad), 'segment')} {of} (segment {numbers})"
    return replace(drift, course=Course.CHANGED, change=words, at_s=tuple(known[at][1].start_s for at in bad))


def _residual_of_line(values: Sequence[float]) -> float:
    places = range(len(values))
    return float(np.square(np.asarray(values) - np.polyval(np.polyfit(places, values, 1), places)).sum())


def _size(figure: Figure, rise: float) -> str:
    if not figure.relative:
        return f"rose by {100 * rise:.3g} points"
    return f"{'rose' if figure.direction > 0 else 'fell'} to {math.exp(figure.direction * rise):.3g} times"


def _clock(at_s: float) -> str:
    return f"{at_s / 60:.3g} min" if at_s >= 60 else f"{at_s:.3g} s"


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
    is_certain = (trend.rises and trend.low >= 0) if direction > 0 else (trend.falls and trend.high <= 0)
    return is_certain and abs(trend.slope) >= least


def _second_half(times: list[float], figures: list[float]) -> Trend:
    half = min(len(times) // 2, len(times) - LEAST_VALUES)
    later = find_trend(times[half:], figures[half:], CONFIDENCE)
    assert later is not None  # there are enough values
    return later


_UNITS = {"p50_ms": " ms", "p99_ms": " ms", "error_rate": " %", "memory_bytes": " MiB", "rate_per_s": "/s"}
_SCALES = {"error_rate": 100.0, "memory_bytes": 1 / MIB}
TITLES = {
    "p50_ms": "p50",
    "p99_ms": "p99",
    "error_rate": "failures",
    "memory_bytes": "server's memory",
    "rate_per_s": "rate",
}


# Over a shorter soak, a change per hour would be an extrapolation.
_LEAST_SHOWN_HOURS = 0.5


@dataclass(frozen=True, slots=True)
class SoakOutcome:
    """The outcome of a soak. `run` merges all segments, and `planned` is the intended number of segments.

    `unwatched` is the reason why the server's memory is unknown. With `fail_if_unclear`, an unclear verdict fails the
    soak.
    """

    run: RunOutcome
    segments: Sequence[Segment]
    planned: int
    drifts: tuple[Drift, ...]
    fail_if_unclear: bool
    unwatched: str = ""

    @property
    def verdict(self) -> str:
        """`drifting`, `changed`, `unclear`, `steady`, or `unknown` after too few segments."""
        courses = {drift.course for drift in self.drifts}
        for course in (Course.DRIFTING, Course.CHANGED, Course.UNCLEAR):
            if course in courses:
                return str(course)
        return "steady" if courses - {Course.UNKNOWN} else "unknown"

    @property
    def is_worse(self) -> bool:
        return self.verdict in (Course.DRIFTING, Course.CHANGED)

    @property
    def exit_code(self) -> int:
        is_unclear = self.verdict == "unknown" or (self.verdict == "unclear" and self.fail_if_unclear)
        return first_of([self.run.exit_code, exit_code(gate=self.is_worse, evidence=is_unclear)])

    @property
    def notes(self) -> tuple[str, ...]:
        """The run's notes without the one on stability, because the merged run overlays the windows of all segments."""
        notes = tuple(note for note in self.run.notes if note != UNSETTLED)
        return (*notes, self.unwatched) if self.unwatched else notes

    @property
    def cases(self) -> list[Case]:
        problem = verdict_line(self) if self.verdict == "unknown" else ""
        hours = shown_hours(self)
        return [
            *self.run.cases,
            Case("it is long enough to tell", error=problem),
            *(_case(drift, hours, self.fail_if_unclear) for drift in self.drifts),
        ]


def judge_soak(
    run: RunOutcome,
    segments: Segments,
    planned: int,
    rules: Rules | None = None,
    unwatched: str = "",
) -> SoakOutcome:
    rules = rules or Rules()
    drifts = judge_drift(segments.done, is_open=run.measured.load.is_open, least_effect=rules.least_effect)
    return SoakOutcome(run, segments.done, planned, drifts, rules.fail_if_unclear, unwatched)


def verdict_line(report: SoakOutcome) -> str:
    if report.verdict == "unknown":
        return f"Inconclusive: {len(report.segments)} of the {LEAST_VALUES} segments that a trend needs"
    for course, words in ((Course.DRIFTING, "Drifting"), (Course.CHANGED, "Changed"), (Course.UNCLEAR, "Inconclusive")):
        if found := [TITLES[drift.figure.name] for drift in report.drifts if drift.course is course]:
            return f"{words}: {', '.join(found)}"
    return "Steady"


def verdict_cause(report: SoakOutcome) -> str:
    """Return the change that decides the verdict, or the widest interval of a steady soak; empty if it is unknown."""
    known = [drift for drift in report.drifts if drift.low is not None]
    decisive = [drift for drift in known if drift.course in (Course.DRIFTING, Course.UNCLEAR)]
    if report.verdict == "unknown" or not known:
        return ""
    if report.verdict == "changed":
        return "; ".join(drift.change for drift in known if drift.change)
    if report.verdict == "unclear":
        return f"{_change(decisive[0], report)} is too uncertain; run longer, or use more requests per segment"
    if decisive:
        return _change(next(drift for drift in decisive if drift.course is Course.DRIFTING), report)
    return f"no figure drifts; the least certain one is {_change(max(known, key=_width), report)}"


def _change(drift: Drift, report: SoakOutcome) -> str:
    hours = shown_hours(report)
    title, _, change, interval, _ = drift_cells(drift, hours)
    return f"{title} {change} {_span(hours)} (interval {interval})"


def _span(hours: float) -> str:
    return "per hour" if hours == 1 else "over the soak"


def _width(drift: Drift) -> float:
    assert drift.low is not None  # the caller selects known drifts
    assert drift.high is not None
    size = abs(drift.median or 0.0) if drift.figure.relative else 1.0
    return (drift.high - drift.low) / size if size else 0.0


def shown_hours(report: SoakOutcome) -> float:
    """Return the hours that a shown change refers to: 1, or the soak's length if it is under half an hour."""
    hours = sum(segment.seconds for segment in report.segments) / 3600
    return hours if hours < _LEAST_SHOWN_HOURS else 1.0


def drift_cells(drift: Drift, hours: float) -> list[str]:
    name = drift.figure.name
    middle = "-" if drift.median is None else f"{drift.median * _SCALES.get(name, 1.0):,.2f}{_UNITS[name]}"
    found = (drift.per_hour, drift.low, drift.high)
    if not drift.figure.relative:
        changes = [None if each is None else each * hours for each in found]
        unit = " points"
    else:
        changes = [None if each is None or not drift.median else each * hours / drift.median for each in found]
        unit = " %"
    texts = ["-" if each is None else f"{100 * each:+.3g}" for each in changes]
    change = "-" if changes[0] is None else texts[0] + unit
    interval = "-" if changes[0] is None else f"{texts[1]} to {texts[2]}"
    return [TITLES[name], middle, change, interval, str(drift.course)]


def _case(drift: Drift, hours: float, fail_if_unclear: bool) -> Case:
    title, middle, change, interval, course = drift_cells(drift, hours)
    problem = drift.change or f"{title} is {course}: {change} {_span(hours)} ({interval}), median {middle}"
    name, is_error = f"{title} does not drift", drift.course is Course.UNCLEAR and fail_if_unclear
    skipped = {Course.UNKNOWN: "too few values", Course.UNCLEAR: problem}
    is_worse = drift.course in (Course.DRIFTING, Course.CHANGED)
    return Case(name, problem if is_worse else "", skipped.get(drift.course, ""), error=problem if is_error else "")
