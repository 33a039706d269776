"""The report of a sweep: throughput, latencies and the server's time breakdown for each load."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tpuserve_formats.counted import counted
from tpuserve_loadtests.judgement.exit_codes import EXIT_GENERATOR, EXIT_INTERRUPTED
from tpuserve_loadtests.judgement.run import FROM_DUE, RunOutcome
from tpuserve_loadtests.judgement.sweep import Sweep, judge_sweep
from tpuserve_loadtests.measurement.measured import latencies_ms
from tpuserve_loadtests.measurement.recorder import Summary
from tpuserve_loadtests.monitoring.watched import ELSEWHERE, EXECUTION, LATE, NETWORK, QUEUE, Watched, part_ms
from tpuserve_loadtests.rendering.chart import Axis, Chart, Label, Rule
from tpuserve_loadtests.rendering.report import Case, Charts, Headline, Page, Remark, Report, Table, Tile
from tpuserve_loadtests.rendering.scales import Linear, milliseconds, per_second, percent
from tpuserve_loadtests.reports import charts, costs, figures, servers
from tpuserve_loadtests.reports.run import NOT_TO_BE_TRUSTED, run_document
from tpuserve_loadtests.statistics.histogram import LatencyHistogram

_DRAWN = ("p50", "p90", "p99")
# Limit for curves in a chart, beyond which readers cannot distinguish them.
_MOST_CURVES = 6
_LISTED = ("p50", "p90", "p95", "p99", "p99.9")


def throughput_chart(
    steps: Sequence[tuple[str, Summary]], *, named: bool, knee_per_s: float | None = None
) -> Chart | None:
    """Draw a point for each load, with its name in the tooltip and, if `named`, next to the point.

    A rule marks the throughput of the knee, if it is known. Returns None without successful requests.
    """
    completed = [(load, line) for load, line in steps if line.p50_ms is not None]
    if not completed:
        return None
    latencies = {name: [latencies_ms(line)[name] for _, line in completed] for name in _LISTED}
    chart = charts.curves_chart(
        "Latency and throughput",
        f"Latency of {counted(len(completed), 'load')} by throughput",
        Axis("responses/s", Linear.around(line.rate_per_s for _, line in completed)),
        "ms",
        [(line.rate_per_s, f"{load}: {per_second(line.rate_per_s)}") for load, line in completed],
        {name: latencies[name] for name in _DRAWN},
        milliseconds,
        further={name: [*map(milliseconds, values)] for name, values in latencies.items() if name not in _DRAWN},
        rules=[] if knee_per_s is None else [Rule("knee", x=knee_per_s)],
        dots=True,
    )
    labels = [Label(line.rate_per_s, line.p99_ms or 0.0, load) for load, line in completed if named]
    return chart and replace(chart, labels=labels)


def sweep_report(steps: Sequence[RunOutcome], settings: Mapping[str, str]) -> Report:
    """Build the report of at least one step. `settings`: the settings to show, by name."""
    sweep = judge_sweep(steps)
    return Report(
        kind="loadtest sweep",
        subject=steps[0].model,
        exit_code=sweep.exit_code,
        cases=sweep_cases(steps),
        statement=costs.added_to(_headline(sweep).sentence, sweep.best.spending),
        document=lambda: {"steps": [{**run_document(step), "knee": step is sweep.knee} for step in steps]},
        page=lambda: _page(sweep, settings),
        rows=lambda: [
            {
                **figures.run_row(step.measured),
                "trusted": step.generator.trusted,
                "knee": step is sweep.knee,
                **_server(step.watched),
                **costs.csv_cells(step.spending),
            }
            for step in steps
        ],
        runs={str(step.measured.load): step.measured for step in steps},
    )


def sweep_cases(steps: Sequence[RunOutcome]) -> list[Case]:
    return [replace(case, name=f"{_name(step)}: {case.name}") for step in steps for case in step.cases]


def _server(watched: Watched) -> dict[str, Any]:  # values of several types
    server = watched.server
    return {
        "network_ms": part_ms(watched, LATE, NETWORK),
        "queue_ms": part_ms(watched, QUEUE),
        "execution_ms": part_ms(watched, EXECUTION),
        "other_ms": part_ms(watched, ELSEWHERE),
        "batch_rows": server.batch_rows if server else None,
        "padding_share": server.padding_share if server else None,
        "server_cores": server.cpu_cores if server else None,
        "refused": sum(server.refused.values()) if server else None,
    }


def _name(step: RunOutcome) -> str:
    offered_per_s = step.measured.load.offered_per_s
    return str(step.measured.load) if offered_per_s is None else f"{offered_per_s:g}/s"


def _notes_of(step: RunOutcome) -> list[str]:
    return [note for note in step.notes if note != FROM_DUE]


def _page(sweep: Sweep, settings: Mapping[str, str]) -> Page:
    steps, knee = sweep.steps, sweep.knee
    first, runs = steps[0].measured, [step.measured for step in steps]
    is_open = first.load.is_open
    kind = "offered requests/s" if is_open else "users"
    watched = [(_name(step), step.watched) for step in steps]
    latencies = [
        throughput_chart(
            [(str(step.measured.load), step.total) for step in steps],
            named=not is_open,
            knee_per_s=None if knee is None else knee.total.rate_per_s,
        ),
        charts.percentile_chart(_histograms(steps)),
    ]
    return Page(
        title=f"Sweep of {steps[0].model}",
        origin=figures.describe_origin(runs),
        headline=_headline(sweep),
        tiles=_tiles(sweep),
        sections=[
            Charts("Latency by load", latencies),
            servers.load_charts(kind, [(name.removesuffix("/s").split()[0], each) for name, each in watched]),
            _table(steps),
            servers.table("load", watched),
            *costs.sections("load", [(_name(step), step.spending) for step in steps]),
            Remark([sweep.beyond_knee] if sweep.beyond_knee else [], on="terminal"),
            *figures.failures(runs),
            figures.verdict_lines([], _notes(steps)),
        ],
        settings={**figures.describe_load(first), "Load": "", **settings},
    )


def _headline(sweep: Sweep) -> Headline:
    steps, notes = sweep.steps, _notes(sweep.steps)
    limited = [step for step in steps if step.exit_code == EXIT_GENERATOR]
    if limited:
        cause = f"{limited[0].generator.limits[0]} ({limited[0].measured.load})"
        return Headline("warn", NOT_TO_BE_TRUSTED, [cause, sweep.knee_words, *notes])
    failures = sum(step.total.failures for step in steps)
    if sweep.exit_code == EXIT_INTERRUPTED:
        words = f"Interrupted in step {len(steps)} ({steps[-1].measured.load})"
        return Headline("warn", words, [sweep.knee_words, *notes])
    if any(step.exit_code for step in steps):
        words = f"{counted(failures, 'request')} failed" if failures else "A step has no measurements"
        return Headline("bad", words, [*_cause(steps), sweep.knee_words, *notes])
    words = f"Up to {per_second(sweep.best.total.rate_per_s)}, with {sweep.best.measured.load}"
    trusted = all(step.generator.trusted for step in steps)
    beyond = [sweep.beyond_knee] if sweep.beyond_knee else []
    return Headline("good" if trusted else "warn", words, [sweep.knee_words, *beyond, *notes])


def _cause(steps: Sequence[RunOutcome]) -> list[str]:
    for step in steps:
        if frequent := figures.most_frequent(step.measured):
            share = percent(step.measured.error_rate)
            return [f"{share} of the requests failed with {step.measured.load}, {frequent[0]}"]
    return []


def _notes(steps: Sequence[RunOutcome]) -> list[str]:
    loads: dict[str, list[str]] = {}
    for step in steps:
        for note in _notes_of(step):
            loads.setdefault(note, []).append(str(step.measured.load))
    are_several = len(steps) > 1
    return [
        note if are_several and len(about) == len(steps) else f"{', '.join(about)}: {note}"
        for note, about in loads.items()
    ]


def _tiles(sweep: Sweep) -> list[Tile]:
    steps, knee = sweep.steps, sweep.knee
    completed = [step for step in steps if step.total.p99_ms is not None]
    if not completed:
        return []
    best = sweep.best
    fastest = min(completed, key=lambda step: step.total.p99_ms or 0.0)
    failures = sum(step.total.failures for step in steps)
    return [
        Tile("highest throughput", per_second(best.total.rate_per_s), str(best.measured.load)),
        Tile("p99 at this load", milliseconds(best.total.p99_ms), f"p50 {milliseconds(best.total.p50_ms)}"),
        Tile("knee", per_second(knee.total.rate_per_s), str(knee.measured.load))
        if knee
        else Tile("knee", "not reached"),
        Tile("lowest p99", milliseconds(fastest.total.p99_ms), str(fastest.measured.load)),
        Tile("failures", f"{failures:,}", f"in {counted(len(steps), 'step')}"),
        *costs.tiles(best.spending),
    ]


def _table(steps: Sequence[RunOutcome]) -> Table:
    lines = [(str(step.measured.load), step.total) for step in steps]
    title = f"{steps[0].model}: {steps[0].measured.load.seconds:g} s each"
    table = figures.lines_table("Steps", "load", lines, names="right", printed_title=title)
    trusted = [step.generator.trusted for step in steps]
    rows = [
        replace(row, cells=[*row.cells, "✓ kept up" if is_trusted else "✗ the limit"], good=is_trusted)
        for row, is_trusted in zip(table.rows, trusted, strict=True)
    ]
    spare = [*table.spare, "generator"]
    return replace(table, headings=[*table.headings, "generator"], rows=rows, spare=spare)


def _histograms(steps: Sequence[RunOutcome]) -> dict[str, LatencyHistogram]:
    last = len(steps) - 1
    chosen = {round(number * last / (_MOST_CURVES - 1)) for number in range(_MOST_CURVES)} if last else {0}
    return {str(steps[number].measured.load): steps[number].measured.total.histogram for number in sorted(chosen)}
