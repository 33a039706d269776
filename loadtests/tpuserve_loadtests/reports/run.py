"""The report of one run, and its verdict in words."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Final

from tpuserve_formats.counted import counted
from tpuserve_loadtests.arrivals.load import Load
from tpuserve_loadtests.judgement.exit_codes import EXIT_EVIDENCE, EXIT_GATE, EXIT_GENERATOR, EXIT_INTERRUPTED
from tpuserve_loadtests.judgement.run import UNSETTLED, RunOutcome
from tpuserve_loadtests.judgement.threshold import GateResult
from tpuserve_loadtests.measurement.measured import timeline
from tpuserve_loadtests.measurement.recorder import Summary
from tpuserve_loadtests.rendering.chart import Chart, Rule
from tpuserve_loadtests.rendering.report import Charts, Document, Headline, Page, Remark, Report, Row, Table, Tile
from tpuserve_loadtests.rendering.scales import milliseconds, per_second, percent
from tpuserve_loadtests.reports import charts, costs, figures, servers
from tpuserve_loadtests.statistics.early_stopping import share_unseen

_FROM_DUE: Final = "Latencies count from the scheduled time of a request, not from the time of sending."
NOT_TO_BE_TRUSTED: Final = "Inconclusive: the load generator was the limit"


def run_report(outcome: RunOutcome, settings: Mapping[str, str]) -> Report:
    """Build the report. `settings`: the settings to show, by name."""
    return Report(
        kind="loadtest",
        subject=outcome.model,
        exit_code=outcome.exit_code,
        cases=outcome.cases,
        statement=costs.added_to(run_headline(outcome).sentence, outcome.spending),
        document=lambda: run_document(outcome),
        page=lambda: _page(outcome, settings),
        rows=lambda: figures.window_rows(outcome.measured),
        runs={"": outcome.measured},
    )


def run_document(outcome: RunOutcome) -> dict[str, Document]:
    """Build the JSON document. Latencies are in milliseconds, rates in requests per second."""
    measured = outcome.measured
    return {
        "ok": outcome.exit_code == 0,
        "exit_code": outcome.exit_code,
        "model": outcome.model,
        "load": str(measured.load),
        "users": measured.load.users,
        "think_time": _think_time(measured.load),
        "request_limit": measured.load.requests or None,
        "offered_per_s": measured.load.offered_per_s,
        "seed": measured.load.seed,
        "rows_per_request": int(outcome.rows) if float(outcome.rows).is_integer() else outcome.rows,
        "elapsed_s": measured.span_s,
        "warm_up_s": measured.load.warm_up_s,
        "warm_up_requests": measured.recorder.warm_up_requests,
        f"{outcome.line_kind}s": {line.name: figures.figures_of(line) for line in measured.lines()},
        "total": figures.figures_of(outcome.total),
        "tokens": figures.tokens_of(measured),
        "replicas": {line.name: figures.figures_of(line) for line in measured.replicas()},
        "goodput": asdict(outcome.goodput) if outcome.goodput else None,
        "error_rate": measured.error_rate,
        "wrong_rate": measured.wrong_rate,
        "parsed_share": measured.parsed_share,
        "stable": measured.stable,
        "slow_start_s": measured.slow_start_s,
        "generator": {"trusted": outcome.generator.trusted, **asdict(outcome.generator)},
        "gates": [result.as_document() for result in outcome.gates],
        "errors": [
            {outcome.line_kind: error.line, "message": error.message, "count": error.count}
            for error in measured.recorder.errors()
        ],
        **outcome.watched.as_document(),
        **outcome.spending.as_document(),
        "notes": list(outcome.notes),
    }


def _think_time(load: Load) -> dict[str, float | str] | None:
    if load.think is None:
        return None
    return {"mean_s": load.think.mean_s, "distribution": "exponential" if load.think.is_exponential else "constant"}


def _table(outcome: RunOutcome) -> Table:
    measured, total = outcome.measured, outcome.total
    rows = f", {outcome.rows:.3g} row{'' if outcome.rows == 1 else 's'} a request" if outcome.rows else ""
    warm_up = f", after {measured.load.warm_up_s:.3g} s of warm-up" if measured.load.warm_up_s else ""
    return figures.lines_table(
        f"By {outcome.line_kind}",
        outcome.line_kind,
        [(figures.line_title(line.name), line) for line in [*measured.lines(), total]],
        total=figures.line_title(total.name),
        wrong=bool(total.checked or total.wrong),
        retries=bool(total.retries),
        printed_title=f"{outcome.model}: {measured.span_s:.1f} s, {measured.load}{rows}{warm_up}",
    )


def _details(outcome: RunOutcome) -> list[str]:
    """Return the figures of the checks and the tiles that a terminal shows below the table."""
    total, goodput = outcome.total, outcome.goodput
    bound = "" if total.p99_bound_ms is None else f"p99 is at most {total.p99_bound_ms:.2f} ms, at 99 % confidence"
    good = f"goodput: {per_second(goodput.rate_per_s)} {goodput.limit}" if goodput else ""
    return [line for line in (_checks(total), bound, good) if line]


def _checks(total: Summary) -> str:
    form = f"{counted(total.malformed, 'response')} had a wrong form"
    if not total.checked:
        return form if total.malformed else ""
    wrong = total.wrong - total.malformed
    found = f"{wrong:,} of {counted(total.checked, 'response')} compared with golden responses were wrong"
    found += f", {100 * wrong / total.checked:.3g} %" if wrong else ""
    if not wrong:
        found += f"; at most {100 * share_unseen(total.checked):.2g} % are wrong, at 99 % confidence"
    return f"{form}; {found}" if total.malformed else found


def _page(outcome: RunOutcome, settings: Mapping[str, str]) -> Page:
    measured = outcome.measured
    load, server, use = measured.load, outcome.watched.server, outcome.watched.use
    return Page(
        title=f"Load test of {outcome.model}",
        origin=figures.describe_origin([measured]),
        headline=run_headline(outcome),
        tiles=_tiles(outcome),
        sections=[
            checks_table(outcome),
            charts.timeline_section(timeline(measured), load.seconds, _offered(load), measured.stopped),
            Charts("Latency", _latencies(outcome), _FROM_DUE if load.is_open else ""),
            _table(outcome),
            *figures.replicas_tables(measured),
            *figures.tokens_tables(measured),
            *figures.failures([measured]),
            Remark(_details(outcome), on="terminal"),
            *servers.sections(outcome.watched),
            servers.timeline("Server over time", server.timeline if server else (), load.seconds),
            servers.timeline("Server processes over time", use.timeline if use else (), load.seconds),
            *costs.sections("load", [(str(load), outcome.spending)], outcome.spending),
            figures.verdict_lines(outcome.gates, outcome.notes),
        ],
        settings={**figures.describe_load(measured), **settings},
    )


def _tiles(outcome: RunOutcome) -> list[Tile]:
    total, load = outcome.total, outcome.measured.load
    offered = "" if load.offered_per_s is None else f"of {per_second(load.offered_per_s)} offered"
    bound = "" if total.p99_bound_ms is None else f"at most {milliseconds(total.p99_bound_ms)}, at 99 % confidence"
    return [
        Tile("throughput", per_second(total.rate_per_s), offered),
        *([Tile("goodput", per_second(goodput.rate_per_s), goodput.limit)] if (goodput := outcome.goodput) else []),
        Tile("p50", milliseconds(total.p50_ms)),
        Tile("p99", milliseconds(total.p99_ms), bound),
        Tile("max", milliseconds(total.max_ms)),
        figures.failures_tile(outcome.measured),
        *costs.tiles(outcome.spending),
    ]


def _latencies(outcome: RunOutcome) -> list[Chart | None]:
    recorder, total = outcome.measured.recorder, outcome.measured.total.histogram
    names = recorder.lines if len(recorder.lines) > 1 else ()
    histograms = {figures.line_title(name): recorder.tally(name).histogram for name in names}
    limits = [
        Rule(str(result.gate), y=result.gate.value)
        for result in outcome.gates
        if result.gate.is_latency and not result.gate.series
    ]
    return [
        charts.percentile_chart({"total": total, **histograms}, limits),
        charts.histogram_chart({"requests": total}),
    ]


def _offered(load: Load) -> list[tuple[float, float]]:
    corners, at_s = [], 0.0
    for segment in load.profile.segments if load.profile else ():
        corners += [(at_s, segment.start_per_s), (at_s + segment.seconds, segment.end_per_s)]
        at_s += segment.seconds
    return corners


def run_headline(outcome: RunOutcome) -> Headline:
    """Return the verdict: passed, failed, or untrusted. The first reason is the cause."""
    measured = outcome.measured
    interruption = measured.interruption
    stopped = [interruption or measured.stopped] if measured.stopped else []
    limits = list(outcome.generator.limits)
    broken = [outcome.broken] if outcome.broken else []
    seen = outcome.watched.note if outcome.watched.server else ""
    notes = [note for note in (*outcome.extra_notes, seen) if note]
    notes += [UNSETTLED] if measured.stable is False else []
    notes += [measured.start_note] if measured.start_note else []
    if outcome.exit_code == EXIT_GENERATOR:
        return Headline("warn", NOT_TO_BE_TRUSTED, [*limits, *stopped, *broken, *notes])
    if outcome.exit_code == EXIT_GATE:
        failed = [_failed_gate(result, outcome) for result in outcome.gates if result.failed]
        words = "Failed the gate" if len(outcome.gates) == 1 else f"Failed {len(failed)} of {len(outcome.gates)} gates"
        return Headline("bad", words, [*failed, *stopped, *limits, *broken, *notes])
    if outcome.exit_code == EXIT_INTERRUPTED:
        words = f"{interruption[:1].upper()}{interruption[1:]}"
        return Headline("warn", words, [_figures_line(outcome), *broken, *notes])
    if outcome.exit_code == EXIT_EVIDENCE:
        short = [result.finding for result in outcome.gates if result.shortfall]
        words = f"Not enough evidence for {len(short)} of {counted(len(outcome.gates), 'gate')}"
        return Headline("warn", words, [*short, *stopped, *notes])
    if outcome.exit_code:
        causes = [*figures.most_frequent(measured), *broken]
        return Headline("bad", _failed(outcome), [*causes, *stopped, *limits, *notes])
    passed = "Passed the gate" if len(outcome.gates) == 1 else f"Passed all {len(outcome.gates)} gates"
    words = measured.load.qualify(passed) if outcome.gates else "All requests succeeded"
    if not outcome.generator.trusted:
        return Headline("warn", f"{words}, but the load generator was the limit", [*limits, *stopped, *notes])
    return Headline("good", words, [_figures_line(outcome), *stopped, *notes])


def _failed_gate(result: GateResult, outcome: RunOutcome) -> str:
    words = result.finding
    if result.gate.is_latency and result.figure is not None and outcome.watched.parts:
        part = max(outcome.watched.parts, key=lambda part: part.share)
        return f"{words}, and {percent(round(part.share, 2))} of the mean latency is {part.name}"
    if result.gate.metric in ("error_rate", "wrong", "wrong_rate"):
        return ", ".join([words, *figures.most_frequent(outcome.measured)])
    return words


def _figures_line(outcome: RunOutcome) -> str:
    total = outcome.total
    failures = f", {total.failures:,} failed" if total.failures else ""
    p99 = milliseconds(total.p99_ms)
    return f"{counted(total.requests, 'request')}{failures}, {per_second(total.rate_per_s)}, p99 {p99}"


def _failed(outcome: RunOutcome) -> str:
    total = outcome.total
    if not total.requests:
        return "No request was measured"
    if not outcome.all_completed:
        return f"Failed: {total.failures:,} of {counted(total.requests, 'request')}"
    if outcome.all_correct:
        return "The scenario failed"
    of = counted(total.requests, "request") if total.malformed else counted(total.checked, "compared response")
    return f"Wrong: {total.wrong:,} of {of}"


def checks_table(outcome: RunOutcome) -> Table:
    generator, measured = outcome.generator, outcome.measured
    cores = ", ".join(f"{used:.2f}" for used in generator.cores)
    lag = "" if generator.lag_p99_ms is None else f", p99 of the send delay {milliseconds(generator.lag_p99_ms)}"
    unknown = "too short" if measured.load.is_level else "the rate changes"
    settled = {True: "✓ yes", False: "no", None: unknown}[measured.stable]
    total = outcome.total
    values = total.wrong - total.malformed
    compared = f"{values:,} of {total.checked:,}"
    form = f"{total.malformed:,} wrong; {percent(measured.parsed_share)} parsed in full"
    rows = [
        *map(figures.gate_row, outcome.gates),
        _check(
            "Request failures",
            f"{percent(measured.error_rate)} failed" if measured.total.requests else "no request was sent",
            outcome.all_completed,
        ),
        *([_check("Response form", form, outcome.all_correct)] if total.malformed or total.unparsed else []),
        *([_check("Golden responses", f"{compared} compared were wrong", not values)] if total.checked else []),
        Row(
            "Load generator",
            [f"{cores} of 1 core{lag}", "✓ kept up" if generator.trusted else "✗ the limit"],
            good=generator.trusted,
        ),
        Row("Stability", ["median latency and rate within 10 %", settled], good=measured.stable or None),
    ]
    return Table("Checks", ["check", "figure", "outcome"], rows, on="page")


def _check(name: str, figure: str, passed: bool) -> Row:
    return Row(name, [figure, "✓ passed" if passed else "✗ failed"], good=passed)
