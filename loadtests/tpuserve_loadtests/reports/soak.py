"""The page of a soak: whether anything drifts, and each figure over the hours."""

from collections.abc import Mapping, Sequence
from typing import Final

from tpuserve_loadtests.exit_codes import EXIT_GENERATOR
from tpuserve_loadtests.judgement.drift import Course
from tpuserve_loadtests.measurement.segments import Segment
from tpuserve_loadtests.measurement.timeline import Stretch
from tpuserve_loadtests.outcomes.run import FROM_DUE
from tpuserve_loadtests.outcomes.soak import SoakReport, drift_cells, shown_hours, verdict_line
from tpuserve_loadtests.rendering.drawing import Axis, Chart, Column, Curve, Numbers, draw_chart
from tpuserve_loadtests.rendering.markup import Markup
from tpuserve_loadtests.rendering.page import render_page
from tpuserve_loadtests.rendering.sections import (
    Headline,
    Row,
    Tile,
    show_charts,
    show_headline,
    show_settings,
    show_table,
    show_tiles,
)
from tpuserve_loadtests.report_model.scales import Linear
from tpuserve_loadtests.report_model.time_axis import TimeAxis
from tpuserve_loadtests.report_model.units import milliseconds, per_second, percent, seconds
from tpuserve_loadtests.reports.histogram_chart import draw_histogram
from tpuserve_loadtests.reports.origin import describe_origin
from tpuserve_loadtests.reports.percentile_chart import draw_percentiles
from tpuserve_loadtests.reports.run import describe_load, show_errors
from tpuserve_loadtests.reports.run_verdict import NOT_TO_BE_TRUSTED
from tpuserve_loadtests.reports.server_report import MIB
from tpuserve_loadtests.reports.timeline_section import show_timeline

# What a drift's last cell says, where it is good or bad news.
_NEWS: Final = {Course.DRIFTING: False, Course.STEADY: True, Course.SETTLED: True, Course.BETTER: True}


def soak_page(report: SoakReport, settings: Mapping[str, str]) -> str:
    """`settings`: what was asked for, by name."""
    measured = report.run.measured
    sections = [
        show_headline(soak_headline(report)),
        show_tiles(_tiles(report)),
        *show_soak(report),
        show_errors([measured]),
        show_settings({**describe_load(measured), "Measured": _span(report), **settings}),
    ]
    return render_page(f"Soak of {report.run.model}", describe_origin([measured]), sections)


def show_soak(report: SoakReport) -> list[Markup]:
    """Trends, each figure over the segments, and the latencies of all of them."""
    measured = report.run.measured
    planned_s = report.planned * measured.load.seconds
    total = measured.total.histogram
    change = "change in an hour" if shown_hours(report) == 1 else "change"
    return [
        show_table("Trends", ["figure", "median", change, "interval", "is"], _rows(report)),
        show_timeline([_stretch(one) for one in report.segments], planned_s, stopped=measured.stopped),
        show_charts("The server", [_draw_memory(report.segments, planned_s)]),
        show_charts("Latencies", [draw_percentiles({"total": total}), draw_histogram({"requests": total})]),
    ]


def soak_headline(report: SoakReport) -> Headline:
    words = verdict_line(report)
    reasons = [
        *(str(result) for result in report.run.gates if result.failed),
        *(note for note in report.notes if note != FROM_DUE),
    ]
    if report.exit_code == EXIT_GENERATOR:
        return Headline("warn", NOT_TO_BE_TRUSTED, [words, *report.run.generator.limits])
    if report.verdict == "drifting":
        return Headline("bad", words, reasons)
    if any(result.failed for result in report.run.gates):
        return Headline("bad", "Failed the gates", [words, *reasons])
    if report.run.total.failures and report.exit_code:
        return Headline("bad", f"{report.run.total.failures:,} requests failed", [words, *reasons])
    return Headline("warn" if report.exit_code else "good", words, reasons)


def _tiles(report: SoakReport) -> list[Tile]:
    total = report.run.total
    return [
        Tile("segments", f"{len(report.segments)} of {report.planned}", _span(report)),
        Tile("answers", per_second(total.rate_per_s)),
        Tile("p50", milliseconds(total.p50_ms)),
        Tile("p99", milliseconds(total.p99_ms)),
        Tile(
            "failures",
            f"{total.failures:,}",
            f"{percent(report.run.measured.error_rate)} of {total.requests:,} requests",
        ),
    ]


def _span(report: SoakReport) -> str:
    return seconds(round(report.run.measured.span_s, 1))


def _rows(report: SoakReport) -> list[Row]:
    hours = shown_hours(report)
    rows = []
    for drift in report.drifts:
        name, *cells = drift_cells(drift, hours)
        rows.append(Row(name, cells, good=_NEWS.get(drift.course)))
    return rows


def _stretch(segment: Segment) -> Stretch:
    return Stretch(
        start_s=segment.at_s - segment.seconds / 2,
        seconds=segment.seconds,
        requests=segment.requests,
        failures=segment.failures,
        rate_per_s=segment.rate_per_s,
        p50_ms=segment.p50_ms,
        p90_ms=None,
        p99_ms=segment.p99_ms,
        max_ms=segment.max_ms,
    )


def _draw_memory(segments: Sequence[Segment], planned_s: float) -> Markup:
    """Nothing where the server does not tell."""
    known = [(one, one.memory_bytes / MIB) for one in segments if one.memory_bytes is not None]
    if not known:
        return Markup()
    time = TimeAxis(planned_s)
    sizes = [size for _, size in known]
    chart = Chart(
        title="Memory",
        label=f"The server's resident memory, from {min(sizes):,.1f} to {max(sizes):,.1f} MiB",
        x=time.axis,
        # A leak of a few MiB an hour would not show above a server's hundreds.
        y=Axis("MiB", Linear.around(sizes, zero=False)),
        curves=[Curve("resident", [(time.of(one.at_s), size) for one, size in known])],
        columns=[Column(time.of(one.at_s), f"{_says(time, one)}\n{size:,.1f} MiB") for one, size in known],
        numbers=Numbers(["time", "resident"], [[_says(time, one), f"{size:,.1f} MiB"] for one, size in known]),
    )
    return draw_chart(chart)


def _says(time: TimeAxis, segment: Segment) -> str:
    return time.says(segment.at_s - segment.seconds / 2, segment.seconds)
