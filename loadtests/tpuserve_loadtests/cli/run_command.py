"""The command `tpuserve loadtest run`: a single load and its report."""

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from tpuserve_loadtests.cli.command import command, group, option
from tpuserve_loadtests.cli.energy import find_energy
from tpuserve_loadtests.cli.explicit_options import (
    explicit_names,
    flag,
    refuse_ineffective,
    refuse_ineffective_arrivals,
)
from tpuserve_loadtests.cli.files import publish
from tpuserve_loadtests.cli.golden import GoldenOptions, golden_notes, golden_settings, with_golden
from tpuserve_loadtests.cli.load_options import LoadOptions
from tpuserve_loadtests.cli.loads import refuse_think_time, run_load
from tpuserve_loadtests.cli.options import think_time_option
from tpuserve_loadtests.cli.pushing import PushOptions, pushing
from tpuserve_loadtests.cli.requested_traffic import RequestedTraffic, find_traffic
from tpuserve_loadtests.cli.server_metrics import watch_server
from tpuserve_loadtests.cli.settings import describe_settings
from tpuserve_loadtests.cli.target import generating
from tpuserve_loadtests.cli.thresholds import ThresholdCommand, thresholds

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tpuserve_loadtests.arrivals.duration import ThinkTime
    from tpuserve_loadtests.arrivals.load import Load
    from tpuserve_loadtests.judgement.repetition import Settling
    from tpuserve_loadtests.judgement.run import RunOutcome
    from tpuserve_loadtests.measurement.measured import Measured
    from tpuserve_loadtests.monitoring.server_side import Seen
    from tpuserve_loadtests.monitoring.server_watch import ServerWatch
    from tpuserve_loadtests.traffic.target import Runs


# The smallest number of runs that has an interval with a confidence of 95 % (statistics.median_interval).
_LEAST_RUNS: Final = 6


@dataclass(frozen=True, slots=True)
class RepetitionOptions:
    """The figure that ends a repetition, and the limit of runs."""

    settling_figure: str | None = option(
        "--repeat-until-settled",
        type=click.Choice(["p50", "p90", "p99", "rate"]),
        help="Repeat the run until the 95 % interval of this figure's median is narrow enough.",
    )
    settled_within: float = option(
        "--settled-within",
        type=click.FloatRange(0, 1, min_open=True),
        default=0.05,
        show_default=True,
        help="Largest distance of the interval from the median, with --repeat-until-settled; 0.05 is 5 %.",
    )
    most_runs: int = option(
        "--most-runs",
        type=click.IntRange(_LEAST_RUNS),
        default=20,
        show_default=True,
        help="Limit of the runs of --repeat-until-settled.",
    )

    @property
    def settling(self) -> "Settling | None":
        """The rule that ends the repetition, or None for a single run. Raise a usage error for options without it."""
        from tpuserve_loadtests.judgement.repetition import Settling

        if self.settling_figure is not None:
            return Settling(self.settling_figure, self.settled_within)
        for name in ("settled_within", "most_runs"):
            if name in explicit_names():
                raise click.UsageError(f"{flag(name)} has no effect without --repeat-until-settled.")
        return None


def repeated(
    runs: "Runs", server: "ServerWatch", load: "Load", settling: "Settling", most: int
) -> "Iterator[tuple[Measured, Seen]]":
    """Run the load, each time with other arrivals, until the figure settles, `most` times, or until Ctrl-C.

    Yields complete runs. A stopped run is omitted, unless it is the first.
    """
    from tpuserve_loadtests.judgement.repetition import describe_interval, interval_of

    done: list[Measured] = []
    for number in range(most):
        part = replace(load, seed=load.seed + number)
        with server.during(part) as seen:
            measured = run_load(runs, part, title=f"Run {number + 1} of at most {most}, for")
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


DEFAULT_USERS = 32

EPILOG = """\b
Examples:
  tpuserve loadtest run digits
  tpuserve loadtest run digits --protocol grpc --users 64 --duration 1m
  tpuserve loadtest run digits --rest http://localhost:8501 --input images.npz --rows 4 --json
  tpuserve loadtest run digits --rate 500 --fail-if 'p99>20ms' 'error_rate>0.1%' 'rate<490' --junit load.xml
  tpuserve loadtest run digits --users 8 --requests 10000          exactly 10,000 requests after the warm-up
  tpuserve loadtest run digits --users 50 --think-time 'exponential(2s)'   interactive users
  tpuserve loadtest run digits --rate 200 --repeat-until-settled p99   median and interval of several runs
  tpuserve loadtest run digits --rate 200 --html report.html       a page with charts
  tpuserve loadtest run digits --price-per-hour 1.20               cost of a million predictions
  tpuserve loadtest run digits --rate 100..1000 --duration 2m      a ramp; 100,200,400 are steps
  tpuserve loadtest run digits --rows 1:0.7,8:0.3                  70 % of requests have one row
  tpuserve loadtest run digits --recorded requests-digits.jsonl    at recorded times; --speed 2 doubles the rate
  tpuserve loadtest run digits --golden record --fail-if 'wrong>0'   compare responses under load
  tpuserve loadtest run digits --grpc grpcs://models.example:443 --header 'authorization: Bearer ${TOKEN}'
  tpuserve loadtest run --scenario mixed.yaml                      several models with weights
  tpuserve loadtest run digits --trace arrivals.txt --speed 2      arrival times in seconds, one per line

Exit codes: 0 success, 1 requests failed, 2 usage error, 3 server unreachable, 98 the load generator was the limit,
99 a gate failed.
"""


@dataclass(frozen=True, slots=True)
class RunOptions(LoadOptions):
    """Options of `run`."""

    users: int | None = option(
        "--users", type=click.IntRange(1), help=f"Closed load: requests in flight.  [default: {DEFAULT_USERS}]"
    )
    rate: str | None = option(
        "--rate",
        metavar="RATE",
        help="Open load: rate in requests/s, such as 500, steps (100,200) or a ramp (100..1000).",
    )
    trace_file: Path | None = option(
        "--trace",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help="Open load: file of arrival times in seconds, one per line.",
    )
    speed: float = option(
        "--speed", type=click.FloatRange(0, min_open=True), default=1.0, help="Speed factor of --trace and --recorded."
    )
    think_time: "ThinkTime | None" = think_time_option()
    request_limit: int | None = option(
        "--requests",
        type=click.IntRange(1),
        help="Stop after this number of measured requests and their responses, without --duration or at its end.",
    )
    repetition: RepetitionOptions = group(RepetitionOptions)
    golden: GoldenOptions = group(GoldenOptions)
    push: PushOptions = group(PushOptions)
    gates: tuple[str, ...] = option(
        "--fail-if",
        multiple=True,
        metavar="GATE...",
        help="Exit with 99 if a gate is true: 'p99>20ms' 'error_rate>0.1%' 'rate<500'. Accepts several gates.",
    )

    @property
    def ways(self) -> int:
        """The number of options that define the load: --users, --rate, --trace."""
        return sum(way is not None for way in (self.users, self.rate, self.trace_file))

    @property
    def is_timed(self) -> bool:
        """Whether requests arrive, or can arrive, at recorded times."""
        as_recorded = self.requests.recorded or self.models.scenario
        return bool(self.trace_file or (as_recorded and not (self.users or self.rate)))


@command(
    RunOptions, ThresholdCommand, epilog=EPILOG, short_help="Run one load and report rates, failures and latencies."
)
def run(options: RunOptions) -> None:
    """Load a running server with predict requests for MODEL and print rates, failures and latencies.

    Closed load (--users): each user sends its next request after the response to the previous one. Open load (--rate,
    --trace): requests arrive on a schedule, and latencies count from the scheduled times. Latencies exclude failed
    requests.
    """
    from tpuserve_loadtests.traffic.gevent_setup import give_process_to_gevent

    give_process_to_gevent()
    # Locust also patches the process, so these imports follow gRPC's gevent setup.
    from tpuserve_loadtests.judgement.repetition import judge_repetition
    from tpuserve_loadtests.judgement.run import judge_run
    from tpuserve_loadtests.judgement.threshold import Hopeless, limits_us
    from tpuserve_loadtests.reports.repetition import repetition_report
    from tpuserve_loadtests.reports.run import run_report

    traffic, options = find_traffic(options, options.golden.path)
    refuse_ineffective_arrivals(options.arrivals, is_open=bool(options.rate), is_timed=options.is_timed)
    refuse_ineffective(options, options.metrics)
    gates = thresholds(options.gates, "--fail-if")
    options.files.check()
    options.push.check()
    repetition = options.repetition
    settling = repetition.settling
    if settling is not None:
        options.files.refuse_distribution()
    # Without a load option, recorded requests keep their times, and other requests use DEFAULT_USERS.
    timeline = None if options.ways else traffic.timeline(options.speed)
    load = _load(options, traffic) if timeline is None else _instants_load(timeline.instants, options)
    load = replace(load, limits_us=limits_us(gates))
    target = with_golden(traffic.find_target(timeline), options.golden, gates)
    settings = {**describe_settings(target), **golden_settings(target)}

    def judged(measured: "Measured", seen: "Seen") -> "RunOutcome":
        notes = (*golden_notes(target, measured), *(timeline.notes if timeline else ()))
        rows, strict = target.workload.rows, options.generator.strict
        return judge_run(
            measured,
            model=traffic.title,
            rows=rows,
            gates=gates,
            strict=strict,
            seen=seen,
            extra_notes=notes,
            price=options.price,
        )

    energy = find_energy(target.addresses.values(), options.generator)
    with (
        generating(target, options.generator) as runs,
        pushing(runs, options.push, traffic.title) as pushed,
        watch_server(options.server, options.metrics, traffic.specs, options.server_pid, energy) as server,
    ):
        if settling is None:
            with server.during(load) as seen:
                measured = run_load(pushed.runs, load, Hopeless(gates, load).why)
            outcomes = [judged(measured, seen)]
        else:
            several = repeated(pushed.runs, server, load, settling, repetition.most_runs)
            outcomes = [judged(*each).condensed() for each in several]
    if settling is None:
        report = run_report(outcomes[0].with_notes(pushed.notes), settings)
    else:
        outcome = judge_repetition(outcomes, gates, settling, repetition.most_runs, pushed.notes)
        report = repetition_report(outcome, settings)
    publish(report, options.files, as_json=options.as_json)


def _load(options: RunOptions, traffic: "RequestedTraffic") -> "Load":
    if options.ways > 1:
        raise click.UsageError("--users, --rate and --trace exclude each other. Set one of them.")
    if options.trace_file is not None:
        return _trace_load(options.trace_file, options)
    terms = options.terms
    if options.request_limit:
        seconds = terms.seconds if "duration" in traffic.explicit else math.inf
        terms = replace(terms, requests=options.request_limit, seconds=seconds)
    if options.rate is not None:
        refuse_think_time(options.think_time)
        return terms.open(options.rate)
    return terms.closed(options.users or DEFAULT_USERS, traffic.least_users, options.think_time)


def _trace_load(path: Path, options: RunOptions) -> "Load":
    from tpuserve_loadtests.arrivals.load import BadTrace, read_trace

    try:
        trace = read_trace(path, options.speed)
    except BadTrace as error:
        raise click.BadParameter(str(error), param_hint="--trace") from None
    return _instants_load(trace, options)


def _instants_load(instants: tuple[float, ...], options: RunOptions) -> "Load":
    """Return a load with the recording's duration. Its first part is the warm-up."""
    from tpuserve_loadtests.arrivals.load import Load

    refuse_think_time(options.think_time)
    warm_up_s = min(options.time.warm_up, instants[-1] / 2)
    return Load(instants[-1] - warm_up_s, warm_up_s, trace=instants, requests=options.request_limit or 0)
