"""The report of a comparison of A and B."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Final

from tpuserve_formats.counted import counted
from tpuserve_loadtests.golden.difference import MOST_SHOWN, Parity
from tpuserve_loadtests.judgement.comparison import (
    INTERVAL,
    SIDES,
    ComparisonOutcome,
    SideTotal,
    comparison_cells,
    cost_cells,
    failure_cells,
)
from tpuserve_loadtests.judgement.exit_codes import EXIT_INTERRUPTED
from tpuserve_loadtests.judgement.spending import Spending
from tpuserve_loadtests.measurement.measured import Measured
from tpuserve_loadtests.rendering.chart import Axis, Chart, Interval, Intervals
from tpuserve_loadtests.rendering.report import (
    Charts,
    Document,
    Headline,
    Page,
    Remark,
    Report,
    Row,
    Section,
    Table,
    Tile,
)
from tpuserve_loadtests.rendering.scales import Linear, milliseconds, per_second, percent
from tpuserve_loadtests.reports import charts, costs, figures, servers
from tpuserve_loadtests.reports.run import NOT_TO_BE_TRUSTED
from tpuserve_loadtests.statistics.comparison import RATE, Comparison, Figure, Verdict
from tpuserve_loadtests.statistics.histogram import LatencyHistogram

HEADINGS: Final = ("figure", *SIDES, "B/A", INTERVAL, "verdict")
_NEWS: Final = {Verdict.BETTER: True, Verdict.WORSE: False, Verdict.FAILING: False}
_GATE_FAILED: Final = "B failed the gate"
_GATES_FAILED: Final = "B failed a gate"


def compare_report(model: str, outcome: ComparisonOutcome, settings: Mapping[str, str]) -> Report:
    """Build the report. `settings`: the settings to show, by name."""
    return Report(
        kind="loadtest compare",
        subject=model,
        exit_code=outcome.exit_code,
        cases=outcome.cases,
        statement="\n".join([compare_headline(outcome).sentence, *_side_lines(outcome)]),
        document=lambda: _document(outcome),
        page=lambda: _page(model, outcome, settings),
        rows=lambda: [
            {"round": number, "side": side, **figures.run_row(each), **_cost_cell(outcome, side, each)}
            for number, side, each in _runs(outcome)
        ],
        runs={f"{side}{number}": measured for number, side, measured in _runs(outcome)},
    )


def _runs(outcome: ComparisonOutcome) -> list[tuple[int, str, Measured]]:
    rounds = enumerate(outcome.rounds, start=1)
    return [(number, side, each) for number, pair in rounds for side, each in zip(SIDES, pair, strict=True)]


def _document(outcome: ComparisonOutcome) -> Document:
    comparison = outcome.comparison
    failures = comparison.failures if comparison else None
    watched = [each.as_document() for each in outcome.sides] or [{} for _ in outcome.totals]
    spent = [each.as_document() for each in outcome.spendings] or [{} for _ in outcome.totals]
    return {
        "a": outcome.names[0],
        "b": outcome.names[1],
        "verdict": comparison.verdict if comparison else None,
        "exit_code": outcome.exit_code,
        "rounds": len(outcome.rounds),
        "least_effect": comparison.least_effect if comparison else None,
        "figures": {figure.name: figure_document(figure) for figure in comparison.figures} if comparison else {},
        "failures": outcome.failures,
        "error_rate": {**asdict(failures.shares), "verdict": failures.verdict} if failures else None,
        "gates": [result.as_document() for result in outcome.gates],
        "generator_limits": list(outcome.limits),
        "notes": list(outcome.unjudged),
        "sides": {
            side.letter.lower(): {**_side_document(side), **of_server, **spending}
            for side, of_server, spending in zip(outcome.totals, watched, spent, strict=True)
        },
        "cost_ratio": asdict(outcome.cost_ratio) if outcome.cost_ratio else None,
        "where": outcome.where,
        "server_notes": list(outcome.server_notes),
        "parity": outcome.parity.as_document() if outcome.parity else None,
    }


def _side_lines(outcome: ComparisonOutcome) -> list[str]:
    return [
        f"{side}: {line}"
        for side, spending in zip(SIDES, outcome.spendings, strict=False)
        for line in costs.measured_lines(spending)
    ]


def _cost_cell(outcome: ComparisonOutcome, side: str, measured: Measured) -> dict[str, Any]:  # values of several types
    at = SIDES.index(side)
    price = outcome.prices[at] if outcome.prices else None
    cost = Spending(measured.rate_per_s, outcome.rows[at], price).per_million_predictions
    return {"cost_per_million_predictions": cost}


def _side_document(side: SideTotal) -> Document:
    errors = [{"message": error.message, "count": error.count} for error in side.measured.recorder.errors()]
    return {
        "name": side.name,
        **figures.figures_of(side.total),
        "error_rate": side.measured.error_rate,
        "errors": errors,
    }


def figure_document(figure: Figure) -> Document:
    unit = 1.0 if figure.name == RATE else 1000.0
    ratio = {**asdict(figure.ratio), "a": figure.ratio.a / unit, "b": figure.ratio.b / unit}
    return {**ratio, "verdict": figure.verdict, "at_worst": figure.at_worst}


def _sides_table(outcome: ComparisonOutcome) -> Table:
    rows = []
    for side in outcome.totals:
        counts = [f"{side.total.requests:,}", f"{side.total.failures:,}", percent(side.measured.error_rate)]
        rows.append(Row(side.letter, [*counts, *figures.latency_cells(side.total)]))
    headings = ["side", "requests", "failures", "failure rate", *figures.LATENCIES]
    return Table("Sides", headings, rows, names="left", spare=figures.SPARE_LATENCIES, margins="fitting")


def _page(model: str, outcome: ComparisonOutcome, settings: Mapping[str, str]) -> Page:
    runs = [measured for _, _, measured in _runs(outcome)]
    sides = {"A": outcome.names[0], "B": outcome.names[1], "Rounds": str(len(outcome.rounds))}
    return Page(
        title=f"{model}: {outcome.names[1]} compared with {outcome.names[0]}",
        origin=figures.describe_origin(runs),
        headline=compare_headline(outcome),
        tiles=_tiles(outcome.comparison) if outcome.comparison else [],
        sections=[
            *compare_sections(outcome),
            *([differences_table(outcome.parity)] if outcome.parity else []),
            *figures.failures(runs),
            Remark([*([outcome.where] if outcome.where else []), *outcome.problems], on="terminal"),
            figures.verdict_lines(outcome.gates, _notes(outcome)),
        ],
        settings={**sides, **(figures.describe_load(runs[0]) if runs else {}), **settings},
    )


def compare_sections(outcome: ComparisonOutcome) -> list[Section]:
    """List the difference, the figures and both distributions."""
    histograms = {
        heading: LatencyHistogram.merged(pair[side].total.histogram for pair in outcome.rounds)
        for side, heading in enumerate(_names(outcome))
    }
    comparison, (a, b) = outcome.comparison, outcome.names
    intervals = interval_chart(comparison) if comparison else None
    effect = f"differences below {100 * comparison.least_effect:g} % do not count" if comparison else ""
    title = f"B ({b}) compared with A ({a}), {counted(len(outcome.rounds), 'round')}; {effect}"
    return [
        Charts("Difference", [intervals, _rounds_chart(outcome)]),
        Table("Figures", HEADINGS, _rows(outcome), margins="fitting", printed_title=title),
        _sides_table(outcome),
        Table("Gates of B", ["gate", "figure", "outcome"], list(map(figures.gate_row, outcome.gates)), on="page"),
        servers.table("side", list(zip(SIDES, outcome.sides, strict=False))),
        *costs.sections("side", list(zip(SIDES, outcome.spendings, strict=False))),
        Charts("Latency", [charts.percentile_chart(histograms), charts.histogram_chart(histograms)]),
    ]


def differences_table(parity: Parity) -> Table:
    """List the first differences between the responses of two versions to the same requests; empty without any."""
    words = [parity.signature] if parity.signature else parity.different
    rows = [Row(each, []) for each in words[:MOST_SHOWN]]
    if len(words) > MOST_SHOWN:
        rows.append(Row(counted(len(words) - MOST_SHOWN, "other"), []))
    return Table("Differences", ["request"], rows, on="page")


def _notes(outcome: ComparisonOutcome) -> list[str]:
    limit = [outcome.limit_note] if outcome.limit_note else []
    parsed = [f"{each.letter}: {note}" for each in outcome.totals if (note := each.measured.parsed_note)]
    parity = [outcome.parity_note] if outcome.parity_note else []
    return [*outcome.unclear, *limit, *outcome.server_notes, *outcome.unjudged, *parsed, *parity]


def interval_chart(comparison: Comparison) -> Intervals:
    rows = [
        Interval(each.name, each.ratio.ratio, each.ratio.low, each.ratio.high, str(each.verdict))
        for each in comparison.figures
    ]
    effect = comparison.least_effect
    return Intervals(
        title="Ratio of B to A",
        label="; ".join(
            f"{row.name}: B is {row.ratio:.3f} times A, {row.low:.3f} to {row.high:.3f}, {row.kind}" for row in rows
        ),
        axis="B / A",
        legend=f"{INTERVAL.capitalize()}s of all figures together. "
        f"Ratios in the shaded band, {100 * effect:g} % around 1, count as the same.",
        band=effect,
        rows=rows,
    )


def _names(outcome: ComparisonOutcome) -> list[str]:
    return [f"{side} ({name})" for side, name in zip(SIDES, outcome.names, strict=True)]


def compare_headline(outcome: ComparisonOutcome) -> Headline:
    """Return the verdict on B. The first reason is the cause."""
    comparison = outcome.comparison
    notes = [*outcome.problems, *([outcome.limit_note] if outcome.limit_note else [])]
    if comparison is None:
        return Headline("warn", outcome.too_few, notes)
    failed = [result.finding for result in outcome.gates if result.failed]
    short = [result.finding for result in outcome.gates if result.shortfall]
    found = [_differs(each) for each in comparison.figures if each.verdict in (Verdict.BETTER, Verdict.WORSE)]
    found.sort(key=lambda words: not words.endswith(str(comparison.verdict)))
    if comparison.failures and comparison.failures.verdict is not Verdict.SAME:
        found = [_fail(outcome), *found]
    where = [outcome.where] if outcome.where else []
    ratios = ", ".join(f"{figure.name} {figure.ratio.ratio:.3f}" for figure in comparison.figures)
    causes = [*failed, *short, *found, *outcome.problems, *outcome.unclear] or [f"ratios of B to A: {ratios}"]
    reasons = [*causes, *where, *outcome.server_notes]
    words = outcome.words
    if outcome.exit_code == EXIT_INTERRUPTED:
        return Headline(
            "warn", f"Interrupted after {counted(len(outcome.rounds), 'round')} (measured: {words})", reasons
        )
    if outcome.strict and outcome.limits:
        return Headline("warn", f"{NOT_TO_BE_TRUSTED} (measured: {words})", [*outcome.limits[:1], *reasons])
    reasons += [outcome.limit_note] if outcome.limit_note else []
    if failed and comparison.verdict is not Verdict.WORSE:
        return Headline("bad", _GATE_FAILED if len(outcome.gates) == 1 else _GATES_FAILED, reasons)
    if outcome.failures and comparison.verdict in (Verdict.SAME, Verdict.BETTER):
        words = f"{words}, but requests failed"
        reasons = [_fail(outcome), *reasons]
    if short:
        words = f"{words}, but not enough evidence for {counted(len(short), 'gate')}"
    not_good = outcome.exit_code or outcome.failures or comparison.verdict is Verdict.UNCLEAR
    is_failing = comparison.verdict is Verdict.FAILING and not outcome.accepted
    is_bad = comparison.verdict is Verdict.WORSE or is_failing
    return Headline("bad" if is_bad else "warn" if not_good else "good", words, reasons)


def _differs(figure: Figure) -> str:
    change = 100 * (figure.ratio.ratio - 1)
    name = f"{figure.part} of the requests" if figure.part else figure.name
    return f"{name}: {abs(change):.1f} % {'higher' if change > 0 else 'lower'}, {figure.verdict}"


def _fail(outcome: ComparisonOutcome) -> str:
    worst = max(reversed(outcome.totals), key=lambda side: side.measured.error_rate)
    shares = ", ".join(
        f"{side.letter} ({side.name}) failed {percent(side.measured.error_rate)} of its requests"
        for side in reversed(outcome.totals)
    )
    return ", ".join([shares, *figures.most_frequent(worst.measured)])


def _tiles(comparison: Comparison) -> list[Tile]:
    return [
        Tile(f"{figure.name} of B", _figure(figure.name, figure.ratio.b), f"A: {_figure(figure.name, figure.ratio.a)}")
        for figure in comparison.figures
    ]


def _rows(outcome: ComparisonOutcome) -> list[Row]:
    found = outcome.comparison
    cells = [(comparison_cells(figure), figure.verdict) for figure in found.figures] if found else []
    cells += [(failure_cells(found.failures), found.failures.verdict)] if found and found.failures else []
    rows = [Row(name, texts, good=_NEWS.get(verdict)) for (name, *texts), verdict in cells]
    cost = cost_cells(outcome)
    return [*rows, *([Row(cost[0], cost[1:])] if cost else [])]


def _figure(name: str, value: float) -> str:
    return per_second(value) if name == RATE else milliseconds(value / 1000)


def _rounds_chart(outcome: ComparisonOutcome) -> Chart | None:
    rounds = range(1, len(outcome.rounds) + 1)
    return charts.curves_chart(
        "p99 by round",
        f"p99 of A and B in {len(rounds)} rounds",
        Axis("round", Linear(0.5, len(rounds) + 0.5)),
        "ms",
        [(number, f"round {number}") for number in rounds],
        {
            name: [pair[side].total.percentile_ms(99) for pair in outcome.rounds]
            for side, name in enumerate(_names(outcome))
        },
        milliseconds,
        dots=True,
    )
