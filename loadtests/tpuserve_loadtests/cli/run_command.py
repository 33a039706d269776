"""The command `tpuserve loadtest run`: a single load and its report."""

import math
from collections.abc import Iterator
from dataclasses import replace

import click

from tpuserve_loadtests.arrivals.load import BadTrace, Load, read_trace
from tpuserve_loadtests.cli import access, files, golden, loads, monitoring, targets
from tpuserve_loadtests.cli.command import refused
from tpuserve_loadtests.cli.commands import RUN_USERS, RepetitionOptions, RunOptions
from tpuserve_loadtests.cli.diff_command import check_baseline, checked_against
from tpuserve_loadtests.cli.requested_traffic import RequestedTraffic, find_traffic
from tpuserve_loadtests.judgement.repetition import Settling, describe_interval, interval_of, judge_repetition
from tpuserve_loadtests.judgement.run import RunOutcome, judge_run
from tpuserve_loadtests.measurement.measured import Measured
from tpuserve_loadtests.monitoring.server_side import Seen
from tpuserve_loadtests.monitoring.server_watch import ServerWatch
from tpuserve_loadtests.reports.repetition import repetition_report
from tpuserve_loadtests.reports.run import run_report
from tpuserve_loadtests.traffic.target import Runs


def _settling(options: RepetitionOptions) -> Settling | None:
    """Return the rule that ends the repetition, or None for one run. Raise a usage error for options without it."""
    if options.settling_figure is not None:
        return Settling(options.settling_figure, options.settled_within)
    for name in ("settled_within", "most_runs"):
        if name in access.explicit_names():
            raise click.UsageError(f"{access.flag(name)} has no effect without --repeat-until-settled.")
    return None


def repeated(
    runs: Runs, server: ServerWatch, load: Load, settling: Settling, most: int
) -> Iterator[tuple[Measured, Seen]]:
    """Run the load, each time with other arrivals, until the figure settles, `most` times, or until Ctrl-C.

    Yields complete runs. A stopped run is omitted, unless it is the first.
    """
    done: list[Measured] = []
    for number in range(most):
        part = replace(load, seed=load.seed + number)
        with server.during(part) as seen:
            measured = loads.run_load(runs, part, title=f"Run {number + 1} of at most {most}, for")
        if measured.stopped and done and not measured.lost:
            return
        yield measured, seen
        # Keep the totals alone: the windows of many runs would take hundreds of megabytes.
        done.append(measured.condensed())
        interval = interval_of(settling.figure, done)
        if interval is not None:
            reach = f"{100 * interval.distance:.3g} % from the median"
            words = describe_interval(settling.figure, interval)
            click.echo(f"  {settling.figure}: {words}, at most {reach}", err=True)
        if measured.stopped or settling.is_settled(done):
            return


def run(options: RunOptions) -> None:
    traffic, options = find_traffic(options)
    access.refuse_ineffective_arrivals(options.arrivals, is_open=bool(options.rate), is_timed=options.is_timed)
    access.refuse_ineffective(options, options.metrics)
    rules = loads.rules_of(options)
    files.check_files(options.files)
    check_baseline(options.baseline)
    loads.check_push(options.push)
    repetition = options.repetition
    settling = _settling(repetition)
    if settling is not None:
        files.refuse_distribution(options.files)
    # Without a load option, recorded requests keep their times, and other requests use RUN_USERS.
    timeline = None if options.ways else traffic.timeline(options.speed)
    load = _load(options, traffic) if timeline is None else _instants_load(timeline.instants, options)
    load, hopeless = rules.watched(load)
    target = traffic.find_target(timeline)
    rules = replace(rules, lines=traffic.lines(target, rules.gates, load.steps))
    settings = files.describe_settings(target)

    def judged(measured: Measured, seen: Seen) -> RunOutcome:
        notes = (*golden.golden_notes(target, measured), *(timeline.notes if timeline else ()))
        model, rows = traffic.title, target.workload.rows
        return judge_run(measured, rules, model=model, rows=rows, seen=seen, extra_notes=notes, price=options.price)

    energy = monitoring.find_energy(target.addresses.values(), options.generator)
    with (
        targets.generating(target, options.generator) as runs,
        loads.pushing(runs, options.push, traffic.title) as pushed,
        monitoring.watch_server(options.server, options.metrics, traffic.specs, options.server_pid, energy) as server,
    ):
        if settling is None:
            with server.during(load) as seen:
                measured = loads.run_load(pushed.runs, load, hopeless.why)
            outcomes = [judged(measured, seen)]
        else:
            several = repeated(pushed.runs, server, load, settling, repetition.most_runs)
            outcomes = [judged(*each).condensed() for each in several]
    if settling is None:
        report = run_report(outcomes[0].with_notes(pushed.notes), settings)
    else:
        outcome = judge_repetition(outcomes, rules.gates, settling, repetition.most_runs, pushed.notes)
        report = repetition_report(outcome, settings)
    files.publish(checked_against(report, options.baseline), options.files, as_json=options.as_json)


def _load(options: RunOptions, traffic: RequestedTraffic) -> Load:
    if options.ways > 1:
        raise click.UsageError("--users, --rate and --trace exclude each other. Set one of them.")
    if options.trace_file is not None:
        with refused(BadTrace, hint="--trace"):
            trace = read_trace(options.trace_file, options.speed)
        return _instants_load(trace, options)
    base = loads.base_load(options)
    if options.request_limit:
        seconds = base.seconds if "duration" in traffic.explicit else math.inf
        base = replace(base, requests=options.request_limit, seconds=seconds)
    if options.rate is not None:
        loads.refuse_think_time(options.think_time)
        return loads.open_load(base, options.rate)
    return loads.closed_load(base, options.users or RUN_USERS, traffic.least_users, options.think_time)


def _instants_load(instants: tuple[float, ...], options: RunOptions) -> Load:
    loads.refuse_think_time(options.think_time)
    warm_up_s = min(options.time.warm_up, instants[-1] / 2)
    return Load(instants[-1] - warm_up_s, warm_up_s, trace=instants, requests=options.request_limit or 0)
