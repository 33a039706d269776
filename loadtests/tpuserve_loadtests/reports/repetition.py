"""The report of a run that was repeated until a figure settled."""

from collections.abc import Mapping
from dataclasses import asdict

from tpuserve_formats.counted import counted
from tpuserve_loadtests.judgement.exit_codes import EXIT_GENERATOR
from tpuserve_loadtests.judgement.repetition import FIGURES, MEDIAN, RepetitionOutcome, describe_interval, value_of
from tpuserve_loadtests.rendering.report import (
    Axis,
    Chart,
    Charts,
    Column,
    Curve,
    Document,
    Headline,
    Numbers,
    Page,
    Printed,
    Report,
    Row,
    Rule,
    Table,
    Text,
    Tile,
)
from tpuserve_loadtests.rendering.scales import Linear, milliseconds, per_second
from tpuserve_loadtests.reports.figures import (
    LATENCIES,
    SPARE_LATENCIES,
    describe_load,
    describe_origin,
    errors_table,
    exact_cells,
    latency_cells,
    printed_errors,
    run_row,
)
from tpuserve_loadtests.reports.latency_charts import histogram_chart, percentile_chart
from tpuserve_loadtests.reports.run import NOT_TO_BE_TRUSTED, run_document
from tpuserve_loadtests.reports.server_section import printed_server, server_section
from tpuserve_loadtests.reports.spending_section import (
    printed_spending,
    spending_cells,
    spending_section,
    spending_tiles,
    with_spending,
)
from tpuserve_loadtests.statistics.histogram import LatencyHistogram
from tpuserve_loadtests.statistics.median_interval import CONFIDENCE, MedianInterval


def repetition_report(outcome: RepetitionOutcome, settings: Mapping[str, str]) -> Report:
    """Build the report. `settings`: the settings to show, by name."""
    return Report(
        kind="loadtest",
        subject=outcome.runs[0].model,
        exit_code=outcome.exit_code,
        cases=outcome.cases,
        statement=with_spending(outcome.statement, outcome.spending),
        printed=lambda: _printed(outcome),
        document=lambda: _document(outcome),
        page=lambda: _page(outcome, settings),
        rows=lambda: [
            {"run": number, **run_row(run.measured), **spending_cells(run.spending)}
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
        "figures": {name: interval and _interval(interval) for name, interval in outcome.intervals.items()},
        "gates": [
            {"gate": str(result.gate), "figure": result.figure, "failed": result.failed} for result in outcome.gates
        ],
        **outcome.watched.as_document(),
        **outcome.spending.as_document(),
        "runs": [run_document(run) for run in outcome.runs],
        "notes": list(outcome.notes),
    }


def _interval(interval: MedianInterval) -> Document:
    return {**asdict(interval), "distance": interval.distance}


def _printed(outcome: RepetitionOutcome) -> list[Printed]:
    first = outcome.runs[0]
    wrong = ["wrong"] if first.total.checked else []
    rows = f"{first.rows:.3g} row{'' if first.rows == 1 else 's'} a request"
    runs = counted(len(outcome.runs), "run")
    lines = [(str(number), run.total) for number, run in enumerate(outcome.runs, start=1)]
    intervals = [(name, interval) for name, interval in outcome.intervals.items() if interval is not None]
    return [
        Text(_headline(outcome).sentence, folds=True),
        Table(
            f"{first.model}: {runs} of {first.measured.span_s:.1f} s, {first.measured.load}, {rows}",
            ["run", "requests", "failures", *wrong, "rate/s", *LATENCIES],
            [
                Row(
                    name,
                    [
                        f"{line.requests:,.0f}",
                        f"{line.failures:,.0f}",
                        *([f"{line.wrong:,.0f}"] if wrong else []),
                        f"{line.rate_per_s:,.1f}",
                        *exact_cells(line),
                    ],
                    is_total=name == MEDIAN,
                )
                for name, line in (*lines, (MEDIAN, outcome.median))
            ],
            names="right",
            spare=SPARE_LATENCIES,
            margins="fitting",
        ),
        *(Text(f"  {name}: {describe_interval(name, interval)}") for name, interval in intervals),
        *(error for run in outcome.runs for error in printed_errors(run.measured)),
        *printed_server(outcome.watched),
        *printed_spending(outcome.spending),
        *(Text(f"  {line}") for line in (*map(str, outcome.gates), *(f"note: {note}" for note in outcome.notes))),
    ]


def _page(outcome: RepetitionOutcome, settings: Mapping[str, str]) -> Page:
    runs = outcome.measured
    merged = LatencyHistogram()
    for measured in runs:
        merged.add(measured.total.histogram)
    repeated = f"until {outcome.settling.figure} is within {100 * outcome.settling.within:g} %, at most {outcome.most}"
    return Page(
        title=f"Load test of {outcome.runs[0].model}, repeated",
        origin=describe_origin(runs),
        headline=_headline(outcome),
        tiles=_tiles(outcome),
        sections=[
            Charts("Runs", [_runs_chart(outcome, name) for name in dict.fromkeys((outcome.settling.figure, *FIGURES))]),
            _table(outcome),
            Charts("Latency of all runs", [percentile_chart({"total": merged}), histogram_chart({"requests": merged})]),
            server_section(outcome.watched),
            spending_section("rate", [(MEDIAN, outcome.spending)]),
            errors_table(runs),
        ],
        settings={**describe_load(runs[0]), "Runs": f"{len(runs)}, {repeated}", **settings},
    )


def _headline(outcome: RepetitionOutcome) -> Headline:
    notes = [str(result) for result in outcome.gates if result.failed] + list(outcome.notes)
    if outcome.is_generator_limit:
        return Headline("warn", NOT_TO_BE_TRUSTED, notes)
    if outcome.exit_code not in (0, EXIT_GENERATOR):
        failures = sum(run.total.failures for run in outcome.runs)
        words = (
            "Failed the gates"
            if any(result.failed for result in outcome.gates)
            else f"Failed: {counted(failures, 'request')}"
        )
        return Headline("bad", words, [outcome.statement, *notes])
    if not outcome.is_settled:
        return Headline("warn", "Inconclusive", [outcome.statement, *notes])
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
    ] + spending_tiles(outcome.spending)


def _table(outcome: RepetitionOutcome) -> Table:
    lines = [(str(number), run.total) for number, run in enumerate(outcome.runs, start=1)]
    return Table(
        "Figures",
        ["run", "requests", "failures", "responses/s", *LATENCIES],
        [
            Row(
                name,
                [
                    f"{line.requests:,.0f}",
                    f"{line.failures:,.0f}",
                    per_second(line.rate_per_s)[:-2],
                    *latency_cells(line),
                ],
                is_total=name == MEDIAN,
            )
            for name, line in (*lines, (MEDIAN, outcome.median))
        ],
        f"The {100 * CONFIDENCE:g} % intervals of the medians assume no distribution of the runs.",
    )


def _runs_chart(outcome: RepetitionOutcome, name: str) -> Chart | None:
    values = [value_of(name, measured) for measured in outcome.measured]
    found = [value for value in values if value is not None]
    if not found:
        return None
    interval = outcome.intervals[name]
    ends = [] if interval is None else [Rule("low", y=interval.low), Rule("high", y=interval.high)]
    numbers = range(1, len(values) + 1)
    cells = ["no responses" if value is None else _show(name, value) for value in values]
    unit = "responses/s" if name == "rate" else "ms"
    return Chart(
        title=f"{name} by run",
        label=f"{name} of {counted(len(values), 'run')}, from {_show(name, min(found))} to {_show(name, max(found))}",
        x=Axis("run", Linear(0.5, len(values) + 0.5)),
        y=Axis(unit, Linear.around(found)),
        curves=[Curve(name, list(zip(numbers, values, strict=True)), dots=True)],
        rules=ends,
        columns=[Column(number, f"run {number}\n{cell}") for number, cell in zip(numbers, cells, strict=True)],
        numbers=Numbers(["run", name], [[str(number), cell] for number, cell in zip(numbers, cells, strict=True)]),
    )


def _show(name: str, value: float) -> str:
    return per_second(value) if name == "rate" else milliseconds(value)
