"""The page of a comparison: B beside A."""

from collections.abc import Mapping, Sequence

from tpuserve_loadtests.measurement.measured import Measured
from tpuserve_loadtests.outcomes.comparison import VERDICTS, ComparisonReport
from tpuserve_loadtests.rendering.drawing import Axis, Chart, Column, Curve, Numbers, draw_chart
from tpuserve_loadtests.rendering.interval_chart import draw_intervals
from tpuserve_loadtests.rendering.markup import Markup
from tpuserve_loadtests.rendering.page import render_page
from tpuserve_loadtests.rendering.sections import (
    Headline,
    Kind,
    Row,
    Tile,
    show_charts,
    show_headline,
    show_settings,
    show_table,
    show_tiles,
)
from tpuserve_loadtests.report_model.scales import Linear, latency_scale
from tpuserve_loadtests.report_model.units import milliseconds, per_second
from tpuserve_loadtests.reports.histogram_chart import draw_histogram
from tpuserve_loadtests.reports.origin import describe_origin
from tpuserve_loadtests.reports.percentile_chart import draw_percentiles
from tpuserve_loadtests.reports.run import describe_load, show_errors
from tpuserve_loadtests.reports.servers_section import show_servers
from tpuserve_loadtests.statistics.comparison import Comparison, Figure, Verdict
from tpuserve_loadtests.statistics.histogram import LatencyHistogram

_SIDES = ("A", "B")


def compare_page(model: str, report: ComparisonReport, settings: Mapping[str, str]) -> str:
    """`settings`: what was asked for, by name."""
    runs = [measured for pair in report.rounds for measured in pair]
    sections = [
        show_headline(compare_headline(report)),
        show_tiles(_tiles(report.comparison) if report.comparison else []),
        *show_comparison(report),
        show_errors(runs),
        show_settings({**_sides(report), **(describe_load(runs[0]) if runs else {}), **settings}),
    ]
    return render_page(f"{model}: {report.names[1]} beside {report.names[0]}", describe_origin(runs), sections)


def show_comparison(report: ComparisonReport) -> list[Markup]:
    """The difference, the figures, and both distributions."""
    histograms = _merged(report)
    intervals = [draw_intervals(report.comparison)] if report.comparison else []
    return [
        show_charts("The difference", [*intervals, _draw_rounds(report)]),
        show_table("Figures", ["figure", *_SIDES, "B/A", "99 % interval", "B is"], _rows(report)),
        show_servers("side", list(zip(_headings(report), report.sides, strict=False))),
        show_charts("Latencies", [draw_percentiles(histograms), draw_histogram(histograms)]),
    ]


def _headings(report: ComparisonReport) -> list[str]:
    """A and B with their names."""
    return [f"{side} ({name})" for side, name in zip(_SIDES, report.names, strict=True)]


def compare_headline(report: ComparisonReport) -> Headline:
    notes = [report.limit_note] if report.limit_note else []
    if report.failures:
        notes.append(f"{report.failures:,} requests failed")
    comparison = report.comparison
    if comparison is None:
        return Headline("warn", f"Stopped after {len(report.rounds)} whole rounds: too few to tell anything", notes)
    notes += [*report.unclear, *([report.where] if report.where else []), *report.server_notes]
    words = VERDICTS[comparison.verdict]
    found = [_differs(each) for each in comparison.figures if each.verdict in (Verdict.BETTER, Verdict.WORSE)]
    not_good = report.exit_code or comparison.verdict is Verdict.UNCLEAR
    kind: Kind = "bad" if comparison.verdict is Verdict.WORSE else "warn" if not_good else "good"
    if report.strict and report.limits:
        return Headline("warn", f"Not to be trusted: {words}, it seems", [*found, *notes])
    return Headline(kind, words, [*found, *notes])


def _differs(figure: Figure) -> str:
    change = 100 * (figure.ratio.ratio - 1)
    return f"{figure.name}: {abs(change):.1f} % {'higher' if change > 0 else 'lower'}, {figure.verdict}"


def _tiles(comparison: Comparison) -> list[Tile]:
    return [
        Tile(f"{figure.name} of B", _figure(figure.name, figure.ratio.b), f"A: {_figure(figure.name, figure.ratio.a)}")
        for figure in comparison.figures
    ]


def _rows(report: ComparisonReport) -> list[Row]:
    figures = report.comparison.figures if report.comparison else ()
    return [
        Row(
            figure.name,
            [
                _figure(figure.name, figure.ratio.a),
                _figure(figure.name, figure.ratio.b),
                f"{figure.ratio.ratio:.3f}",
                f"{figure.ratio.low:.3f} to {figure.ratio.high:.3f}",
                str(figure.verdict),
            ],
            good={Verdict.BETTER: True, Verdict.WORSE: False}.get(figure.verdict),
        )
        for figure in figures
    ]


def _figure(name: str, value: float) -> str:
    return per_second(value) if name == "rate" else milliseconds(value / 1000)


def _draw_rounds(report: ComparisonReport) -> Markup:
    """p99 of both in each round: whether the difference is there every time."""
    p99s = [[pair[side].total.percentile_ms(99) for pair in report.rounds] for side in range(2)]
    found = [value for side in p99s for value in side if value is not None]
    if not found:
        return Markup()
    rounds = range(1, len(report.rounds) + 1)
    told = [
        f"round {number}\nA {milliseconds(a)}\nB {milliseconds(b)}" for number, a, b in zip(rounds, *p99s, strict=True)
    ]
    chart = Chart(
        title="p99 of each round",
        label=f"p99 of A and B in {len(rounds)} rounds, from {milliseconds(min(found))} to {milliseconds(max(found))}",
        x=Axis("round", Linear(0.5, len(rounds) + 0.5)),
        y=Axis("ms", latency_scale(found)),
        curves=[
            Curve(side, list(zip(rounds, values, strict=True)), style, dots=True)
            for style, (side, values) in enumerate(zip(_headings(report), p99s, strict=True))
        ],
        columns=[Column(number, text) for number, text in zip(rounds, told, strict=True)],
        numbers=Numbers(
            ["round", *_SIDES],
            [[str(number), milliseconds(a), milliseconds(b)] for number, a, b in zip(rounds, *p99s, strict=True)],
        ),
    )
    return draw_chart(chart)


def _merged(report: ComparisonReport) -> dict[str, LatencyHistogram]:
    """Of all rounds, by side."""
    found: dict[str, LatencyHistogram] = {}
    for side, heading in enumerate(_headings(report)):
        found[heading] = _sum([pair[side] for pair in report.rounds])
    return found


def _sum(runs: Sequence[Measured]) -> LatencyHistogram:
    merged = LatencyHistogram()
    for measured in runs:
        merged.add(measured.total.histogram)
    return merged


def _sides(report: ComparisonReport) -> dict[str, str]:
    return {"A": report.names[0], "B": report.names[1], "Rounds": str(len(report.rounds))}
