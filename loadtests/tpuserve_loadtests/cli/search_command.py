"""The command `tpuserve loadtest search`, which finds the highest rate that keeps an objective."""

from dataclasses import replace
from typing import TYPE_CHECKING

import click

from tpuserve_loadtests.arrivals.load import Load
from tpuserve_loadtests.cli import access, files, loads, monitoring, targets
from tpuserve_loadtests.cli.commands import RangeOptions, SearchOptions
from tpuserve_loadtests.cli.requested_traffic import find_traffic
from tpuserve_loadtests.judgement.exit_codes import EXIT_FAILED, EXIT_GENERATOR, EXIT_INTERRUPTED
from tpuserve_loadtests.judgement.run import Rules
from tpuserve_loadtests.judgement.search import (
    Found,
    GeneratorLimit,
    Interrupted,
    NothingAnswered,
    Probe,
    Searched,
    SearchServers,
    Trials,
    is_objective,
    search_rates,
)
from tpuserve_loadtests.measurement.measured import INTERRUPTED, Measured
from tpuserve_loadtests.monitoring.server_watch import ServerWatch
from tpuserve_loadtests.reports.search import search_report
from tpuserve_loadtests.traffic.target import Runs

if TYPE_CHECKING:
    from tpuserve_loadtests.monitoring.watched import Watched


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
    terms = loads.LoadTerms.of(options)
    energy = monitoring.find_energy(target.addresses.values(), options.generator)
    with (
        targets.generating(target, options.generator) as runs,
        monitoring.watch_server(options.server, options.metrics, traffic.specs, options.server_pid, energy) as server,
    ):
        searched = search_rate(runs, server, terms, within, rules)
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
    server: ServerWatch,
    terms: loads.LoadTerms,
    within: RangeOptions,
    rules: Rules,
) -> Searched:
    tries = _Tries(runs, server)
    trials = Trials(lambda load: tries.run(load, rules), terms.open("1"), rules, on_probe=tries.record)
    try:
        alone = tries.run_alone(terms.warm_up_s)
        if missed := trials.begin(alone):
            return Searched(Found(None, None), trials.probes, tries.servers, "; ".join(missed))
        start = within.start or max(alone.rate_per_s / 2, 1.0)
        found = search_rates(trials.attempt, start, within.highest, within.precision)
        return Searched(found, trials.probes, tries.servers)
    except Interrupted:
        return Searched(None, trials.probes, tries.servers, INTERRUPTED, EXIT_INTERRUPTED)
    except NothingAnswered as nothing:
        return Searched(None, trials.probes, tries.servers, str(nothing), EXIT_FAILED)
    except GeneratorLimit as limit:
        return Searched(None, trials.probes, tries.servers, str(limit), EXIT_GENERATOR)


class _Tries:
    """Runner of loads that watches the server and keeps its metrics for the runs that count."""

    def __init__(self, runs: Runs, server: ServerWatch) -> None:
        self.servers = SearchServers()
        self._runs, self._server = runs, server
        self._last: Watched | None = None

    def run_alone(self, warm_up_s: float) -> Measured:
        load = Load(_FIRST_S, min(warm_up_s, _FIRST_S), users=len(self._runs.lines))
        watched = loads.run_watched(self._runs, self._server, load, title="Single user, for")
        self.servers.alone = watched.condensed()
        return watched.runs[0]

    def run(self, load: Load, rules: Rules) -> Measured:
        load, hopeless = rules.watched(load)
        self._last = loads.run_watched(self._runs, self._server, load, hopeless.why, "Trying for")
        return self._last.runs[0]

    def record(self, probe: Probe, measured: Measured) -> None:
        mark = "holds" if probe.holds else "does not hold"
        click.echo(f"  {probe.rate_per_s:10,.1f}/s  {mark:13}  {probe.reason}", err=True)
        assert self._last is not None  # it was run
        self.servers.probes.append((probe, self._last.condensed()))
