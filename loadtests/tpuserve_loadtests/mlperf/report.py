"""The report of a run by MLPerf Inference's rules, in the layout of LoadGen's summary: the verdict and each rule."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Final

from tpuserve_loadtests.judgement.exit_codes import EXIT_GATE, EXIT_GENERATOR
from tpuserve_loadtests.judgement.search import Searched
from tpuserve_loadtests.judgement.threshold import Threshold
from tpuserve_loadtests.measurement.measured import Measured, timeline
from tpuserve_loadtests.mlperf.rules import GENERATOR as KEPT_UP
from tpuserve_loadtests.mlperf.rules import (
    LEAST_DURATION_S,
    Constraint,
    MlperfOutcome,
    Result,
    Scenario,
    estimate_ns,
)
from tpuserve_loadtests.rendering.report import (
    ENDED,
    GENERATOR,
    Case,
    Charts,
    Document,
    Headline,
    Notice,
    Page,
    Remark,
    Report,
    Row,
    Section,
    Table,
    Tile,
)
from tpuserve_loadtests.rendering.scales import milliseconds, per_second, seconds
from tpuserve_loadtests.reports import charts, costs, figures, servers
from tpuserve_loadtests.reports.run import NOT_TO_BE_TRUSTED
from tpuserve_loadtests.reports.search import (
    ended_case,
    limits,
    search_document,
    search_headline,
    server_sections,
    tries_sections,
)

_KIND: Final = "loadtest mlperf"
DISCLAIMER: Final = "Result by MLPerf Inference's rules. Not a submission, and not verified by MLCommons Association."
_RULE: Final = "=" * 48
_PERCENTILES: Final = (50.0, 90.0, 95.0, 97.0, 99.0, 99.9)
_MEANING = (
    "A submission needs MLPerf's own load generator, the benchmark's data and model, an accuracy run and a review. "
    "MLPerf is a trademark of MLCommons Association."
)
# The notice comes first, so that readers do not take a figure for a verified result.
_NOTICE: Final = Notice(DISCLAIMER, _MEANING)


def mlperf_report(
    model: str, outcome: MlperfOutcome, objectives: Sequence[Threshold], settings: Mapping[str, str]
) -> Report:
    """Build the report. `objectives` limit the server scenario's queries. `settings`: the settings to show, by name."""
    return Report(
        kind=_KIND,
        subject=model,
        exit_code=outcome.exit_code,
        cases=mlperf_cases(outcome),
        statement=costs.added_to(mlperf_text(model, outcome), outcome.spending),
        document=lambda: _document(model, outcome),
        page=lambda: _page(model, outcome, objectives, settings),
    )


def mlperf_search_report(
    model: str, searched: Searched, objectives: Sequence[Threshold], settings: Mapping[str, str]
) -> Report:
    """Build the report of a server scenario without a result: the search found no rate to run by the rules."""
    return Report(
        kind=_KIND,
        subject=model,
        exit_code=searched.exit_code or EXIT_GATE,
        cases=mlperf_search_cases(searched),
        statement=searched.statement,
        document=lambda: {
            "disclaimer": DISCLAIMER,
            "model": model,
            "scenario": Scenario.SERVER,
            "result": None,
            "search": search_document(searched),
        },
        page=lambda: _search_page(model, searched, objectives, settings),
    )


def mlperf_text(model: str, outcome: MlperfOutcome) -> str:
    result, measured = outcome.result, outcome.measured
    lines = [_RULE, DISCLAIMER, _RULE, f"Model    : {model}", f"Scenario : {result.rules.scenario}"]
    lines += [_metric_line(result), f"Result is : {'VALID' if result.valid else 'INVALID'}"]
    for each in result.constraints:
        lines.append(f"  {each.name} : {'Yes' if each.satisfied else 'NO'} ({each.detail})")
    if not result.valid and result.valid_but_for_duration:
        lines.append(f"  Too short for the rules, which require {LEAST_DURATION_S:g} s; all other rules are kept")
    if measured.stopped:
        lines.append(f"  The run was {measured.interruption}")
    lines += ["", "Additional stats", *_stats(result, measured)]
    return "\n".join(lines)


def _document(model: str, outcome: MlperfOutcome) -> Document:
    """Build the JSON document. `metric` is in nanoseconds, or samples (offline) or queries (server) a second."""
    result, watched, measured = outcome.result, outcome.watched, outcome.measured
    return {
        "disclaimer": DISCLAIMER,
        "model": model,
        "scenario": result.rules.scenario,
        "load": str(measured.load),
        "result": "VALID" if result.valid else "INVALID",
        "too_short_for_the_rules": not result.valid and result.valid_but_for_duration,
        "metric": result.metric,
        "metric_is": _metric_name(result),
        "queries": measured.total.requests,
        "samples": result.samples,
        "duration_s": measured.span_s,
        "constraints": [asdict(each) for each in result.constraints],
        "stopped": measured.stopped,
        "latency_ns": {f"{percent:g}": _ns(measured, percent) for percent in _PERCENTILES},
        **watched.as_document(),
        **outcome.spending.as_document(),
        "notes": [watched.note] if watched.note else [],
        "search": search_document(outcome.searched) if outcome.searched else None,
    }


def mlperf_cases(outcome: MlperfOutcome) -> list[Case]:
    result = outcome.result
    broken = {each.name: each.detail for each in result.constraints if not each.satisfied}
    why = "\n".join(f"{name}: no, {detail}" for name, detail in broken.items())
    return [
        Case(GENERATOR, broken.get(KEPT_UP, "")),
        Case(ENDED, error=outcome.measured.interruption),
        Case(f"{result.rules.scenario} is VALID", "" if outcome.is_kept else f"INVALID: {why}"),
    ]


def mlperf_search_cases(searched: Searched) -> list[Case]:
    problem, statement = searched.problem, searched.statement
    limited, ended = searched.exit_code == EXIT_GENERATOR, searched.found is not None
    return [
        Case(GENERATOR, problem if limited else ""),
        ended_case(ENDED, searched),
        Case(f"{Scenario.SERVER} is VALID", f"INVALID: {statement}" if ended else "", "" if ended else statement),
    ]


def _metric_name(result: Result) -> str:
    match result.rules.scenario:
        case Scenario.SERVER:
            return "Scheduled queries per second"
        case Scenario.OFFLINE:
            return "Samples per second"
        case _:
            return f"Early stopping {result.rules.percentile:g}th percentile estimate (ns)"


def _metric_line(result: Result) -> str:
    value = "too few queries" if result.metric is None else f"{result.metric:,.2f}"
    if result.metric is not None and result.rules.scenario in (Scenario.SINGLE_STREAM, Scenario.MULTI_STREAM):
        value = f"{result.metric:.0f}"
    return f"{_metric_name(result)} : {value}"


def _stats(result: Result, measured: Measured) -> list[str]:
    lines = [f"  Queries : {measured.total.requests:,}, samples : {result.samples:,.0f}"]
    if result.rules.scenario is Scenario.SERVER:
        lines.append(f"  Completed queries per second : {measured.rate_per_s:,.2f}")
    if result.rules.scenario is Scenario.SINGLE_STREAM and (estimate := estimate_ns(measured, 99.0)) is not None:
        lines.append(f"  Early stopping 99th percentile estimate (ns) : {estimate}")
    found = {percent: _ns(measured, percent) for percent in _PERCENTILES}
    lines += [f"  {percent:5.2f} percentile latency (ns) : {value}" for percent, value in found.items() if value]
    return lines


def _ns(measured: Measured, percent: float) -> int | None:
    found_us = measured.total.histogram.percentile_us(percent)
    return None if found_us is None else found_us * 1000


def _page(model: str, outcome: MlperfOutcome, objectives: Sequence[Threshold], settings: Mapping[str, str]) -> Page:
    result, watched, measured = outcome.result, outcome.watched, outcome.measured
    searched, load = outcome.searched, measured.load
    latencies = {"queries": measured.total.histogram}
    of_search = limits(objectives) if searched else []
    return Page(
        title=_title(model, result.rules.scenario),
        origin=figures.describe_origin([measured]),
        notice=_NOTICE,
        headline=_headline(result, measured),
        opening=f"{mlperf_text(model, outcome)}\n" if watched.server is not None else mlperf_text(model, outcome),
        tiles=[*_tiles(result, measured), *costs.tiles(outcome.spending)],
        sections=[
            Table(
                "Rules",
                ["rule", "required", "measured", "kept"],
                [*map(_row, result.constraints)],
                words=True,
                on="page",
            ),
            Charts("Latency", [charts.percentile_chart(latencies, of_search), charts.histogram_chart(latencies)]),
            charts.timeline_section(timeline(measured), load.seconds, stopped=measured.stopped),
            *servers.sections(watched),
            servers.timeline("Server over time", watched.server.timeline if watched.server else (), load.seconds),
            *costs.sections("load", [(str(load), outcome.spending)], outcome.spending),
            Remark([f"note: {watched.note}"] if watched.note else [], on="terminal"),
            *(_search_sections(searched, objectives, known_note=watched.note) if searched else []),
            *figures.failures([measured]),
        ],
        settings={"Scenario": str(result.rules.scenario), **figures.describe_load(measured), **settings},
    )


def _search_page(model: str, searched: Searched, objectives: Sequence[Threshold], settings: Mapping[str, str]) -> Page:
    objective = " and ".join(map(str, objectives))
    return Page(
        title=_title(model, Scenario.SERVER),
        origin=figures.describe_origin(searched.runs),
        notice=_NOTICE,
        headline=search_headline(searched),
        opening=searched.statement,
        tiles=None,
        sections=[*_search_sections(searched, objectives), *figures.failures(searched.runs)],
        settings={"Scenario": str(Scenario.SERVER), "Objective": objective, **settings},
    )


def _search_sections(searched: Searched, objectives: Sequence[Threshold], known_note: str = "") -> list[Section]:
    return [*tries_sections(searched, objectives), *server_sections("rate", searched, known_note)]


def _title(model: str, scenario: Scenario) -> str:
    return f"{scenario} scenario of {model}, not verified by MLCommons"


def _headline(result: Result, measured: Measured) -> Headline:
    broken = [f"{each.name}: no, {each.detail}" for each in result.constraints if not each.satisfied]
    reasons = [f"The run was {measured.interruption}", *broken] if measured.stopped else broken
    if not result.generator_kept_up:
        return Headline("warn", NOT_TO_BE_TRUSTED, reasons)
    if result.valid:
        return Headline("good", "VALID by the rules")
    if result.valid_but_for_duration:
        return Headline("warn", "INVALID: too short for the rules; all other rules are kept", reasons)
    return Headline("bad", f"INVALID: {len(broken)} of {len(result.constraints)} rules violated", reasons)


def _tiles(result: Result, measured: Measured) -> list[Tile]:
    rules, value = result.rules, result.metric
    if rules.percentile is None or rules.scenario is Scenario.SERVER:
        name = "scheduled queries" if rules.scenario is Scenario.SERVER else "samples"
        tiles = [Tile(name, "-" if value is None else per_second(value), "the scenario's metric")]
    else:
        estimate = "too few queries" if value is None else milliseconds(value / 1e6)
        tiles = [Tile(f"p{rules.percentile:g}, early-stopping estimate", estimate, "the scenario's metric")]
    if rules.scenario is Scenario.SERVER:
        tiles.append(Tile("completed queries", per_second(measured.rate_per_s)))
    if rules.percentile is not None and result.measured_percentile_ns is not None:
        tiles.append(Tile(f"p{rules.percentile:g} as measured", milliseconds(result.measured_percentile_ns / 1e6)))
    return [
        *tiles,
        Tile("queries", f"{measured.total.requests:,}", f"{result.samples:,.0f} samples"),
        Tile("measured", seconds(round(measured.span_s, 1)), measured.stopped),
        Tile("failures", f"{measured.total.failures:,}"),
    ]


def _row(constraint: Constraint) -> Row:
    kept = "✓ yes" if constraint.satisfied else "✗ no"
    return Row(constraint.name, [constraint.needed, constraint.found, kept], good=constraint.satisfied)
