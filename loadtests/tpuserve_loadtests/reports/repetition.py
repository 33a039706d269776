"""The report of a run that was repeated until a figure settled."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Final

from tpuserve_formats.counted import counted
from tpuserve_loadtests.judgement.exit_codes import EXIT_FAILED, EXIT_GATE
from tpuserve_loadtests.judgement.repetition import FIGURES, MEDIAN, RepetitionOutcome, describe_interval, value_of
from tpuserve_loadtests.rendering.chart import Axis, Chart, Rule
from tpuserve_loadtests.rendering.report import Charts, Document, Headline, Page, Remark, Report, Table, Tile
from tpuserve_loadtests.rendering.scales import Linear, milliseconds, per_second
from tpuserve_loadtests.reports import charts, costs, figures, servers
from tpuserve_loadtests.reports.run import NOT_TO_BE_TRUSTED, run_document
from tpuserve_loadtests.statistics.histogram import LatencyHistogram
from tpuserve_loadtests.statistics.median_interval import CONFIDENCE

_INTERVALS: Final = f"The {100 * CONFIDENCE:g} % intervals of the medians assume no distribution of the runs."


def repetition_report(outcome: RepetitionOutcome, settings: Mapping[str, str]) -> Report:
    """Build the report. `settings`: the settings to show, by name."""
    return Report(
        kind="loadtest",
        subject=outcome.runs[0].model,
        exit_code=outcome.exit_code,
        cases=outcome.cases,
        statement=costs.added_to(outcome.statement, outcome.spending),
        document=lambda: _document(outcome),
        page=lambda: _page(outcome, settings),
        rows=lambda: [
            {"run": number, **figures.run_row(run.measured), **costs.csv_cells(run.spending)}
            for number, run in enumerate(outcome.runs, start=1)
        ],
        runs={str(number): each for number, each in enumerate(outcome.measured, start=1)},
        in_windows=False,
    )


def _document(outcome: RepetitionOutcome) -> Document:
    first = outcome.runs[0]
    return {
        "ok": outcome.exit_code == 0,
        "exit_code": outcome.exit_code,
        "model": first.model,
        "load": str(first.measured.load),
        "repeated_until": {
            "figure": outcome.settling.figure,
            "within": outcome.settling.within,
            "most_runs": outcome.most,
            "settled": outcome.is_settled,
            "statement": outcome.statement,
        },
        "confidence": CONFIDENCE,
        "figures": {
            name: interval and {**asdict(interval), "distance": interval.distance}
            for name, interval in outcome.intervals.items()
        },
        "gates": [result.as_document() for result in outcome.gates],
        **outcome.watched.as_document(),
        **outcome.spending.as_document(),
        "runs": [run_document(run) for run in outcome.runs],
        "notes": list(outcome.notes),
    }


def _page(outcome: RepetitionOutcome, settings: Mapping[str, str]) -> Page:
    runs = outcome.measured
    merged = LatencyHistogram.merged(measured.total.histogram for measured in runs)
    repeated = f"until {outcome.settling.figure} is within {100 * outcome.settling.within:g} %, at most {outcome.most}"
    return Page(
        title=f"Load test of {outcome.runs[0].model}, repeated",
        origin=figures.describe_origin(runs),
        headline=_headline(outcome),
        tiles=_tiles(outcome),
        sections=[
            Charts("Runs", [_runs_chart(outcome, name) for name in dict.fromkeys((outcome.settling.figure, *FIGURES))]),
            _table(outcome),
            Remark(
                [f"{name}: {describe_interval(name, each)}" for name, each in outcome.intervals.items() if each],
                on="terminal",
            ),
            Charts(
                "Latency of all runs",
                [charts.percentile_chart({"total": merged}), charts.histogram_chart({"requests": merged})],
            ),
            *figures.failures(runs),
            *servers.sections(outcome.watched),
            *costs.sections("rate", [(MEDIAN, outcome.spending)], outcome.spending),
            figures.verdict_lines(outcome.gates, outcome.notes),
        ],
        settings={**figures.describe_load(runs[0]), "Runs": f"{len(runs)}, {repeated}", **settings},
    )


def _headline(outcome: RepetitionOutcome) -> Headline:
    notes = [str(result) for result in outcome.gates if result.failed] + list(outcome.notes)
    if outcome.is_generator_limit:
        return Headline("warn", NOT_TO_BE_TRUSTED, notes)
    if outcome.exit_code in (EXIT_GATE, EXIT_FAILED):
        failures = sum(run.total.failures for run in outcome.runs)
        words = (
            "Failed the gates"
            if any(result.failed for result in outcome.gates)
            else f"Failed: {counted(failures, 'request')}"
        )
        return Headline("bad", words, [outcome.statement, *notes])
    if not outcome.is_settled:
        words = "Interrupted" if outcome.interruption else "Inconclusive"
        return Headline("warn", words, [outcome.statement, *notes])
    figure = outcome.settling.figure
    interval = outcome.intervals[figure]
    assert interval is not None  # a settled figure has one
    return Headline("good", outcome.statement, [describe_interval(figure, interval), *notes])


def _tiles(outcome: RepetitionOutcome) -> list[Tile]:
    return [
        Tile(
            f"{name}, median",
            _show(name, interval.median),
            f"{_show(name, interval.low)} to {_show(name, interval.high)}",
        )
        for name, interval in outcome.intervals.items()
        if interval is not None
    ] + costs.tiles(outcome.spending)


def _table(outcome: RepetitionOutcome) -> Table:
    first = outcome.runs[0]
    rows = f"{first.rows:.3g} row{'' if first.rows == 1 else 's'} a request"
    runs = f"{counted(len(outcome.runs), 'run')} of {first.measured.span_s:.1f} s, {first.measured.load}"
    return figures.lines_table(
        "Figures",
        "run",
        [*((str(number), run.total) for number, run in enumerate(outcome.runs, start=1)), (MEDIAN, outcome.median)],
        total=MEDIAN,
        wrong=bool(first.total.checked),
        intro=_INTERVALS,
        names="right",
        printed_title=f"{first.model}: {runs}, {rows}",
    )


def _runs_chart(outcome: RepetitionOutcome, name: str) -> Chart | None:
    values = [value_of(name, measured) for measured in outcome.measured]
    interval = outcome.intervals[name]
    return charts.curves_chart(
        f"{name} by run",
        f"{name} of {counted(len(values), 'run')}",
        Axis("run", Linear(0.5, len(values) + 0.5)),
        "responses/s" if name == "rate" else "ms",
        [(number, f"run {number}") for number in range(1, len(values) + 1)],
        {name: values},
        per_second if name == "rate" else milliseconds,
        rules=[] if interval is None else [Rule("low", y=interval.low), Rule("high", y=interval.high)],
        dots=True,
    )


def _show(name: str, value: float) -> str:
    return per_second(value) if name == "rate" else milliseconds(value)
