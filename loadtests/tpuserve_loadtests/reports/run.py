"""The page of one run."""

from collections.abc import Mapping, Sequence

from tpuserve_loadtests.arrivals.load import Load
from tpuserve_loadtests.measurement.measured import Measured
from tpuserve_loadtests.measurement.tally import Summary
from tpuserve_loadtests.measurement.timeline import timeline
from tpuserve_loadtests.outcomes.run import PROTOCOL_TITLES, RunReport
from tpuserve_loadtests.rendering.drawing import Rule
from tpuserve_loadtests.rendering.markup import Markup
from tpuserve_loadtests.rendering.page import render_page
from tpuserve_loadtests.rendering.sections import (
    Row,
    Tile,
    show_charts,
    show_headline,
    show_settings,
    show_table,
    show_tiles,
)
from tpuserve_loadtests.report_model.units import milliseconds, per_second, percent, seconds, three_digits
from tpuserve_loadtests.reports.histogram_chart import draw_histogram
from tpuserve_loadtests.reports.origin import describe_origin
from tpuserve_loadtests.reports.percentile_chart import draw_percentiles
from tpuserve_loadtests.reports.run_verdict import run_headline, show_checks
from tpuserve_loadtests.reports.server_section import show_server, show_server_timeline
from tpuserve_loadtests.reports.timeline_section import show_timeline

_MOST_ERRORS = 20
LATENCIES = ("p50 ms", "p90 ms", "p99 ms", "max ms")


def run_page(report: RunReport, settings: Mapping[str, str]) -> str:
    """`settings`: what was asked for, by name."""
    measured = report.measured
    sections = [
        show_headline(run_headline(report)),
        show_tiles(_tiles(report)),
        show_checks(report),
        show_timeline(timeline(measured), measured.load.seconds, _offered(measured.load), measured.stopped),
        show_charts("Latencies", _latencies(report), _counted(measured.load)),
        show_server(report.watched),
        show_server_timeline(report.watched.server, measured.load.seconds),
        show_table(f"By {report.line_kind}", _headings(report), _rows(report)),
        show_errors([measured]),
        show_settings({**describe_load(measured), **settings}),
    ]
    return render_page(f"Load test of {report.model}", describe_origin([measured]), sections)


def describe_load(measured: Measured) -> dict[str, str]:
    """What kind of load it was."""
    load = measured.load
    warm_up = f", after {seconds(load.warm_up_s)} of warm-up" if load.warm_up_s else ""
    kind = "open" if load.is_open else "closed"
    return {
        "Load": f"{load} ({kind})",
        "Measured": f"{seconds(load.seconds)}{warm_up}",
        "Seed": str(load.seed) if load.is_open else "",
        "Generator": f"{len(measured.cores)} process{'es' if len(measured.cores) > 1 else ''}",
    }


def latency_cells(line: Summary) -> list[str]:
    """Cells for LATENCIES."""
    latencies = (line.p50_ms, line.p90_ms, line.p99_ms, line.max_ms)
    return ["-" if value is None else three_digits(value) for value in latencies]


def show_errors(runs: Sequence[Measured]) -> Markup:
    """The commonest failures of all runs, in the server's own words."""
    counts: dict[tuple[str, str], int] = {}
    for measured in runs:
        for error in measured.recorder.errors():
            key = (error.line, error.message)
            counts[key] = counts.get(key, 0) + error.count
    ranked = sorted(counts.items(), key=lambda one: -one[1])
    rows = [
        Row(message, [PROTOCOL_TITLES.get(line, line), f"{count:,}"])
        for (line, message), count in ranked[:_MOST_ERRORS]
    ]
    hidden = sum(count for _, count in ranked[_MOST_ERRORS:])
    if hidden:
        rows.append(Row(f"{len(ranked) - _MOST_ERRORS} other messages", ["", f"{hidden:,}"]))
    return show_table("Failures", ["message", "line", "requests"], rows)


def _tiles(report: RunReport) -> list[Tile]:
    total, load = report.total, report.measured.load
    offered = "" if load.offered_per_s is None else f"of {per_second(load.offered_per_s)} offered"
    bound = "" if total.p99_bound_ms is None else f"at most {milliseconds(total.p99_bound_ms)}, at 99 % confidence"
    return [
        Tile("answers", per_second(total.rate_per_s), offered),
        Tile("p50", milliseconds(total.p50_ms)),
        Tile("p99", milliseconds(total.p99_ms), bound),
        Tile("slowest", milliseconds(total.max_ms)),
        Tile(
            "failures", f"{total.failures:,}", f"{percent(report.measured.error_rate)} of {total.requests:,} requests"
        ),
    ]


def _rows(report: RunReport) -> list[Row]:
    lines = [*report.measured.lines(), *([report.total] if len(report.measured.lines()) > 1 else [])]
    return [
        Row(PROTOCOL_TITLES.get(line.name, line.name), _cells(line, report), whole=line.name == "total")
        for line in lines
    ]


def _headings(report: RunReport) -> list[str]:
    wrong = ["wrong"] if report.total.checked else []
    return [report.line_kind, "requests", "failures", *wrong, "answers/s", *LATENCIES]


def _cells(line: Summary, report: RunReport) -> list[str]:
    wrong = [f"{line.wrong:,}"] if report.total.checked else []
    return [f"{line.requests:,}", f"{line.failures:,}", *wrong, three_digits(line.rate_per_s), *latency_cells(line)]


def _latencies(report: RunReport) -> list[Markup]:
    recorder = report.measured.recorder
    total = report.measured.total.histogram
    names = recorder.lines if len(recorder.lines) > 1 else ()
    histograms = {PROTOCOL_TITLES.get(name, name): recorder.tally(name).histogram for name in names}
    limits = [Rule(str(result.gate), y=result.gate.value) for result in report.gates if result.gate.is_latency]
    return [draw_percentiles({"total": total, **histograms}, limits), draw_histogram({"requests": total})]


def _counted(load: Load) -> str:
    return "Counted from when a request was due, not from when it was sent." if load.is_open else ""


def _offered(load: Load) -> list[tuple[float, float]]:
    """The corners of the rate that was asked for; nothing of closed loads and recorded arrivals."""
    corners, at_s = [], 0.0
    for segment in load.profile.segments if load.profile else ():
        corners += [(at_s, segment.start_per_s), (at_s + segment.seconds, segment.end_per_s)]
        at_s += segment.seconds
    return corners
