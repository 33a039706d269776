"""The report of a rollout for the change record: the live version, the steps with their reasons, the measurements."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from typing import Final

from tpuserve_formats.counted import counted
from tpuserve_loadtests.golden.difference import Parity
from tpuserve_loadtests.judgement.exit_codes import EXIT_EVIDENCE, EXIT_GENERATOR, EXIT_INTERRUPTED
from tpuserve_loadtests.measurement.measured import Measured
from tpuserve_loadtests.measurement.recorder import Summary
from tpuserve_loadtests.rendering.report import Case, Document, Group, Headline, Kind, Page, Report, Row, Table, Tile
from tpuserve_loadtests.rendering.scales import seconds
from tpuserve_loadtests.reports import figures
from tpuserve_loadtests.reports.compare import compare_headline, compare_sections, differences_table
from tpuserve_loadtests.reports.run import checks_table, run_headline
from tpuserve_loadtests.reports.soak import soak_headline, soak_sections
from tpuserve_loadtests.requests.protocols import TITLES, is_oip
from tpuserve_loadtests.rollout.procedure import INTERRUPTED, Findings, Outcome, RolloutOutcome, Step, StepState

_MARKS: Final = {
    StepState.PASSED: "✓ passed",
    StepState.DONE: "✓ done",
    StepState.FAILED: "✗ failed",
    StepState.PLANNED: "planned",
    StepState.SKIPPED: "skipped",
}
_NEWS: Final = {StepState.PASSED: True, StepState.DONE: True, StepState.FAILED: False}
_LIVE: Final = {
    Outcome.PROMOTED: "version {0.new}",
    Outcome.STUCK: "see the {0.wording.noun}",
    Outcome.SERVER_GONE: "see the {0.wording.noun}",
}
_VERDICTS: Final = {"better": True, "worse": False}
_SHOWN_S: Final = 0.1
_DRY_RUN: Final = "A dry run moves nothing and sends no load. Perform the rollout with --execute."


def rollout_report(outcome: RolloutOutcome, planned: Sequence[str], settings: Mapping[str, str]) -> Report:
    """Build the report. `planned`: names of steps, in order. `settings`: the settings to show, by name."""
    return Report(
        kind="rollout",
        subject=outcome.model,
        exit_code=outcome.exit_code,
        cases=[
            *rollout_cases(planned, outcome.steps),
            *(Case(f"replica {state.address}", state.lacks) for state in outcome.replicas),
        ],
        statement=outcome.statement,
        terse=True,
        document=lambda: _document(outcome),
        page=lambda: _page(outcome, settings),
    )


def rollout_cases(planned: Sequence[str], steps: Sequence[Step]) -> list[Case]:
    """List a case for each step. `planned`: names of steps, in order. Unplanned steps follow: reverts and signals."""
    became = {step.name: step for step in steps}
    others = [step for name, step in became.items() if name not in planned]
    return [*(_case(name, became.get(name)) for name in planned), *(_case(step.name, step) for step in others)]


def _case(name: str, step: Step | None) -> Case:
    if step is None:
        return Case(name, skipped="not reached")
    if step.state is StepState.FAILED:
        words = step.detail or "failed"
        if name == INTERRUPTED:
            return Case(name, error=words, seconds=step.seconds)
        return Case(name, words, seconds=step.seconds)
    unjudged = step.state in (StepState.PLANNED, StepState.SKIPPED)
    return Case(name, skipped=f"{step.state}: {step.detail}" if unjudged else "", seconds=step.seconds)


def _document(outcome: RolloutOutcome) -> Document:
    return {
        "model": outcome.model,
        "from": outcome.live,
        "to": outcome.new,
        "outcome": outcome.outcome,
        "exit_code": outcome.exit_code,
        outcome.wording.noun: outcome.labels,
        "replicas": [asdict(state) for state in outcome.replicas],
        "metrics": [asdict(one) | {"verdict": one.verdict} for one in outcome.findings.metrics],
        "protocols": list(outcome.findings.loaded),
        "usage": None if outcome.findings.usage is None else [asdict(each) for each in outcome.findings.usage],
        "canary_users": outcome.findings.user_traffic and asdict(outcome.findings.user_traffic),
        "started_at": outcome.started_at,
        "steps": [asdict(step) for step in outcome.steps],
    }


def _page(outcome: RolloutOutcome, settings: Mapping[str, str]) -> Page:
    groups = _groups(outcome)
    what = "Plan of a rollout" if outcome.dry_run else "Rollout"
    anchors = {group.anchor for group in groups}
    return Page(
        title=f"{what}: {outcome.model}, version {outcome.live} to {outcome.new}",
        origin=_origin(outcome),
        headline=_headline(outcome),
        opening=outcome.statement,
        tiles=_tiles(outcome),
        sections=[
            Table("Steps", ["step", "start (UTC)", "duration", "outcome"], _steps(outcome, anchors)),
            *_metrics(outcome),
            Table("Protocols", ["protocol", "requests of users", "loads"], _protocols(outcome.findings)),
            Table(outcome.wording.title, [*outcome.wording.columns], _labels(outcome), words=True),
            Table("Replicas", ["replica", "configuration", "labels", "state"], _replicas(outcome), words=True),
            *groups,
            *figures.failures(_runs(outcome)),
        ],
        settings=settings,
    )


def _headline(outcome: RolloutOutcome) -> Headline:
    dry_run = [_DRY_RUN] if outcome.dry_run else []
    failed = [f"{step.name}: {step.detail}" for step in outcome.steps if step.state is StepState.FAILED]
    # An interrupted or inconclusive rollout does not reflect on the new version.
    kind: Kind = "warn" if outcome.exit_code in (EXIT_EVIDENCE, EXIT_GENERATOR, EXIT_INTERRUPTED) else "bad"
    refused = "Interrupted" if outcome.interrupted else f"Version {outcome.new} was refused"
    wording = outcome.wording
    back = f"Interrupted, and the {wording.back}" if outcome.interrupted else f"The {wording.back}"
    match outcome.outcome:
        case Outcome.PLANNED:
            return Headline("plan", "Plan: nothing was changed", [*dry_run, f"Version {outcome.live} is live"])
        case Outcome.PROMOTED:
            return Headline("good", f"Version {outcome.new} is live", _let_pass(outcome))
        case Outcome.REFUSED:
            words = f"{refused}: version {outcome.live} is live, and {wording.unmoved}"
            return Headline(kind, words, [*failed, *dry_run])
        case Outcome.MOVED_BACK:
            return Headline(kind, f"{back}: version {outcome.live} is live again", failed)
        case Outcome.SERVER_GONE:
            words = f"{outcome.missing.capitalize()}: the file has version {outcome.live} again"
            do = f"A server that starts with this file serves version {outcome.live}"
            return Headline("bad", words, [outcome.labels, *failed, do])
        case Outcome.STUCK:
            words = f"The {wording.noun} could not be moved back"
            return Headline("bad", words, [outcome.labels, *failed, wording.advice])


def _let_pass(outcome: RolloutOutcome) -> list[str]:
    comparison, soak = outcome.findings.comparison, outcome.findings.soak
    found = []
    if comparison is not None and comparison.limits:
        found.append("shadow: the load generator was the limit (accepted by --generator-limit)")
    if comparison is not None and comparison.unclear:
        found.append("shadow: inconclusive, the new version may be worse (accepted by --unclear)")
    if soak is not None and not soak.run.generator.trusted:
        found.append("soak: the load generator was the limit (accepted by --generator-limit)")
    if unloaded := [each.api for each in outcome.findings.usage or () if each.protocol is None]:
        found.append(f"users call {', '.join(unloaded)}, which no load sends")
    return found


def _tiles(outcome: RolloutOutcome) -> list[Tile]:
    gates = [step for step in outcome.steps if step.state in (StepState.PASSED, StepState.FAILED)]
    passed = sum(step.state is StepState.PASSED for step in gates)
    planned = sum(step.state is StepState.PLANNED for step in outcome.steps)
    took_s = sum(step.seconds for step in outcome.steps)
    return [
        Tile("live version", _LIVE.get(outcome.outcome, "version {0.live}").format(outcome)),
        Tile("previous version", f"version {outcome.live}"),
        Tile("requested version", f"version {outcome.new}"),
        Tile("passed", f"{passed} of {len(gates)}", f"{counted(planned, 'step')} planned" if planned else ""),
        Tile("duration", seconds(round(took_s, 1)), "dry run" if outcome.dry_run else ""),
    ]


def _steps(outcome: RolloutOutcome, anchors: Collection[str]) -> list[Row]:
    return [
        Row(
            step.name,
            [*_times(outcome, step), _MARKS[step.state]],
            good=_NEWS.get(step.state),
            note=step.detail,
            anchor=step.name if step.name in anchors else "",
        )
        for step in outcome.steps
    ]


def _times(outcome: RolloutOutcome, step: Step) -> list[str]:
    if step.state is StepState.PLANNED:
        return ["-", "-"]
    began = datetime.fromtimestamp(outcome.started_at + step.start_s, UTC)
    return [
        f"{began:%H:%M:%S}",
        seconds(round(step.seconds, 1)) if step.seconds >= _SHOWN_S else f"< {seconds(_SHOWN_S)}",
    ]


def _labels(outcome: RolloutOutcome) -> list[Row]:
    return [
        Row(each.label, [outcome.wording.value(outcome.before.get(each.label)), each.in_file, each.server])
        for each in outcome.standings
    ]


def _protocols(found: Findings) -> list[Row]:
    """List the protocols of the loads, and then the other APIs that users call."""
    usage = found.usage or ()
    by_protocol = {each.protocol: f"{each.requests:,}" for each in usage}
    absent = "unknown" if found.usage is None else "none"
    loaded = [
        Row(TITLES[each], [by_protocol.get(each, absent), "parity and shadow" if is_oip(each) else "all"])
        for each in found.loaded
    ]
    others = [Row(each.api, [f"{each.requests:,}", "none"], good=False) for each in usage if not each.protocol]
    return [*loaded, *others]


def _replicas(outcome: RolloutOutcome) -> list[Row]:
    return [
        Row(state.address, [state.configuration, state.versions, state.lacks or "follows"], good=not state.lacks)
        for state in outcome.replicas
    ]


def _metrics(outcome: RolloutOutcome) -> list[Table]:
    """List the metrics that the exports measured on labelled rows."""
    rows = [
        Row(
            f"{one.metric} of {one.output}",
            [*("-" if figure is None else str(figure) for figure in (one.live, one.new)), one.verdict],
            good=_VERDICTS.get(one.verdict),
            note=one.rows,
        )
        for one in outcome.findings.metrics
    ]
    headings = ["metric", f"version {outcome.live}", f"version {outcome.new}", "new version"]
    return [Table("Metrics on labelled rows", headings, rows)] if rows else []


def _groups(outcome: RolloutOutcome) -> list[Group]:
    """List the findings of each gate, under its step's name."""
    found, groups = outcome.findings, []
    if found.parity:
        groups.append(_parity(found.parity, outcome))
    if compared := found.comparison:
        title = f"Shadow: the same load for {compared.names[0]} (A, live before) and {compared.names[1]} (B)"
        lines = [
            replace(line, name=f"{side.letter} over {figures.line_title(line.name)}")
            for side in compared.totals
            for line in side.measured.lines()
        ]
        sections = [_lines("By protocol", lines), *compare_sections(compared)]
        groups.append(Group(title, compare_headline(compared), sections, "shadow"))
    if canary := found.canary:
        measured = canary.measured
        replicas = [
            tally.summary(address, (tally.requests - tally.failures) / measured.span_s)
            for address, tally in sorted(measured.recorder.replicas.items())
        ]
        sections = [checks_table(canary), _lines("By protocol", measured.lines()), _lines("By replica", replicas)]
        groups.append(Group(f"Canary: {canary.model} under load", run_headline(canary), sections, "canary"))
    if soak := found.soak:
        groups.append(Group("Soak: the new version under load", soak_headline(soak), soak_sections(soak), "soak"))
    return groups


def _lines(title: str, lines: Sequence[Summary]) -> Table:
    named = [(figures.line_title(line.name), line) for line in lines]
    return figures.lines_table(title, "line", named, wrong=True)


def _parity(parity: Parity, outcome: RolloutOutcome) -> Group:
    compared = len(parity.answers)
    if parity.signature:
        headline = Headline("bad", "Incompatible with clients of the live version", [parity.signature])
    elif parity.different:
        headline = Headline("bad", f"{len(parity.different):,} of {counted(compared, 'response')} differ")
    else:
        largest = [parity.largest] if parity.largest else []
        headline = Headline("good", f"{compared:,} of {counted(compared, 'response')} match", largest)
    title = f"Parity: the same requests to versions {outcome.live} and {outcome.new}"
    return Group(title, headline, [differences_table(parity)], "parity")


def _runs(outcome: RolloutOutcome) -> list[Measured]:
    comparison, soak = outcome.findings.comparison, outcome.findings.soak
    runs = [measured for pair in comparison.rounds for measured in pair] if comparison else []
    return [*runs, *(run.measured for run in (outcome.findings.canary, soak and soak.run) if run)]


def _origin(outcome: RolloutOutcome) -> str:
    began = datetime.fromtimestamp(outcome.started_at, UTC)
    requests = sum(measured.total.requests for measured in _runs(outcome))
    load = f"{counted(requests, 'request')} under load" if requests else "no load"
    return f"{began:%Y-%m-%d %H:%M:%S} UTC · {load} · {figures.VERSION}"
