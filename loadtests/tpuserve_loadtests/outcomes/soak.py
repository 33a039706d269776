"""A soak: its segments, how each figure went, and the verdict."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tpuserve_loadtests.exit_codes import EXIT_FAILED, EXIT_GATE, EXIT_GENERATOR
from tpuserve_loadtests.judgement.drift import CONFIDENCE, Course, Drift, judge_drift
from tpuserve_loadtests.measurement.segments import Segment, Segments
from tpuserve_loadtests.measurement.tally import Summary
from tpuserve_loadtests.outcomes.run import (
    LATENCY_COLUMNS,
    PLAIN_WIDTH,
    UNSETTLED,
    RunReport,
    as_document,
    latency_cells,
    print_errors,
)
from tpuserve_loadtests.rendering.junit import Case
from tpuserve_loadtests.reports.server_report import MIB
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


# Over less of it, what changes in an hour would be a guess.
_LEAST_SHOWN_HOURS = 0.5


@dataclass(frozen=True, slots=True)
class SoakReport:
    """`run` is all segments as one run; `planned` how many segments there were to be.

    `unwatched`: why the server's memory is not known.
    """

    run: RunReport
    segments: Sequence[Segment]
    planned: int
    drifts: tuple[Drift, ...]
    unwatched: str = ""

    @property
    def verdict(self) -> str:
        """`drifting`, `steady`, or `unknown` after too few segments."""
        courses = {drift.course for drift in self.drifts}
        if Course.DRIFTING in courses:
            return "drifting"
        return "steady" if courses - {Course.UNKNOWN} else "unknown"

    @property
    def exit_code(self) -> int:
        """As a run's; a server that drifts is a gate that failed, and one of which nothing can be told no success."""
        of_run = self.run.exit_code
        if of_run == EXIT_GENERATOR or self.verdict == "steady":
            return of_run
        return EXIT_GATE if self.verdict == "drifting" else of_run or EXIT_FAILED

    @property
    def notes(self) -> tuple[str, ...]:
        """The run's, but whether it settled: windows of all segments lie one over the other in it."""
        notes = tuple(note for note in self.run.notes if note != UNSETTLED)
        return (*notes, self.unwatched) if self.unwatched else notes

    @property
    def cases(self) -> list[Case]:
        """The run's, whether it was long enough, and one for each figure that was watched."""
        told = verdict_line(self) if self.verdict == "unknown" else ""
        hours = shown_hours(self)
        return [
            *self.run.cases,
            Case("it is long enough to tell", told),
            *(_case(drift, hours) for drift in self.drifts),
        ]


def build_soak(
    run: RunReport, segments: Segments, planned: int, least_effect: float, unwatched: str = ""
) -> SoakReport:
    """Judge the segments so far."""
    drifts = judge_drift(segments.done, is_open=run.measured.load.is_open, least_effect=least_effect)
    return SoakReport(run, segments.done, planned, drifts, unwatched)


def soak_document(report: SoakReport) -> dict[str, Any]:  # for JSON
    """All figures for programs: the run's, each segment and each drift."""
    of_run = as_document(report.run)
    del of_run["stable"]
    return {
        **of_run,
        "ok": report.exit_code == 0,
        "exit_code": report.exit_code,
        "notes": list(report.notes),
        "verdict": report.verdict,
        "confidence": CONFIDENCE,
        "planned_segments": report.planned,
        "drifts": [_drift_document(drift) for drift in report.drifts],
        "segments": [segment_document(segment) for segment in report.segments],
    }


def segment_document(segment: Segment) -> dict[str, Any]:  # for JSON
    """One segment, as a line of the log."""
    return {**asdict(segment), "error_rate": segment.error_rate}


def segment_line(segment: Segment, number: int, planned: int) -> str:
    """One segment for who watches."""
    latencies = ("-" if value is None else f"{value:.2f}" for value in (segment.p50_ms, segment.p99_ms))
    p50, p99 = latencies
    line = f"  {number:4} of {planned}  {segment.rate_per_s:,.1f}/s  p50 {p50} ms  p99 {p99} ms"
    if segment.failures:
        line += f"  {segment.failures:,} failures"
    return line if segment.memory_bytes is None else f"{line}  memory {segment.memory_bytes / MIB:,.1f} MiB"


def print_soak(report: SoakReport, console: Console) -> None:
    """Table of figures, verdict and notes."""
    if not console.is_terminal:
        console.width = PLAIN_WIDTH
    total = report.run.total
    span = f"{len(report.segments)} of {report.planned} segments, {total.requests:,} requests"
    table = Table(title=f"{escape(report.run.model)}: {report.run.measured.load}, {span}", title_justify="left")
    table.add_column("figure", no_wrap=True)
    hours = shown_hours(report)
    for heading in ("median", "change in an hour" if hours == 1 else "change", "interval", "is"):
        table.add_column(heading, justify="right", no_wrap=True)
    for drift in report.drifts:
        table.add_row(*drift_cells(drift, hours))
    console.print(table)
    console.print(f"  {verdict_line(report)}", highlight=False, soft_wrap=True)
    console.print(f"  {_total_line(total)}", highlight=False, soft_wrap=True)
    print_errors(report.run.measured.recorder.errors(), console)
    for line in (*map(str, report.run.gates), *(f"note: {note}" for note in report.notes)):
        console.print(f"  {escape(line)}", highlight=False, soft_wrap=True)


def verdict_line(report: SoakReport) -> str:
    """The verdict in words."""
    if report.verdict == "unknown":
        return f"Too short to tell: {len(report.segments)} segments of the {LEAST_VALUES} that a trend needs"
    worse = [_TITLES[drift.figure.name] for drift in report.drifts if drift.course is Course.DRIFTING]
    return f"Drifting: {', '.join(worse)}" if worse else "Steady"


def _total_line(total: Summary) -> str:
    latencies = zip(LATENCY_COLUMNS, latency_cells(total), strict=True)
    shown = ", ".join(f"{column.removesuffix(' ms')} {cell} ms" for column, cell in latencies)
    return f"in all: {total.requests:,} requests, {total.failures:,} failures, {total.rate_per_s:,.1f}/s, {shown}"


def shown_hours(report: SoakReport) -> float:
    """What changes are told of: an hour, or the soak if it is shorter than half of one."""
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


def _case(drift: Drift, hours: float) -> Case:
    title, middle, change, interval, course = drift_cells(drift, hours)
    span = "an hour" if hours == 1 else "all"
    problem = f"{title} is {course}: {change} in {span} ({interval}), median {middle}"
    return Case(
        f"{title} does not drift",
        problem if drift.course is Course.DRIFTING else "",
        "too little is known of it" if drift.course is Course.UNKNOWN else "",
    )


def _show(name: str, value: float) -> str:
    return f"{value * _SCALES.get(name, 1.0):,.2f}{_UNITS[name]}"


def _drift_document(drift: Drift) -> dict[str, Any]:  # for JSON
    return {
        "figure": drift.figure.name,
        "course": drift.course,
        "median": drift.median,
        "per_hour": drift.per_hour,
        "interval": [drift.low, drift.high],
        "share_per_hour": drift.share_per_hour,
    }
