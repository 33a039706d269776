"""The command `tpuserve loadtest sweep`, which runs several loads for a latency-throughput curve."""

from collections.abc import Sequence
from dataclasses import replace

import click

from tpuserve_loadtests.arrivals.load import Load
from tpuserve_loadtests.cli import access, files, loads, monitoring, targets
from tpuserve_loadtests.cli.commands import SWEEP_USERS, SweepOptions
from tpuserve_loadtests.cli.requested_traffic import find_traffic
from tpuserve_loadtests.judgement.run import Rules, RunOutcome, judge_run
from tpuserve_loadtests.measurement.measured import INTERRUPTED
from tpuserve_loadtests.reports.sweep import sweep_report


def sweep(options: SweepOptions) -> None:
    traffic, options = find_traffic(options, own_load=True)
    access.refuse_ineffective_arrivals(options.arrivals, is_open=bool(options.rate))
    access.refuse_ineffective(options, options.metrics)
    files.check_files(options.files)
    files.refuse_distribution(options.files)
    until = loads.thresholds(options.until, "--until")
    rules = loads.rules_of(options)
    if options.models.scenario and access.explicit_names().isdisjoint({"gates", "objectives"}):
        _refuse_rates(rules)
    planned = _loads(options, traffic.least_users)
    target = traffic.find_target()
    rules = replace(rules, lines=traffic.lines(target, (*rules.gates, *until)))
    of_end = replace(rules, gates=until)
    energy = monitoring.find_energy(target.addresses.values(), options.generator)
    steps: list[RunOutcome] = []
    with (
        targets.generating(target, options.generator) as runs,
        monitoring.watch_server(options.server, options.metrics, traffic.specs, options.server_pid, energy) as server,
    ):
        for load, hopeless in map(of_end.watched, planned):
            with server.during(load) as seen:
                title = f"Step {len(steps) + 1} of {len(planned)}, for"
                measured = loads.run_load(runs, load, hopeless.why, title)
            rows = target.workload.rows
            step = judge_run(measured, rules, model=traffic.title, rows=rows, seen=seen, price=options.price)
            steps.append(step)
            if measured.stopped == INTERRUPTED or measured.lost:
                break
            if too_much := [result for result in of_end.results(measured) if result.failed]:
                click.echo(f"  --until {too_much[0].gate} is true for {load}; {_left(planned, steps)}", err=True)
                break
    files.publish(sweep_report(steps, files.describe_settings(target)), options.files, as_json=options.as_json)


def _refuse_rates(rules: Rules) -> None:
    """Raise a usage error for a gate on the rate of a scenario's own load, which has no meaning for other loads."""
    for gate in rules.gates:
        if gate.metric in ("rate", "goodput"):
            raise click.UsageError(
                f"The gate {gate} of the scenario belongs to its own load. Set gates of the steps with --fail-if."
            )


def _left(planned: Sequence[Load], done: Sequence[RunOutcome]) -> str:
    left = len(planned) - len(done)
    return f"skipping {left} further load{'s' if left > 1 else ''}" if left else "it was the last load"


def _loads(options: SweepOptions, protocols: int) -> list[Load]:
    loads.refuse_both(options.users, options.rate)
    base = loads.base_load(options)
    if options.rate:
        loads.refuse_think_time(options.think_time)
        profile = loads.open_load(base, options.rate).profile
        assert profile is not None  # an open load has one
        rates = [segment.start_per_s for segment in profile.segments]
        if any(segment.start_per_s != segment.end_per_s for segment in profile.segments):
            raise click.BadParameter(
                "A step needs a constant rate. Write 100,200,400 instead of a ramp.", param_hint="--rate"
            )
        return [loads.open_load(base, f"{rate:f}") for rate in rates]
    users = (options.users or SWEEP_USERS).split(",")
    if not all(each.strip().isdigit() and int(each) for each in users):
        raise click.BadParameter(f"{options.users!r} is not a list of users. Write 1,2,4,8.", param_hint="--users")
    # Each protocol needs a user, so the first steps of the default can coincide.
    counts = dict.fromkeys(int(each) if options.users else max(int(each), protocols) for each in users)
    return [loads.closed_load(base, count, protocols, options.think_time) for count in counts]
