"""The comparison of two result files: of runs by the rules of `compare`, of sweeps by load, of searches by rate."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from tpuserve_formats.counted import counted
from tpuserve_loadtests.judgement.comparison import (
    SIDES,
    VERDICTS,
    ComparisonOutcome,
    comparison_cells,
    judge_comparison,
)
from tpuserve_loadtests.judgement.exit_codes import EXIT_EVIDENCE, exit_code, first_of
from tpuserve_loadtests.judgement.run import Rules
from tpuserve_loadtests.rendering.report import Case, Group, Headline, Kind, Page, Remark, Report, Row, Section, Table
from tpuserve_loadtests.rendering.result_file import ResultFile
from tpuserve_loadtests.reports.compare import HEADINGS, compare_headline, compare_report, figure_document
from tpuserve_loadtests.reports.figures import VERSION
from tpuserve_loadtests.statistics.comparison import FIGURES, RATE, Verdict, judge_rates

_KIND: Final = "loadtest diff"
# Settings of each result that the page shows.
_SHOWN: Final = ("Version", "Addresses", "Command")
_COMPARABLE: Final = "the results are comparable"
_HIGHEST: Final = "highest rate"


def differing(old: ResultFile, new: ResultFile) -> list[str]:
    """List the conditions in which the results differ, other than the servers."""
    before, after = old.conditions, new.conditions
    return [f"{name}: {before[name]} before, {after[name]} now" for name in after if before[name] != after[name]]


def diff_report(old: ResultFile, new: ResultFile, rules: Rules) -> Report:
    """Compare B, the new result, with A, the old one. Raises BadResult."""
    sides = zip(SIDES, (old, new), strict=True)
    settings = {f"{name} of {side}": file.document["settings"].get(name, "") for side, file in sides for name in _SHOWN}
    if reasons := differing(old, new):
        return _incomparable(new, reasons, settings)
    match new.content:
        case "the highest rate":
            report = _highest_rates(old, new, rules, settings)
        case "several loads":
            report = _loads(old, new, rules, settings)
        case _:
            report = compare_report(new.document["subject"], _judged(old, new, rules), settings)
    # The files hold all runs.
    return replace(report, kind=_KIND, cases=[Case(_COMPARABLE), *report.cases], runs={})


def _judged(old: ResultFile, new: ResultFile, rules: Rules, load: str = "") -> ComparisonOutcome:
    rounds = list(zip(old.rounds(load), new.rounds(load), strict=False))
    return judge_comparison((old.path.name, new.path.name), rounds, rules)


def _loads(old: ResultFile, new: ResultFile, rules: Rules, settings: dict[str, str]) -> Report:
    """Compare the steps of two sweeps that have the same load."""
    common = [load for load in new.loads if load in old.loads]
    if not common:
        loads = ", ".join(old.loads), ", ".join(new.loads)
        return _incomparable(new, [f"Loads: {loads[0]} before, {loads[1]} now"], settings)
    outcomes = {load: _judged(old, new, rules, load) for load in common}
    subject = new.document["subject"]
    reports = {load: compare_report(f"{subject}, {load}", outcome, {}) for load, outcome in outcomes.items()}
    code = first_of(report.exit_code for report in reports.values())
    decisive = next(load for load, report in reports.items() if report.exit_code == code)
    alone = [load for load in (*old.loads, *new.loads) if load not in common]
    notes = [f"not compared, because only one result has them: {', '.join(alone)}"] if alone else []

    def headline() -> Headline:
        headlines = {load: compare_headline(outcome) for load, outcome in outcomes.items()}
        sentences = [f"{load}: {each.sentence}" for load, each in headlines.items()]
        if code:
            found = headlines[decisive]
            return Headline(found.kind, f"{decisive}: {found.words}", [*found.reasons[:1], *sentences, *notes])
        is_good = all(each.kind == "good" for each in headlines.values())
        words = f"B is not worse at {counted(len(common), 'load')}"
        return Headline("good" if is_good else "warn", words, [*sentences, *notes])

    def page() -> Page:
        groups = [
            Group(load, compare_headline(outcomes[load]), report.page().sections, f"load-{number}", on="page")
            for number, (load, report) in enumerate(reports.items(), start=1)
        ]
        origin = f"{counted(len(common), 'load')} · {VERSION}"
        sections: list[Section] = [_loads_table(outcomes), Remark(notes), *groups]
        return Page(f"Sweeps of {subject}", origin, headline(), None, sections, settings)

    return Report(
        kind=_KIND,
        subject=subject,
        exit_code=code,
        cases=[replace(case, name=f"{load}: {case.name}") for load, report in reports.items() for case in report.cases],
        document=lambda: {
            "verdict": reports[decisive].document()["verdict"],
            "loads": {load: report.document() for load, report in reports.items()},
            "notes": notes,
        },
        page=page,
        statement=headline().sentence,
    )


def _loads_table(outcomes: Mapping[str, ComparisonOutcome]) -> Table:
    rows = []
    for load, outcome in outcomes.items():
        found = (
            {each.name: f"{each.ratio.ratio:.3f}" for each in outcome.comparison.figures} if outcome.comparison else {}
        )
        verdict = str(outcome.comparison.verdict) if outcome.comparison else "unclear"
        cells = [found.get(name, "-") for name in (*FIGURES, RATE)]
        rows.append(Row(load, [*cells, verdict], good=not outcome.exit_code))
    return Table(
        "Ratios of B to A by load", ["load", *FIGURES, RATE, "verdict"], rows, names="right", margins="fitting"
    )


def _highest_rates(old: ResultFile, new: ResultFile, rules: Rules, settings: dict[str, str]) -> Report:
    """Compare the highest rates of two searches."""
    figure = judge_rates(old.rates, new.rates, rules.least_effect)
    name, *cells = [_HIGHEST, *comparison_cells(figure)[1:]]
    a, b, ratio, interval, verdict = cells
    words = f"{name} of B is {verdict}: A {a}, B {b}, ratio {ratio} ({interval})"
    is_worse, is_unclear = figure.verdict is Verdict.WORSE, figure.verdict is Verdict.UNCLEAR
    code = exit_code(gate=is_worse, evidence=is_unclear and rules.fail_if_unclear)
    kind: Kind = "bad" if is_worse else "warn" if is_unclear else "good"
    headline = Headline(kind, VERDICTS[figure.verdict], [words])
    table = Table("Figures", [*HEADINGS[:-2], "interval", "verdict"], [Row(name, cells, good=not code)])
    subject = new.document["subject"]
    title = f"Searches for the highest rate of {subject}"
    return Report(
        kind=_KIND,
        subject=subject,
        exit_code=code,
        cases=[
            Case(
                f"{name} of B is not worse",
                words if is_worse else "",
                words if is_unclear else "",
                error=words if is_unclear and code else "",
            )
        ],
        document=lambda: {"verdict": figure.verdict, "figures": {_HIGHEST: figure_document(figure)}},
        page=lambda: Page(title, VERSION, headline, None, [table], settings),
        statement=headline.sentence,
    )


def _incomparable(new: ResultFile, reasons: Sequence[str], settings: dict[str, str]) -> Report:
    headline = Headline("warn", "Inconclusive: the results are not comparable", reasons)
    others = [Remark(reasons[1:], on="terminal")]
    return Report(
        kind=_KIND,
        subject=new.document["subject"],
        exit_code=EXIT_EVIDENCE,
        cases=[Case(_COMPARABLE, "\n".join(reasons))],
        document=lambda: {"verdict": None, "differences": reasons},
        page=lambda: Page(f"Results of {new.document['subject']}", "", headline, None, others, settings),
        statement=headline.sentence,
    )


def with_baseline(report: Report, compared: Report, baseline: str) -> Report:
    """Add the comparison with a baseline to the report of a run. The run passes if both pass."""
    title = f"Compared with the baseline: A is {baseline}, B is this run"

    def page() -> Page:
        page, other = report.page(), compared.page()
        headline = page.headline
        if compared.exit_code and not report.exit_code:
            found = other.headline
            headline = Headline(found.kind, f"Baseline: {found.words}", [*found.reasons, headline.sentence])
        group = Group(title, other.headline, other.sections, "baseline")
        return replace(page, headline=headline, sections=[*page.sections, group])

    return replace(
        report,
        exit_code=first_of([report.exit_code, compared.exit_code]),
        cases=[*report.cases, *(replace(case, name=f"baseline: {case.name}") for case in compared.cases)],
        statement="\n".join([report.statement, compared.statement]),
        document=lambda: {**report.document(), "baseline": compared.document()},
        page=page,
    )
