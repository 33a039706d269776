"""The comparison of two result files, by the rules of `compare`, and of a run with its baseline."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from tpuserve_loadtests.judgement.comparison import SIDES, judge_comparison
from tpuserve_loadtests.judgement.exit_codes import EXIT_EVIDENCE, first_of
from tpuserve_loadtests.judgement.run import Rules
from tpuserve_loadtests.rendering.report import Case, Group, Headline, Page, Remark, Report
from tpuserve_loadtests.rendering.result_file import ResultFile
from tpuserve_loadtests.reports.compare import compare_report

_KIND: Final = "loadtest diff"
# Settings of each result that the page shows.
_SHOWN: Final = ("Version", "Addresses", "Command")
_COMPARABLE: Final = "the results are comparable"


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
    outcome = judge_comparison(
        (old.path.name, new.path.name),
        list(zip(old.rounds(), new.rounds(), strict=False)),
        rules,
    )
    report = compare_report(new.document["subject"], outcome, settings)
    # The files hold all runs.
    return replace(report, kind=_KIND, cases=[Case(_COMPARABLE), *report.cases], runs={})


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
