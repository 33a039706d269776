"""The command `tpuserve loadtest search`, which finds the highest rate that keeps an objective."""

from dataclasses import replace

import click

from tpuserve_loadtests.arrivals.load import Load
from tpuserve_loadtests.cli import access, files, loads, monitoring, targets
from tpuserve_loadtests.cli.commands import RangeOptions, SearchOptions
from tpuserve_loadtests.cli.requested_traffic import find_traffic
from tpuserve_loadtests.judgement.run import Rules
from tpuserve_loadtests.judgement.search import (
    Found,
    Probe,
    Searched,
    SearchEnded,
    Trials,
    is_objective,
    search_rates,
)
from tpuserve_loadtests.monitoring.server_watch import ServerWatch
from tpuserve_loadtests.monitoring.watched import Watched
from tpuserve_loadtests.reports.search import search_report
from tpuserve_loadtests.traffic.target import Runs


def search(options: SearchOptions) -> None:
    traffic, options = find_traffic(options)
    access.refuse_ineffective_arrivals(options.arrivals)
    access.refuse_ineffective(options, options.metrics)
    rules = _rules(options)
    within = options.within
    if within.start and within.start > within.highest:
        raise click.BadParameter(f"{within.start:g} exceeds --to {within.highest:g}.", param_hint="--from")
    files.check_files(options.files)
    files.refuse_distribution(options.files)
    target = traffic.find_target()
    rules = replace(rules, lines=traffic.lines(target, rules.gates))
    energy = monitoring.find_energy(target.addresses.values(), options.generator)
    with (
        targets.generating(target, options.generator) as runs,
        monitoring.watch_server(options.server, options.metrics, traffic.specs, options.server_pid, energy) as server,
    ):
        searched = search_rate(runs, len(target.workload.lines), server, loads.base_load(options), within, rules)
    searched = replace(searched, rows=target.workload.rows, price=options.price)
    report = search_report(traffic.title, searched, rules.objectives, files.describe_settings(target))
    files.publish(report, options.files, as_json=options.as_json)


def _rules(options: SearchOptions) -> Rules:
    """Return the rules of the options and of the scenario. Raise a usage error unless they limit every rate."""
    rules = loads.rules_of(options)
    if not rules.gates:
        raise click.UsageError(
            "Missing option '--slo'. Set an objective, such as 'p99<=20ms' (or slo or fail_if in the scenario)."
        )
    for objective in rules.objectives:
        if not is_objective(objective):
            raise click.UsageError(
                f"{objective} is not an objective. Write an upper limit, such as --slo 'p99<=20ms'. On the command "
                "line, --slo and --fail-if replace slo and fail_if of the scenario."
            )
    return rules


# The search starts at half the rate of a single user, from a run of at most this length.
_FIRST_S = 2.0


def search_rate(
    runs: Runs,
    lines: int,
    server: ServerWatch,
    base: Load,
    within: RangeOptions,
    rules: Rules,
) -> Searched:
    """Search the highest rate that holds, after a first load with a user for each of `lines`. Blocks for the loads."""

    def run(load: Load) -> Watched:
        load, hopeless = rules.watched(load)
        return loads.run_watched(runs, server, load, hopeless.why, "Trying for")

    trials = Trials(run, loads.open_load(base, "1"), rules, on_probe=_report)
    first = Load(_FIRST_S, min(base.warm_up_s, _FIRST_S), users=lines)
    try:
        alone = loads.run_watched(runs, server, first, title="Single user, for")
        if missed := trials.begin(alone):
            return trials.searched(Found(None, None), "; ".join(missed))
        start = within.start or max(alone.runs[0].rate_per_s / 2, 1.0)
        return trials.searched(search_rates(trials.attempt, start, within.highest, within.precision))
    except SearchEnded as ended:
        return trials.searched(None, str(ended), ended.exit_code)


def _report(probe: Probe) -> None:
    mark = "holds" if probe.holds else "does not hold"
    click.echo(f"  {probe.rate_per_s:10,.1f}/s  {mark:13}  {probe.reason}", err=True)
