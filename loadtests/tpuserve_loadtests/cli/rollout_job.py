"""The steps of `tpuserve rollout`: checks before any load, the gates, the moves and the report."""

import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Final

import click
from gevent.event import Event
from rich.console import Console
from rich.markup import escape

from tpuserve_loadtests.cli import access, commands, files, loads
from tpuserve_loadtests.cli.rollout_command import RolloutOptions
from tpuserve_loadtests.cli.rollout_gates import Gates, asked, protocols_of
from tpuserve_loadtests.cli.rollout_kserve import is_kserve, open_revisions
from tpuserve_loadtests.cli.rollout_servers import Stage, find_apply, find_source, open_servers
from tpuserve_loadtests.rendering.scales import seconds
from tpuserve_loadtests.reports.rollout import rollout_report
from tpuserve_loadtests.rollout.evaluations import compare_evaluations
from tpuserve_loadtests.rollout.moves import Move
from tpuserve_loadtests.rollout.procedure import Findings, Gate, Rollout, RolloutOutcome, Step
from tpuserve_loadtests.traffic.ctrl_c import ctrl_c

_STYLES: Final = {"failed": "red", "passed": "green", "done": "green"}
_STATE_WIDTH: Final = len("planned")
_NAME_WIDTH: Final = 16
_APPLIED: Final = {"reload": "sent to each server", "poll": "polled by each server"}


def rollout(options: RolloutOptions) -> None:
    access.refuse_ineffective_arrivals(options.arrivals, is_open=not options.load.users)
    console = Console(stderr=options.as_json)
    pressed, findings = Event(), Findings()
    with ExitStack() as stack:
        _check(options)
        open_stage = open_revisions if is_kserve(options) else open_servers
        options, stage = open_stage(stack, options, pressed.is_set)
        stack.enter_context(ctrl_c(pressed))
        sequence = _sequence(stage, pressed.is_set, findings, options)
        before, live = stage.before, stage.live.spec.version or 0
        findings.metrics = tuple(
            compare_evaluations(*(side.service.evaluation(side.spec) for side in (stage.live, stage.new)))
        )
        findings.usage, findings.loaded = stage.usage, tuple(stage.new.protocols)
        title = f"{options.model}: version {live} to {options.new}, at {stage.where}"
        console.print(escape(title), highlight=False, soft_wrap=True)
        for metric in findings.metrics:
            console.print(f"  {escape(str(metric))}", highlight=False, soft_wrap=True)
        started_at = time.time()
        on_step = partial(_print_step, console=console)
        job = Rollout(sequence, stage.mover, pressed.is_set, on_step, time.monotonic)
        outcome = job.execute() if options.execute else job.plan()
        standings, replicas = stage.mover.standings(before)
        ended = RolloutOutcome(
            options.model,
            live,
            options.new,
            not options.execute,
            outcome,
            job.exit_code,
            job.steps,
            before,
            standings,
            findings,
            started_at,
            replicas,
            stage.mover.wording,
        )
        _publish(ended, job.planned, options)
    sys.exit(job.exit_code)


def _print_step(step: Step, console: Console) -> None:
    style = _STYLES.get(step.state, "default")
    state = f"[{style}]{step.state:{_STATE_WIDTH}}[/{style}]"
    console.print(f"  {state}  {step.name:{_NAME_WIDTH}}  {escape(step.detail)}", highlight=False, soft_wrap=True)


def _publish(outcome: RolloutOutcome, planned: list[str], options: RolloutOptions) -> None:
    """Print the outcome and write the files.

    A failed write does not change the exit code, which describes the labels.
    """
    report = rollout_report(outcome, planned, _settings(options))
    files.show(report, as_json=options.as_json)
    files.annotate(report, options.files)
    for path, content in files.forms(report, options.files):
        if path is not None:
            files.try_to_write(path, content())


def _settings(options: RolloutOptions) -> dict[str, str]:
    source = options.source if is_kserve(options) else f"{find_source(options)}, {_APPLIED[find_apply(options)]}"
    return {
        "Server": options.server.grpc_address or "",
        "Replicas": ", ".join(options.replicas),
        "Configuration": source,
        "Load": options.load_words,
        "Shadow": f"{options.rounds} rounds of {seconds(options.time.duration)} each; {_effect(options)}",
        "Canary": seconds(options.canary_duration),
        "Soak": f"{seconds(options.soak)}; {_effect(options)}" if options.soak else "none",
        "Gates": ", ".join([*options.gates, *options.objectives]),
        **files.describe_command("tpuserve", "rollout"),
    }


def _effect(options: RolloutOptions) -> str:
    return f"differences below {100 * options.least_effect:g} % do not count"


def _check(options: RolloutOptions) -> None:
    """Raise usage errors for options that are invalid on any server."""
    if options.canary == options.stable:
        raise click.UsageError(f"--canary and --stable are both {options.stable}. Set different labels.")
    options.generator.check()
    if options.generator.remote:
        raise click.UsageError("rollout does not support --remote. Use --processes for more load.")
    loads.refuse_both(options.load.users, options.load.rate)
    if 0 < options.soak < commands.LEAST_SOAK_S:
        raise click.BadParameter(
            f"A soak needs at least {commands.LEAST_SOAK_S:g} s to show a trend.", param_hint="--soak"
        )
    loads.rules_of(options)
    files.check_files(options.files)


def _sequence(
    stage: Stage, interrupted: Callable[[], bool], findings: Findings, options: RolloutOptions
) -> list[Gate | Move]:
    """Return the gates and moves in order. Users get the new version with the last move."""
    judge = Gates(stage, loads.rules_of(options), options, interrupted, findings)
    judge.check()
    load, wording = options.load_words, stage.mover.wording
    back = f"on failure, move the {wording.noun} back"
    rounds = f"{options.rounds} rounds of {options.time.duration:g} s each, {load}"
    found: list[Gate | Move] = []
    if options.parity:
        found.append(Gate("parity", "send the same requests to both versions", judge.parity, cheap=True))
    plan = f"load both versions in turn over {protocols_of(stage.new)}, {rounds}"
    found += [Gate("shadow", plan, judge.shadow), *stage.moves[:-1]]
    plan = f"load {asked(stage.canary.spec)} on every replica for {options.canary_duration:g} s, {load}; {back}"
    found += [Gate("canary", plan, judge.canary), stage.moves[-1]]
    if options.soak:
        plan = f"load {asked(stage.users.spec)} for {options.soak:g} s, {load}; {back}"
        found.append(Gate("soak", plan, judge.soak))
    name, plan = wording.check
    return [*found, Gate(name, plan, judge.answers)]
