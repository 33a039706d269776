"""The report of a search: the rates that held the objective, the rates that did not, and the result."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict

from tpuserve_formats.counted import counted
from tpuserve_loadtests.judgement.exit_codes import EXIT_GATE, EXIT_GENERATOR, EXIT_INTERRUPTED
from tpuserve_loadtests.judgement.search import Probe, Searched
from tpuserve_loadtests.judgement.threshold import Threshold
from tpuserve_loadtests.rendering.chart import Axis, Chart, Dot, Key, Numbers, Rule
from tpuserve_loadtests.rendering.report import (
    GENERATOR,
    Case,
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
from tpuserve_loadtests.rendering.scales import Linear, latency_scale, three_digits
from tpuserve_loadtests.reports import charts, costs, figures, servers

_STOPPED = "The search stopped early"
_NONE_HOLDS = "No rate holds"
_REASONS = "Figures are from the last run of each trial. A trial without a clear result has up to four runs."


def search_report(
    model: str, searched: Searched, objectives: Sequence[Threshold], settings: Mapping[str, str]
) -> Report:
    """Build the report. `settings`: the settings to show, by name."""
    found = searched.found
    return Report(
        kind="loadtest search",
        subject=model,
        exit_code=searched.exit_code or (0 if found and found.best else EXIT_GATE),
        cases=search_cases(searched, objectives),
        statement=costs.added_to(searched.statement, searched.spending),
        document=lambda: {
            "model": model,
            "objectives": [str(objective) for objective in objectives],
            "rows_per_request": searched.rows,
            **search_document(searched),
            **(searched.spending.as_document() if searched.spending else {"cost": None, "energy": None}),
        },
        page=lambda: _page(model, searched, objectives, settings),
        rows=lambda: [
            {**figures.run_row(measured), "holds": probe.holds, "reason": probe.reason, **costs.csv_cells(spending)}
            for (probe, measured), spending in zip(searched.probes, searched.spendings, strict=True)
        ],
        runs={
            f"{number}:{probe.rate_per_s:.6g}": measured
            for number, (probe, measured) in enumerate(searched.probes, start=1)
        },
    )


def search_cases(searched: Searched, objectives: Sequence[Threshold]) -> list[Case]:
    found, problem, statement = searched.found, searched.problem, searched.statement
    limited, ended = searched.exit_code == EXIT_GENERATOR, found is not None
    kept = f"a rate keeps {' and '.join(map(str, objectives))}"
    return [
        Case(GENERATOR, problem if limited else ""),
        ended_case("the search ended", searched),
        Case(kept, statement if found and not found.best else "", "" if ended else statement),
    ]


def ended_case(name: str, searched: Searched) -> Case:
    """Return the case that a search ran to its end. The limit of the load generator has its own case."""
    problem, code = searched.problem if searched.found is None else "", searched.exit_code
    if code == EXIT_INTERRUPTED:
        return Case(name, error=problem)
    return Case(name, skipped=problem) if code == EXIT_GENERATOR else Case(name, problem)


def search_document(searched: Searched) -> dict[str, Document]:
    found = searched.found
    best = found.best if found else None
    ceiling = found.ceiling if found else None
    return {
        "rate_per_s": best.rate_per_s if best else None,
        "does_not_hold_per_s": ceiling.rate_per_s if ceiling else None,
        "problem": searched.problem,
        "alone": searched.alone.as_document() if searched.alone else None,
        "probes": [{**asdict(probe), **watched.as_document()} for probe, watched in searched.trials],
        "gave_in": searched.bottleneck,
        "server_notes": searched.server_notes(),
    }


def server_sections(kind: str, searched: Searched, known_note: str = "") -> list[Section]:
    """Return the time breakdown, the bottleneck and the notes, except the note `known_note`."""
    bottleneck, notes = searched.bottleneck, searched.server_notes(known_note)
    lines = [*([bottleneck] if bottleneck else []), *(f"note: {note}" for note in notes)]
    return [servers.table(kind, searched.server_rows), Remark(lines)]


def _page(model: str, searched: Searched, objectives: Sequence[Threshold], settings: Mapping[str, str]) -> Page:
    wanted = " and ".join(map(str, objectives))
    trials = zip(searched.probes, searched.spendings, strict=True)
    held = [(_rate(probe.rate_per_s), spending) for (probe, _), spending in trials if spending is not None]
    return Page(
        title=f"Highest rate of {model} within {wanted}",
        origin=figures.describe_origin(searched.runs),
        headline=search_headline(searched),
        opening=searched.statement,
        tiles=[
            *_tiles(searched, wanted),
            *_alone_tiles(searched, objectives),
            *costs.tiles(searched.spending),
        ],
        sections=[
            *tries_sections(searched, objectives),
            *server_sections("load", searched),
            *costs.sections("rate", held, searched.spending),
            *figures.failures(searched.runs),
        ],
        settings={"Objective": wanted, **settings},
    )


def tries_sections(searched: Searched, objectives: Sequence[Threshold]) -> list[Section]:
    by_rate = [_tries_chart(objective, searched) for objective in objectives]
    histograms = {
        f"{_rate(probe.rate_per_s)} {_outcome(probe)}": watched.runs[0].total.histogram
        for probe, watched in searched.around
    }
    around = charts.percentile_chart(histograms, limits(objectives))
    headings = ["rate", "failures", "answers/s", *figures.LATENCIES, "outcome"]
    rows = [
        Row(
            _rate(probe.rate_per_s),
            [
                f"{measured.total.failures:,}",
                three_digits(measured.rate_per_s),
                *figures.latency_cells(measured.total.summary("", measured.rate_per_s)),
                _outcome(probe),
            ],
            good=probe.holds,
            note=probe.reason,
        )
        for probe, measured in searched.probes
    ]
    return [Charts("Trials by rate", [*by_rate, around]), Table("Trials", headings, rows, _REASONS, on="page")]


def search_headline(searched: Searched) -> Headline:
    found, statement = searched.found, searched.statement
    if found is None:
        return Headline("warn", _STOPPED, [statement.removeprefix(f"{_STOPPED}: ")])
    if found.best is None:
        return Headline("bad", _NONE_HOLDS, [statement.removeprefix(f"{_NONE_HOLDS}: ")])
    return Headline("good", f"{_rate(found.best.rate_per_s)} holds", [statement])


def _tiles(searched: Searched, wanted: str) -> list[Tile]:
    found, tries = searched.found, searched.probes
    best, ceiling = (found.best, found.ceiling) if found else (None, None)
    return [
        Tile("highest rate that holds", _rate(best.rate_per_s) if best else "none", wanted),
        Tile("does not hold", _rate(ceiling.rate_per_s) if ceiling else "no trial"),
        Tile("trials", str(len(tries)), f"{sum(probe.holds for probe, _ in tries)} held")
        if tries
        else Tile("trials", "none", "the first load was a single user"),
    ]


def _alone_tiles(searched: Searched, objectives: Sequence[Threshold]) -> list[Tile]:
    alone = searched.alone
    if searched.probes or alone is None:
        return []
    (measured,) = alone.runs
    return [
        Tile(f"{objective.metric} of a single user", objective.show(figure), str(objective))
        for objective in objectives
        if (figure := objective.figure(measured.whole)) is not None
    ]


def _tries_chart(objective: Threshold, searched: Searched) -> Chart | None:
    scale = 100.0 if objective.metric == "error_rate" else 1.0
    points = [
        (probe, figure * scale)
        for probe, measured in searched.probes
        if (figure := objective.figure(measured.whole)) is not None
    ]
    points.sort(key=lambda point: point[0].rate_per_s)
    if not points:
        return None
    limit = objective.value * scale
    found = searched.found
    best = [Rule("result", x=found.best.rate_per_s)] if found and found.best else []
    return Chart(
        title=f"{objective.metric} by rate",
        label=f"{counted(len(points), 'trial')} against {objective}",
        x=Axis("offered requests/s", Linear.around(probe.rate_per_s for probe, _ in points)),
        y=Axis("ms" if objective.is_latency else "%", latency_scale([*(figure for _, figure in points), limit])),
        dots=[Dot(probe.rate_per_s, figure, probe.holds) for probe, figure in points],
        rules=[Rule(str(objective), y=limit), *best],
        numbers=Numbers(
            ["rate", objective.metric, "outcome"],
            [[_rate(probe.rate_per_s), objective.show(figure / scale), _outcome(probe)] for probe, figure in points],
            [probe.rate_per_s for probe, _ in points],
        ),
        keys=[Key("holds"), Key("does not hold", good=False)],
    )


def _rate(value: float) -> str:
    return f"{value:,.1f}/s"


def _outcome(probe: Probe) -> str:
    return "holds" if probe.holds else "does not hold"


def limits(objectives: Sequence[Threshold]) -> list[Rule]:
    return [Rule(str(objective), y=objective.value) for objective in objectives if objective.is_latency]
