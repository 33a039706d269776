"""The page of a sweep: what each load gave."""

from collections.abc import Mapping, Sequence

from tpuserve_loadtests.exit_codes import EXIT_GENERATOR
from tpuserve_loadtests.outcomes.run import RunReport
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
from tpuserve_loadtests.report_model.units import milliseconds, per_second, three_digits
from tpuserve_loadtests.reports.origin import describe_origin
from tpuserve_loadtests.reports.percentile_chart import draw_percentiles
from tpuserve_loadtests.reports.run import LATENCIES, describe_load, latency_cells, show_errors
from tpuserve_loadtests.reports.run_verdict import NOT_TO_BE_TRUSTED
from tpuserve_loadtests.reports.servers_section import chart_servers, show_servers
from tpuserve_loadtests.reports.sweep_report import step_name, step_notes
from tpuserve_loadtests.reports.throughput_chart import draw_throughput
from tpuserve_loadtests.statistics.histogram import LatencyHistogram

# More curves than this in one chart cannot be told apart.
_MOST_CURVES = 6


def sweep_page(reports: Sequence[RunReport], settings: Mapping[str, str]) -> str:
    """At least one report; `settings`: what was asked for, by name."""
    steps = [(str(report.measured.load), report.total) for report in reports]
    shared = describe_load(reports[0].measured) | {"Load": ""}
    charts = [
        draw_throughput(steps, named=not reports[0].measured.load.is_open),
        draw_percentiles(_histograms(reports)),
    ]
    is_open = reports[0].measured.load.is_open
    kind = "requests a second that were offered" if is_open else "users"
    servers = [(step_name(report), report.watched) for report in reports]
    places = [(name.removesuffix("/s").split()[0], watched) for name, watched in servers]
    sections = [
        show_headline(_headline(reports)),
        show_tiles(_tiles(reports)),
        show_charts("What more load does", charts),
        chart_servers(kind, places),
        show_servers("load", servers),
        show_table("Steps", ["load", "requests", "failures", "answers/s", *LATENCIES, "generator"], _rows(reports)),
        show_errors([report.measured for report in reports]),
        show_settings({**shared, **settings}),
    ]
    title = f"Sweep of {reports[0].model}"
    return render_page(title, describe_origin([report.measured for report in reports]), sections)


def _headline(reports: Sequence[RunReport]) -> Headline:
    notes = _notes(reports)
    if any(report.exit_code == EXIT_GENERATOR for report in reports):
        return Headline("warn", NOT_TO_BE_TRUSTED, notes)
    failures = sum(report.total.failures for report in reports)
    if any(report.exit_code for report in reports):
        return Headline("bad", f"{failures:,} requests failed" if failures else "A step measured nothing", notes)
    best = max(reports, key=lambda report: report.total.rate_per_s)
    words = f"Up to {per_second(best.total.rate_per_s)}, with {best.measured.load}"
    trusted = all(report.generator.trusted for report in reports)
    return Headline("good" if trusted else "warn", words, notes)


def _notes(reports: Sequence[RunReport]) -> list[str]:
    """Each once, with the loads that it is about."""
    loads: dict[str, list[str]] = {}
    for report in reports:
        for note in step_notes(report):
            loads.setdefault(note, []).append(str(report.measured.load))
    return [f"{note} ({', '.join(about)})" for note, about in loads.items()]


def _tiles(reports: Sequence[RunReport]) -> list[Tile]:
    answered = [report for report in reports if report.total.p99_ms is not None]
    if not answered:
        return []
    best = max(answered, key=lambda report: report.total.rate_per_s)
    fastest = min(answered, key=lambda report: report.total.p99_ms or 0.0)
    failures = sum(report.total.failures for report in reports)
    return [
        Tile("most answers", per_second(best.total.rate_per_s), str(best.measured.load)),
        Tile("p99 there", milliseconds(best.total.p99_ms), f"p50 {milliseconds(best.total.p50_ms)}"),
        Tile("least p99", milliseconds(fastest.total.p99_ms), str(fastest.measured.load)),
        Tile("failures", f"{failures:,}", f"in {len(reports)} steps"),
    ]


def _rows(reports: Sequence[RunReport]) -> list[Row]:
    return [
        Row(
            str(report.measured.load),
            [
                f"{report.total.requests:,}",
                f"{report.total.failures:,}",
                three_digits(report.total.rate_per_s),
                *latency_cells(report.total),
                "✓ kept up" if report.generator.trusted else "✗ the limit",
            ],
            good=report.generator.trusted,
        )
        for report in reports
    ]


def _histograms(reports: Sequence[RunReport]) -> dict[str, LatencyHistogram]:
    """Of steps spread evenly over all of them, the first and the last among them."""
    last = len(reports) - 1
    chosen = {round(number * last / (_MOST_CURVES - 1)) for number in range(_MOST_CURVES)} if last else {0}
    return {str(reports[number].measured.load): reports[number].measured.total.histogram for number in sorted(chosen)}
