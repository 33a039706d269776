"""The command `tpuserve loadtest soak`, which finds drifts over hours of load."""

import json
import sys
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import click

from tpuserve_loadtests.cli.command import command, group, option
from tpuserve_loadtests.cli.energy import find_energy
from tpuserve_loadtests.cli.explicit_options import refuse_ineffective, refuse_ineffective_arrivals
from tpuserve_loadtests.cli.files import publish
from tpuserve_loadtests.cli.golden import GoldenOptions, golden_notes, golden_settings, with_golden
from tpuserve_loadtests.cli.load_options import LoadOptions
from tpuserve_loadtests.cli.loads import LoadTerms, run_load
from tpuserve_loadtests.cli.options import TimeOptions, UsersOrRateOptions, least_effect_option, unclear_option
from tpuserve_loadtests.cli.pushing import PushOptions, pushing
from tpuserve_loadtests.cli.requested_traffic import find_traffic
from tpuserve_loadtests.cli.server_metrics import watch_server
from tpuserve_loadtests.cli.settings import describe_settings
from tpuserve_loadtests.cli.target import generating
from tpuserve_loadtests.cli.thresholds import ThresholdCommand, thresholds

if TYPE_CHECKING:
    from collections.abc import Callable

    from tpuserve_loadtests.arrivals.load import Load
    from tpuserve_loadtests.judgement.threshold import Threshold
    from tpuserve_loadtests.measurement.measured import Segment, Segments
    from tpuserve_loadtests.monitoring.server_watch import ServerWatch
    from tpuserve_loadtests.traffic.target import Runs

SEGMENTS = 48
LEAST_SEGMENTS = 20
LEAST_SOAK_S = 10.0
EPILOG = """\b
Examples:
  tpuserve loadtest soak digits --rate 200 --duration 4h --log soak.jsonl
  tpuserve loadtest soak digits --users 16 --duration 30m --fail-if 'p99>50ms' 'error_rate>0.1%'

Exit codes: 0 steady, 1 requests failed or the soak was too short, 2 usage error, 3 server unreachable,
98 the load generator was the limit or the soak is inconclusive (see --unclear), 99 drifting, or a gate failed.
"""


@dataclass(frozen=True, slots=True)
class SoakOptions(LoadOptions):
    """Options of `soak`."""

    load: UsersOrRateOptions = group(UsersOrRateOptions)
    time: TimeOptions = group(TimeOptions, duration={"default": "1h"}, warm_up={"default": "10s"})
    segments: int = option(
        "--segments",
        type=click.IntRange(LEAST_SEGMENTS, 1000),
        default=SEGMENTS,
        show_default=True,
        help="Number of segments whose figures are compared.",
    )
    least_effect: float = least_effect_option(
        "Smallest change of latency or rate over the soak that counts; 0.05 is 5 %."
    )
    unclear: str = unclear_option("a figure that may be worse by ten times the smallest change that counts")
    golden: GoldenOptions = group(GoldenOptions)
    push: PushOptions = group(PushOptions)
    gates: tuple[str, ...] = option(
        "--fail-if", multiple=True, metavar="GATE...", help="Gates of the whole soak, as in `run`."
    )
    log: Path | None = option(
        "--log", type=click.Path(dir_okay=False, path_type=Path), help="Write each segment as a line of JSON."
    )


@command(SoakOptions, ThresholdCommand, epilog=EPILOG, short_help="Load a server for hours and detect drifts.")
def soak(options: SoakOptions) -> None:
    """Load a running server for hours and report whether latencies, failures or its memory drift.

    The soak runs the load in segments and tests their figures for trends. Ctrl-C ends the soak and judges the segments
    so far. With --log, the segments of a killed soak remain, too.
    """
    from tpuserve_loadtests.traffic.gevent_setup import give_process_to_gevent

    give_process_to_gevent()
    from tpuserve_loadtests.judgement.run import judge_run
    from tpuserve_loadtests.judgement.soak import judge_soak
    from tpuserve_loadtests.measurement.measured import Segments
    from tpuserve_loadtests.monitoring.server_side import Seen
    from tpuserve_loadtests.reports.soak import soak_report

    traffic, options = find_traffic(options, options.golden.path)
    refuse_ineffective_arrivals(options.arrivals, is_open=bool(options.load.rate))
    refuse_ineffective(options, options.metrics)
    options.files.check()
    options.push.check()
    gates = thresholds(options.gates, "--fail-if")
    terms, planned = options.terms, options.segments
    load = segment_load(terms, options.load, planned, traffic.least_users)
    target = with_golden(traffic.find_target(), options.golden, gates)
    segments = Segments()
    with ExitStack() as stack:
        log = _open_log(options.log, stack)
        runs = stack.enter_context(generating(target, options.generator))
        pushed = stack.enter_context(pushing(runs, options.push, traffic.title))
        # The soak watches the server's process, which is the same for all models.
        one = list(traffic.specs)[:1]
        server = stack.enter_context(watch_server(options.server, options.metrics, one, options.server_pid))
        metered = stack.enter_context(find_energy(target.addresses.values(), options.generator).during(load))
        on_segment = partial(_report_segment, segments=segments, planned=planned, log=log)
        run_segments(pushed.runs, load, planned, gates, segments, server, on_segment)
    assert segments.total is not None  # at least the first one began
    run = judge_run(
        segments.total,
        model=traffic.title,
        rows=target.workload.rows,
        gates=gates,
        strict=options.generator.strict,
        seen=Seen(energy=metered.energy),
        price=options.price,
        extra_notes=(*golden_notes(target, segments.total), *pushed.notes),
    )
    fail_if_unclear = options.unclear == "fail"
    outcome = judge_soak(
        run, segments, planned, options.least_effect, fail_if_unclear=fail_if_unclear, unwatched=server.why_not
    )
    report = soak_report(outcome, {**describe_settings(target), **golden_settings(target)})
    publish(report, options.files, as_json=options.as_json)


def run_segments(
    runs: "Runs",
    load: "Load",
    planned: int,
    gates: "tuple[Threshold, ...]",
    segments: "Segments",
    server: "ServerWatch",
    on_segment: "Callable[[Segment], None]",
) -> None:
    """Run the segments in sequence, each with different arrivals.

    The soak ends early after a segment that was stopped or in which every request failed. It also ends as soon as the
    segments together can no longer pass the gates.
    """
    from tpuserve_loadtests.judgement.threshold import Hopeless, limits_us

    load = replace(load, limits_us=limits_us(gates))
    soak = Hopeless(gates, replace(load, seconds=planned * load.seconds))
    for number in range(planned):
        part = replace(load, seed=load.seed + number, warm_up_s=0.0 if number else load.warm_up_s)
        title, so_far = f"Segment {number + 1} of {planned}, for", segments.total
        hopeless = soak.further(load.warm_up_s + so_far.span_s, so_far.recorder.counts()) if so_far else soak.why
        measured = run_load(runs, part, hopeless, title, quiet=not sys.stderr.isatty())
        segment = segments.add(measured, server.memory_bytes())
        on_segment(segment)
        if measured.stopped or 0 < segment.requests == segment.failures:
            return


def segment_load(soak: LoadTerms, options: UsersOrRateOptions, segments: int, protocols: int) -> "Load":
    """Return the load of one segment. Raise a usage error for a short soak, and for a rate that is not constant."""
    if soak.seconds < LEAST_SOAK_S:
        raise click.BadParameter(f"A soak needs at least {LEAST_SOAK_S:g} s to show a trend.", param_hint="--duration")
    load = replace(soak, seconds=soak.seconds / segments).users_or_rate(options, protocols)
    if load.profile is not None and not load.profile.is_level:
        raise click.BadParameter(
            "A soak needs a constant rate. Steps and ramps would look like drifts.", param_hint="--rate"
        )
    return load


def _open_log(path: Path | None, stack: ExitStack) -> TextIO | None:
    try:
        return None if path is None else stack.enter_context(path.open("w", buffering=1))
    except OSError as error:
        raise click.BadParameter(f"Cannot write {path}: {error.strerror}", param_hint="--log") from None


def _report_segment(segment: "Segment", segments: "Segments", planned: int, log: TextIO | None) -> None:
    from tpuserve_loadtests.reports.soak import segment_document, segment_line

    click.echo(segment_line(segment, len(segments.done), planned), err=True)
    if log is not None:
        log.write(json.dumps(segment_document(segment)) + "\n")
