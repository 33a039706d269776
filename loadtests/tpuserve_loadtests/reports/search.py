"""The page of a search: which rates held the objective, which did not, and what was found."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tpuserve_loadtests.judgement.threshold import Threshold
from tpuserve_loadtests.measurement.measured import Measured
from tpuserve_loadtests.outcomes.search import SearchServers, search_statement
from tpuserve_loadtests.rendering.drawing import Axis, Chart, Column, Dot, Numbers, Rule, draw_chart
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
from tpuserve_loadtests.report_model.scales import Linear, latency_scale
from tpuserve_loadtests.report_model.units import three_digits
from tpuserve_loadtests.reports.origin import describe_origin
from tpuserve_loadtests.reports.percentile_chart import draw_percentiles
from tpuserve_loadtests.reports.run import LATENCIES, latency_cells, show_errors
from tpuserve_loadtests.reports.servers_section import show_servers
from tpuserve_loadtests.searching import Found, Probe
from tpuserve_loadtests.statistics.histogram import LatencyHistogram

Tries = Sequence[tuple[Probe, Measured]]

_REASONS = "Figures are of each try's last run. A try that is neither shown to hold nor to fail has up to four."


def search_page(
    model: str,
    found: Found | None,
    tries: Tries,
    problem: str,
    objectives: Sequence[Threshold],
    settings: Mapping[str, str],
    servers: SearchServers,
) -> str:
    """`problem`: why the search did not end, or no rate can hold. `settings`: what was asked for, by name.

    `servers`: what the server told of the tries.
    """
    wanted = " and ".join(map(str, objectives))
    runs = search_runs(tries, servers)
    sections = [
        show_headline(_with_servers(search_headline(found, tries, problem), found, servers)),
        show_tiles([*_tiles(found, tries, wanted), *_alone_tiles(tries, servers, objectives)]),
        *show_tries(found, tries, objectives),
        show_servers("load", servers.rows(found)),
        show_errors(runs),
        show_settings({"Objective": wanted, **settings}),
    ]
    return render_page(f"Highest rate of {model} at {wanted}", describe_origin(runs), sections)


def search_runs(tries: Tries, servers: SearchServers) -> list[Measured]:
    """Return all loads of a search: one user alone, and then the tries."""
    alone = servers.alone.runs if servers.alone is not None else ()
    return [*alone, *(measured for _, measured in tries)]


def show_tries(found: Found | None, tries: Tries, objectives: Sequence[Threshold]) -> list[Markup]:
    """Charts and a table of them; nothing of none."""
    charts = [_draw_tries(objective, tries, found) for objective in objectives]
    around = draw_percentiles(_around(found, tries), _limits(objectives))
    return [
        show_charts("Rates that were tried", [*charts, around]),
        show_table("Tries, in turn", ["rate", "failures", "answers/s", *LATENCIES, "outcome"], _rows(tries), _REASONS),
    ]


def _with_servers(headline: Headline, found: Found | None, servers: SearchServers) -> Headline:
    told = (servers.gave_in(found), *servers.notes(found))
    return replace(headline, reasons=[*headline.reasons, *filter(None, told)])


def search_headline(found: Found | None, tries: Tries, problem: str) -> Headline:
    statement = search_statement(found, [probe for probe, _ in tries], problem)
    if found is None:
        return Headline("warn", "The search did not end", [statement])
    if found.best is None:
        return Headline("bad", "No rate holds", [statement])
    return Headline("good", f"{_rate(found.best.rate_per_s)} holds", [statement])


def _tiles(found: Found | None, tries: Tries, wanted: str) -> list[Tile]:
    best, ceiling = (found.best, found.ceiling) if found else (None, None)
    return [
        Tile("highest rate that holds", _rate(best.rate_per_s) if best else "none", wanted),
        Tile("does not hold", _rate(ceiling.rate_per_s) if ceiling else "none tried"),
        Tile("rates tried", str(len(tries)), f"{sum(probe.holds for probe, _ in tries)} held")
        if tries
        else Tile("rates tried", "none", "one user alone came first"),
    ]


def _alone_tiles(tries: Tries, servers: SearchServers, objectives: Sequence[Threshold]) -> list[Tile]:
    """Make tiles for the figures of one user alone, if the search ended with them."""
    if tries or servers.alone is None:
        return []
    (measured,) = servers.alone.runs
    figures = [(objective, objective.figure(measured)) for objective in objectives]
    return [
        Tile(f"{objective.metric} of one user alone", objective.show(figure), str(objective))
        for objective, figure in figures
        if figure is not None
    ]


def _draw_tries(objective: Threshold, tries: Tries, found: Found | None) -> Markup:
    """The objective's figure at each rate; nothing where none was answered."""
    scale = 100.0 if objective.metric == "error_rate" else 1.0
    points = [
        (probe, figure * scale) for probe, measured in tries if (figure := objective.figure(measured)) is not None
    ]
    if not points:
        return Markup()
    figures = [figure for _, figure in points]
    limit = objective.value * scale
    best = [Rule("found", x=found.best.rate_per_s)] if found and found.best else []
    chart = Chart(
        title=f"{objective.metric} at each rate",
        label=f"{len(points)} tries against {objective}",
        x=Axis("requests a second that were offered", Linear.around(probe.rate_per_s for probe, _ in points)),
        y=Axis("ms" if objective.is_latency else "%", latency_scale([*figures, limit])),
        dots=[Dot(probe.rate_per_s, figure, probe.holds) for probe, figure in points],
        rules=[Rule(str(objective), y=limit), *best],
        columns=[Column(probe.rate_per_s, _told(probe, objective, figure / scale)) for probe, figure in points],
        numbers=Numbers(
            ["rate", objective.metric, "outcome"],
            [
                [_rate(probe.rate_per_s), objective.show(figure / scale), _outcome(probe)]
                for probe, figure in sorted(points, key=lambda point: point[0].rate_per_s)
            ],
        ),
    )
    return draw_chart(chart, keys=[_key("good", "holds"), _key("bad", "does not hold")])


def _key(kind: str, text: str) -> Markup:
    return element("span", element("span", class_=f"dot {kind}"), text, class_="key")


def _told(probe: Probe, objective: Threshold, figure: float) -> str:
    return f"{_rate(probe.rate_per_s)} {_outcome(probe)}\n{objective.metric} {objective.show(figure)}"


def _rate(value: float) -> str:
    """As the statement writes it."""
    return f"{value:,.1f}/s"


def _outcome(probe: Probe) -> str:
    return "holds" if probe.holds else "does not hold"


def _limits(objectives: Sequence[Threshold]) -> list[Rule]:
    return [Rule(str(objective), y=objective.value) for objective in objectives if objective.is_latency]


def _around(found: Found | None, tries: Tries) -> dict[str, LatencyHistogram]:
    """What was found and the rate above it, each as it was tried last."""
    wanted = [probe for probe in (found.best, found.ceiling) if probe] if found else []
    last = {probe.rate_per_s: measured for probe, measured in tries}
    return {
        f"{_rate(probe.rate_per_s)} {_outcome(probe)}": last[probe.rate_per_s].total.histogram
        for probe in wanted
        if probe.rate_per_s in last
    }


def _rows(tries: Tries) -> list[Row]:
    return [
        Row(
            _rate(probe.rate_per_s),
            [
                f"{measured.total.failures:,}",
                three_digits(measured.rate_per_s),
                *latency_cells(measured.total.summary("", measured.rate_per_s)),
                _outcome(probe),
            ],
            good=probe.holds,
            note=probe.reason,
        )
        for probe, measured in tries
    ]
