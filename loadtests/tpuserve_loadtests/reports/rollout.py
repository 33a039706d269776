"""The page of a rollout, which goes with the change: what is live, each step and why it passed, what was measured."""

from collections.abc import Mapping
from datetime import UTC, datetime
from importlib import metadata
from typing import Final

from tpuserve_loadtests.exit_codes import EXIT_FAILED, EXIT_GENERATOR
from tpuserve_loadtests.measurement.measured import Measured
from tpuserve_loadtests.outcomes.comparison import ComparisonReport
from tpuserve_loadtests.outcomes.rollout import RolloutReport
from tpuserve_loadtests.outcomes.soak import SoakReport
from tpuserve_loadtests.rendering.markup import Markup, element
from tpuserve_loadtests.rendering.page import render_page
from tpuserve_loadtests.rendering.sections import (
    Headline,
    Kind,
    Row,
    Tile,
    show_headline,
    show_part,
    show_settings,
    show_table,
    show_tiles,
)
from tpuserve_loadtests.report_model.units import seconds
from tpuserve_loadtests.reports.compare import compare_headline, show_comparison
from tpuserve_loadtests.reports.run import show_errors
from tpuserve_loadtests.reports.soak import show_soak, soak_headline
from tpuserve_loadtests.rollout.parity import Parity
from tpuserve_loadtests.rollout.procedure import Outcome, Step, StepState

_MARKS: Final = {
    StepState.PASSED: "✓ passed",
    StepState.DONE: "✓ done",
    StepState.FAILED: "✗ failed",
    StepState.PLANNED: "planned",
    StepState.SKIPPED: "skipped",
}
_NEWS: Final = {StepState.PASSED: True, StepState.DONE: True, StepState.FAILED: False}
_MOST_DIFFERENCES: Final = 10
_SHOWN_S: Final = 0.1
_DRY_RUN: Final = "A dry run, which changes no label and puts no load on the server: --execute does it"


def rollout_page(report: RolloutReport, settings: Mapping[str, str]) -> str:
    """`settings`: what was asked for, by name."""
    parts = _parts(report)
    sections = [
        show_headline(_headline(report)),
        show_tiles(_tiles(report)),
        show_table("Steps", ["step", "at (UTC)", "took", "outcome"], _steps(report, parts)),
        show_table("Labels", ["label", "before", "in the file", "the server"], _labels(report), words=True),
        *parts.values(),
        show_errors(_runs(report)),
        show_settings(settings),
    ]
    what = "Plan of a rollout" if report.dry_run else "Rollout"
    return render_page(f"{what}: {report.model}, version {report.live} to {report.new}", _origin(report), sections)


def _headline(report: RolloutReport) -> Headline:
    dry_run = [_DRY_RUN] if report.dry_run else []
    failed = [f"{step.name}: {step.detail}" for step in report.steps if step.state is StepState.FAILED]
    # What was interrupted or could not be told is not the new version's fault.
    kind: Kind = "warn" if report.exit_code in (EXIT_FAILED, EXIT_GENERATOR) else "bad"
    refused = "Interrupted" if report.interrupted else f"Version {report.new} was refused"
    back = "Interrupted, and the labels were moved back" if report.interrupted else "The labels were moved back"
    match report.outcome:
        case Outcome.PLANNED:
            return Headline("plan", "A plan: nothing was changed", [*dry_run, f"Version {report.live} is live"])
        case Outcome.PROMOTED:
            return Headline("good", f"Version {report.new} is live", _let_pass(report))
        case Outcome.REFUSED:
            words = f"{refused}: version {report.live} is live, and no label was moved"
            return Headline(kind, words, [*failed, *dry_run])
        case Outcome.MOVED_BACK:
            return Headline(kind, f"{back}: version {report.live} is live again", failed)
        case Outcome.STUCK:
            do = "Set the labels in the file and reload it"
            return Headline("bad", "The labels could not be moved back", [report.labels, *failed, do])


def _let_pass(report: RolloutReport) -> list[str]:
    """What passed because --unclear and --generator-limit said that it may."""
    comparison, soak = report.findings.comparison, report.findings.soak
    found = []
    if comparison is not None and comparison.limits:
        found.append("compare: the load generator was the limit; it was let pass")
    if comparison is not None and comparison.unclear:
        found.append("compare: it is unclear whether the new version is worse; it was let pass")
    if soak is not None and not soak.run.generator.trusted:
        found.append("soak: the load generator was the limit; it was let pass")
    return found


def _tiles(report: RolloutReport) -> list[Tile]:
    gates = [step for step in report.steps if step.state in (StepState.PASSED, StepState.FAILED)]
    passed = sum(step.state is StepState.PASSED for step in gates)
    planned = sum(step.state is StepState.PLANNED for step in report.steps)
    took_s = sum(step.seconds for step in report.steps)
    return [
        Tile("live now", _live(report)),
        Tile("was live", f"version {report.live}"),
        Tile("asked for", f"version {report.new}"),
        Tile("passed", f"{passed} of {len(gates)}", f"{planned} steps planned" if planned else ""),
        Tile("took", seconds(round(took_s, 1)), "a dry run" if report.dry_run else ""),
    ]


def _live(report: RolloutReport) -> str:
    match report.outcome:
        case Outcome.PROMOTED:
            return f"version {report.new}"
        case Outcome.STUCK:
            return "see the labels"
        case _:
            return f"version {report.live}"


def _steps(report: RolloutReport, parts: Mapping[str, Markup]) -> list[Row]:
    """The name of one that has a part of its own leads there."""
    return [
        Row(
            element("a", step.name, href=f"#{step.name}") if step.name in parts else step.name,
            [*_times(report, step), _MARKS[step.state]],
            good=_NEWS.get(step.state),
            note=step.detail,
        )
        for step in report.steps
    ]


def _times(report: RolloutReport, step: Step) -> list[str]:
    if step.state is StepState.PLANNED:
        return ["-", "-"]
    began = datetime.fromtimestamp(report.started_at + step.start_s, UTC)
    return [f"{began:%H:%M:%S}", seconds(round(step.seconds, 1)) if step.seconds >= _SHOWN_S else "at once"]


def _labels(report: RolloutReport) -> list[Row]:
    return [
        Row(each.label, [_version(report.before.get(each.label)), _version(each.in_file), each.server])
        for each in report.standings
    ]


def _version(version: int | None) -> str:
    return "none" if version is None else f"version {version}"


def _parts(report: RolloutReport) -> dict[str, Markup]:
    """What each gate found, by its step's name."""
    found = report.findings
    parts = {
        "parity": _parity(found.parity, report) if found.parity else None,
        "compare": _comparison(found.comparison) if found.comparison else None,
        "soak": _soak(found.soak) if found.soak else None,
    }
    return {name: part for name, part in parts.items() if part is not None}


def _parity(parity: Parity, report: RolloutReport) -> Markup:
    asked = len(parity.answers)
    if parity.signature:
        headline = Headline("bad", "Clients of the live version would not do", [parity.signature])
    elif parity.different:
        headline = Headline("bad", f"{len(parity.different):,} of {asked:,} answers differ")
    else:
        headline = Headline("good", f"{asked:,} of {asked:,} answers agree", [parity.largest] if parity.largest else [])
    rows = [Row(words, []) for words in parity.different[:_MOST_DIFFERENCES]]
    if len(parity.different) > _MOST_DIFFERENCES:
        rows.append(Row(f"{len(parity.different) - _MOST_DIFFERENCES:,} others", []))
    title = f"Parity: the same requests to versions {report.live} and {report.new}"
    return show_part(title, headline, [show_table("Differences", ["request"], rows)], "parity")


def _comparison(report: ComparisonReport) -> Markup:
    title = f"Comparison: A is {report.names[0]}, which was live, B is {report.names[1]}"
    return show_part(title, compare_headline(report), show_comparison(report), "compare")


def _soak(report: SoakReport) -> Markup:
    return show_part("Soak: the new version under load, in its place", soak_headline(report), show_soak(report), "soak")


def _runs(report: RolloutReport) -> list[Measured]:
    """All loads that there were."""
    comparison, soak = report.findings.comparison, report.findings.soak
    runs = [measured for pair in comparison.rounds for measured in pair] if comparison else []
    return [*runs, *([soak.run.measured] if soak else [])]


def _origin(report: RolloutReport) -> str:
    began = datetime.fromtimestamp(report.started_at, UTC)
    requests = sum(measured.total.requests for measured in _runs(report))
    load = f"{requests:,} requests under load" if requests else "no load"
    version = metadata.version("tpuserve-loadtests")
    return f"{began:%Y-%m-%d %H:%M:%S} UTC · {load} · tpuserve-loadtests {version}"
