"""The outcome of a soak: its segments, the trend of each figure, and the verdict."""

from collections.abc import Sequence
from dataclasses import dataclass

from tpuserve_loadtests.judgement.drift import Course, Drift, judge_drift
from tpuserve_loadtests.judgement.exit_codes import EXIT_FAILED, EXIT_GATE, EXIT_GENERATOR
from tpuserve_loadtests.judgement.run import UNSETTLED, RunOutcome
from tpuserve_loadtests.measurement.segments import Segment, Segments
from tpuserve_loadtests.rendering.report import Case
from tpuserve_loadtests.rendering.units import MIB
from tpuserve_loadtests.statistics.trend import LEAST_VALUES

_UNITS = {"p50_ms": " ms", "p99_ms": " ms", "error_rate": " %", "memory_bytes": " MiB", "rate_per_s": "/s"}
_SCALES = {"error_rate": 100.0, "memory_bytes": 1 / MIB}
_TITLES = {
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
        """`drifting`, `unclear`, `steady`, or `unknown` after too few segments."""
        courses = {drift.course for drift in self.drifts}
        for course in (Course.DRIFTING, Course.UNCLEAR):
            if course in courses:
                return str(course)
        return "steady" if courses - {Course.UNKNOWN} else "unknown"

    @property
    def exit_code(self) -> int:
        """The run's exit code, or the code of a failed gate if the server drifts.

        An unclear verdict has the code of comparisons without a verdict, if it fails the soak. An unknown verdict is a
        failure.
        """
        of_run = self.run.exit_code
        if of_run == EXIT_GENERATOR or self.verdict == "steady":
            return of_run
        if self.verdict == "drifting":
            return EXIT_GATE
        if self.verdict == "unclear":
            return of_run or (EXIT_GENERATOR if self.fail_if_unclear else 0)
        return of_run or EXIT_FAILED

    @property
    def notes(self) -> tuple[str, ...]:
        """The run's notes without the one on stability, because the merged run overlays the windows of all segments."""
        notes = tuple(note for note in self.run.notes if note != UNSETTLED)
        return (*notes, self.unwatched) if self.unwatched else notes

    @property
    def cases(self) -> list[Case]:
        """The report's test cases: the run's, the length of the soak, and one for each figure."""
        problem = verdict_line(self) if self.verdict == "unknown" else ""
        hours = shown_hours(self)
        return [
            *self.run.cases,
            Case("it is long enough to tell", problem),
            *(_case(drift, hours, self.fail_if_unclear) for drift in self.drifts),
        ]


def judge_soak(
    run: RunOutcome,
    segments: Segments,
    planned: int,
    least_effect: float,
    *,
    fail_if_unclear: bool = True,
    unwatched: str = "",
) -> SoakOutcome:
    """Judge the segments so far."""
    drifts = judge_drift(segments.done, is_open=run.measured.load.is_open, least_effect=least_effect)
    return SoakOutcome(run, segments.done, planned, drifts, fail_if_unclear, unwatched)


def verdict_line(report: SoakOutcome) -> str:
    """Return the verdict in words."""
    if report.verdict == "unknown":
        return f"Inconclusive: {len(report.segments)} of the {LEAST_VALUES} segments that a trend needs"
    for course, words in ((Course.DRIFTING, "Drifting"), (Course.UNCLEAR, "Inconclusive")):
        if found := [_TITLES[drift.figure.name] for drift in report.drifts if drift.course is course]:
            return f"{words}: {', '.join(found)}"
    return "Steady"


def verdict_cause(report: SoakOutcome) -> str:
    """Return the change that decides the verdict, or the widest interval of a steady soak; empty if it is unknown."""
    known = [drift for drift in report.drifts if drift.low is not None]
    decisive = [drift for drift in known if drift.course in (Course.DRIFTING, Course.UNCLEAR)]
    if report.verdict == "unknown" or not known:
        return ""
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
    """Return the width of a drift's interval as a share of the median, or in shares for the failures."""
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
    middle = "-" if drift.median is None else _show(name, drift.median)
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
    return [_TITLES[name], middle, change, interval, str(drift.course)]


def _case(drift: Drift, hours: float, fail_if_unclear: bool) -> Case:
    title, middle, change, interval, course = drift_cells(drift, hours)
    problem = f"{title} is {course}: {change} {_span(hours)} ({interval}), median {middle}"
    failing = (Course.DRIFTING, Course.UNCLEAR) if fail_if_unclear else (Course.DRIFTING,)
    skipped = {Course.UNKNOWN: "too few values", Course.UNCLEAR: problem}
    return Case(f"{title} does not drift", problem if drift.course in failing else "", skipped.get(drift.course, ""))


def _show(name: str, value: float) -> str:
    return f"{value * _SCALES.get(name, 1.0):,.2f}{_UNITS[name]}"
