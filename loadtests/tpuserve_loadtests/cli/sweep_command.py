"""The command `tpuserve loadtest sweep`, which runs several loads for a latency-throughput curve."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import click

from tpuserve_loadtests.cli.command import command, option
from tpuserve_loadtests.cli.energy import find_energy
from tpuserve_loadtests.cli.explicit_options import refuse_ineffective, refuse_ineffective_arrivals
from tpuserve_loadtests.cli.files import publish
from tpuserve_loadtests.cli.load_options import LoadOptions
from tpuserve_loadtests.cli.loads import refuse_both, refuse_think_time, run_load
from tpuserve_loadtests.cli.options import think_time_option
from tpuserve_loadtests.cli.requested_traffic import find_traffic
from tpuserve_loadtests.cli.server_metrics import watch_server
from tpuserve_loadtests.cli.settings import describe_settings
from tpuserve_loadtests.cli.target import generating
from tpuserve_loadtests.cli.thresholds import ThresholdCommand, thresholds_of_loads

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tpuserve_loadtests.arrivals.duration import ThinkTime
    from tpuserve_loadtests.arrivals.load import Load
    from tpuserve_loadtests.judgement.run import RunOutcome

DEFAULT_USERS = "1,2,4,8,16,32,64,128"
EPILOG = """\b
Examples:
  tpuserve loadtest sweep digits                             1 to 128 users
  tpuserve loadtest sweep digits --rate 100,200,400,800 --duration 30s
  tpuserve loadtest sweep digits --rate 100,200,400,800,1600 --until 'p99>100ms'

Exit codes: the highest of all runs, as in `run`.
"""


@dataclass(frozen=True, slots=True)
class SweepOptions(LoadOptions):
    """Options of `sweep`."""

    users: str | None = option(
        "--users", metavar="N,N,...", help=f"Closed loads: numbers of users.  [default: {DEFAULT_USERS}]"
    )
    rate: str | None = option("--rate", metavar="R,R,...", help="Open loads: rates in requests/s.")
    think_time: "ThinkTime | None" = think_time_option()
    until: tuple[str, ...] = option(
        "--until",
        multiple=True,
        metavar="GATE...",
        help="Stop after the first load for which a gate is true: 'p99>100ms' 'error_rate>1%'. Accepts several gates.",
    )


@command(
    SweepOptions, ThresholdCommand, epilog=EPILOG, short_help="Run increasing loads and report latency over throughput."
)
def sweep(options: SweepOptions) -> None:
    """Load a running server with predict requests for MODEL in steps, and print rate and latencies of each step.

    Ctrl-C ends the sweep and prints the steps so far. --until ends the sweep after the first load that meets a gate.
    """
    from tpuserve_loadtests.traffic.gevent_setup import give_process_to_gevent

    give_process_to_gevent()
    from tpuserve_loadtests.judgement.run import judge_run
    from tpuserve_loadtests.judgement.threshold import Hopeless, gate_results, limits_us
    from tpuserve_loadtests.measurement.measured import STOPPED_EARLY
    from tpuserve_loadtests.reports.sweep import sweep_report

    traffic, options = find_traffic(options, own_load=True)
    refuse_ineffective_arrivals(options.arrivals, is_open=bool(options.rate))
    refuse_ineffective(options, options.metrics)
    options.files.check()
    options.files.refuse_distribution()
    until = thresholds_of_loads(options.until, "--until", "sweep")
    loads = [replace(load, limits_us=limits_us(until)) for load in _loads(options, traffic.least_users)]
    target = traffic.find_target()
    rows, strict = target.workload.rows, options.generator.strict
    energy = find_energy(target.addresses.values(), options.generator)
    steps: list[RunOutcome] = []
    with (
        generating(target, options.generator) as runs,
        watch_server(options.server, options.metrics, traffic.specs, options.server_pid, energy) as server,
    ):
        for load in loads:
            with server.during(load) as seen:
                title = f"Step {len(steps) + 1} of {len(loads)}, for"
                measured = run_load(runs, load, Hopeless(until, load).why, title)
            step = judge_run(measured, model=traffic.title, rows=rows, strict=strict, seen=seen, price=options.price)
            steps.append(step)
            if measured.stopped == STOPPED_EARLY or measured.lost:
                break
            if too_much := [result for result in gate_results(until, measured) if result.failed]:
                click.echo(f"  --until {too_much[0].gate} is true for {load}; {_left(loads, steps)}", err=True)
                break
    publish(sweep_report(steps, describe_settings(target)), options.files, as_json=options.as_json)


def _left(loads: "Sequence[Load]", done: "Sequence[RunOutcome]") -> str:
    left = len(loads) - len(done)
    return f"skipping {left} further load{'s' if left > 1 else ''}" if left else "it was the last load"


def _loads(options: SweepOptions, protocols: int) -> "list[Load]":
    refuse_both(options.users, options.rate)
    terms = options.terms
    if options.rate:
        refuse_think_time(options.think_time)
        profile = terms.open(options.rate).profile
        assert profile is not None  # an open load has one
        rates = [segment.start_per_s for segment in profile.segments]
        if any(segment.start_per_s != segment.end_per_s for segment in profile.segments):
            raise click.BadParameter(
                "A step needs a constant rate. Write 100,200,400 instead of a ramp.", param_hint="--rate"
            )
        return [terms.open(f"{rate:f}") for rate in rates]
    users = (options.users or DEFAULT_USERS).split(",")
    if not all(each.strip().isdigit() and int(each) for each in users):
        raise click.BadParameter(f"{options.users!r} is not a list of users. Write 1,2,4,8.", param_hint="--users")
    # Each protocol needs a user, so the first steps of the default can coincide.
    counts = dict.fromkeys(int(each) if options.users else max(int(each), protocols) for each in users)
    return [terms.closed(count, protocols, options.think_time) for count in counts]
