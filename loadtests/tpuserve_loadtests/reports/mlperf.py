"""The page of a run by MLPerf Inference's rules: VALID or INVALID, each rule, and that nobody has verified it."""

from collections.abc import Mapping, Sequence

from tpuserve_loadtests.judgement.mlperf import Constraint, Result, Scenario
from tpuserve_loadtests.judgement.threshold import Threshold
from tpuserve_loadtests.measurement.measured import Measured
from tpuserve_loadtests.measurement.timeline import timeline
from tpuserve_loadtests.outcomes.mlperf import DISCLAIMER
from tpuserve_loadtests.outcomes.search import SearchServers
from tpuserve_loadtests.rendering.drawing import Rule
from tpuserve_loadtests.rendering.markup import Markup, element
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
from tpuserve_loadtests.report_model.units import milliseconds, per_second, seconds
from tpuserve_loadtests.reports.histogram_chart import draw_histogram
from tpuserve_loadtests.reports.origin import describe_origin
from tpuserve_loadtests.reports.percentile_chart import draw_percentiles
from tpuserve_loadtests.reports.run import describe_load, show_errors
from tpuserve_loadtests.reports.run_verdict import NOT_TO_BE_TRUSTED
from tpuserve_loadtests.reports.search import Tries, search_headline, search_runs, show_tries
from tpuserve_loadtests.reports.server_section import show_server, show_server_timeline
from tpuserve_loadtests.reports.servers_section import show_servers
from tpuserve_loadtests.reports.timeline_section import show_timeline
from tpuserve_loadtests.searching import Found
from tpuserve_loadtests.server_side.watched import Watched

_MEANING = (
    "A submission needs MLPerf's own load generator, the benchmark's data and model, an accuracy run and a review. "
    "MLPerf is a trademark of MLCommons Association."
)


def mlperf_page(
    model: str,
    result: Result,
    watched: Watched,
    settings: Mapping[str, str],
    *,
    found: Found | None = None,
    tries: Tries = (),
    objectives: Sequence[Threshold] = (),
    servers: SearchServers | None = None,
) -> str:
    """`settings`: what was asked for, by name. The rest is of the search before it, if there was one."""
    (measured,) = watched.runs
    latencies = {"queries": measured.total.histogram}
    limits = [Rule(str(objective), y=objective.value) for objective in objectives if objective.is_latency]
    sections = [
        _show_disclaimer(),
        show_headline(_headline(result, measured)),
        show_tiles(_tiles(result, measured)),
        show_table(
            "Rules", ["rule", "asked for", "found", "kept"], [_row(each) for each in result.constraints], words=True
        ),
        show_charts("Latencies", [draw_percentiles(latencies, limits), draw_histogram(latencies)]),
        show_timeline(timeline(measured), measured.load.seconds, stopped=measured.stopped),
        show_server(watched),
        show_server_timeline(watched.server, measured.load.seconds),
        *show_tries(found, tries, objectives),
        *_show_servers(found, servers, told=watched.note),
        show_errors([measured]),
        show_settings({"Scenario": str(result.rules.scenario), **describe_load(measured), **settings}),
    ]
    return render_page(_title(model, result.rules.scenario), describe_origin([measured]), sections)


def mlperf_search_page(
    model: str,
    found: Found | None,
    tries: Tries,
    problem: str,
    objectives: Sequence[Threshold],
    settings: Mapping[str, str],
    servers: SearchServers,
) -> str:
    """The server scenario's where no rate was found that could be run by the rules."""
    runs = search_runs(tries, servers)
    sections = [
        _show_disclaimer(),
        show_headline(search_headline(found, tries, problem)),
        *show_tries(found, tries, objectives),
        *_show_servers(found, servers),
        show_errors(runs),
        show_settings({"Scenario": str(Scenario.SERVER), "Objective": " and ".join(map(str, objectives)), **settings}),
    ]
    return render_page(_title(model, Scenario.SERVER), describe_origin(runs), sections)


def _show_servers(found: Found | None, servers: SearchServers | None, told: str = "") -> list[Markup]:
    """What gave in during the search; a note that was `told` already is left out."""
    if servers is None:
        return []
    lines = [element("p", line) for line in (servers.gave_in(found), *servers.notes(found, told)) if line]
    said = [element("section", *lines, class_="quiet")] if lines else []
    return [show_servers("tried", servers.rows(found)), *said]


def _title(model: str, scenario: Scenario) -> str:
    return f"{scenario} scenario of {model}, not verified by MLCommons"


def _show_disclaimer() -> Markup:
    """Above everything: a figure must not be taken from the page for what it is not."""
    told = element("p", _MEANING, class_="quiet")
    return element("section", element("strong", DISCLAIMER), told, class_="disclaimer")


def _headline(result: Result, measured: Measured) -> Headline:
    broken = [f"{each.name}: no, {each.detail}" for each in result.constraints if not each.satisfied]
    reasons = [f"It was {measured.stopped}", *broken] if measured.stopped else broken
    if not result.generator_kept_up:
        return Headline("warn", NOT_TO_BE_TRUSTED, reasons)
    if result.valid:
        return Headline("good", "VALID by the rules")
    if result.valid_but_for_duration:
        return Headline("warn", "INVALID: too short for the rules; all else is kept", reasons)
    return Headline("bad", f"INVALID: {len(broken)} of {len(result.constraints)} rules are not kept", reasons)


def _tiles(result: Result, measured: Measured) -> list[Tile]:
    return [
        _metric(result),
        *_plain(result, measured),
        Tile("queries", f"{measured.total.requests:,}", f"{result.samples:,.0f} samples"),
        Tile("measured", seconds(round(measured.span_s, 1)), measured.stopped),
        Tile("failures", f"{measured.total.failures:,}"),
    ]


def _metric(result: Result) -> Tile:
    """What MLPerf calls the result."""
    percentile, value = result.rules.percentile, result.metric
    match result.rules.scenario:
        case Scenario.SERVER:
            return Tile("scheduled queries", "-" if value is None else per_second(value), "the scenario's metric")
        case Scenario.OFFLINE:
            return Tile("samples", "-" if value is None else per_second(value), "the scenario's metric")
        case _:
            shown = "too few queries" if value is None else milliseconds(value / 1e6)
            return Tile(f"p{percentile:g}, early-stopping estimate", shown, "the scenario's metric")


def _plain(result: Result, measured: Measured) -> list[Tile]:
    """The percentile as it was measured, and what was completed."""
    tiles = []
    if result.rules.scenario is Scenario.SERVER:
        tiles.append(Tile("completed queries", per_second(measured.rate_per_s)))
    if result.rules.percentile is not None and result.measured_percentile_ns is not None:
        latency = milliseconds(result.measured_percentile_ns / 1e6)
        tiles.append(Tile(f"p{result.rules.percentile:g} as measured", latency))
    return tiles


def _row(constraint: Constraint) -> Row:
    kept = "✓ yes" if constraint.satisfied else "✗ no"
    return Row(constraint.name, [constraint.needed, constraint.found, kept], good=constraint.satisfied)
