"""The command `tpuserve loadtest soak`, which finds drifts and other changes over hours of load."""

import json
import math
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TextIO

import click

from tpuserve_loadtests.arrivals.load import Load
from tpuserve_loadtests.cli import access, commands, files, golden, loads, monitoring, targets
from tpuserve_loadtests.cli.commands import SoakOptions
from tpuserve_loadtests.cli.options import UsersOrRateOptions
from tpuserve_loadtests.cli.requested_traffic import find_traffic
from tpuserve_loadtests.judgement.run import Rules, judge_run
from tpuserve_loadtests.judgement.soak import judge_soak
from tpuserve_loadtests.judgement.threshold import Outage
from tpuserve_loadtests.measurement.measured import Segment, Segments
from tpuserve_loadtests.monitoring.server_side import Seen
from tpuserve_loadtests.monitoring.server_watch import ServerWatch
from tpuserve_loadtests.reports.soak import segment_document, segment_line, soak_report
from tpuserve_loadtests.traffic.target import Runs, Watch


def soak(options: SoakOptions) -> None:
    traffic, options = find_traffic(options)
    access.refuse_ineffective_arrivals(options.arrivals, is_open=not options.load.users)
    access.refuse_ineffective(options, options.metrics)
    files.check_files(options.files)
    loads.check_push(options.push)
    rules = loads.rules_of(options)
    planned = options.segments
    load = segment_load(loads.base_load(options), options.load, planned, traffic.least_users)
    target = traffic.find_target()
    rules = replace(rules, lines=traffic.lines(target, rules.gates))
    segments = Segments()
    with ExitStack() as stack:
        log = _open_log(options.log, stack)
        runs = stack.enter_context(targets.generating(target, options.generator))
        pushed = stack.enter_context(loads.pushing(runs, options.push, traffic.title))
        # The soak watches the server's process, which is the same for all models.
        one = list(traffic.specs)[:1]
        server = stack.enter_context(monitoring.watch_server(options.server, options.metrics, one, options.server_pid))
        load = loads.opened(load, options.load, runs, server)
        metered = stack.enter_context(monitoring.find_energy(target.addresses.values(), options.generator).during(load))
        on_segment = partial(_report_segment, segments=segments, planned=planned, log=log)
        run_segments(pushed.runs, load, planned, rules, segments, server, on_segment)
    assert segments.total is not None  # at least the first one began
    run = judge_run(
        segments.total,
        rules,
        model=traffic.title,
        rows=target.workload.rows,
        seen=Seen(energy=metered.energy),
        price=options.price,
        extra_notes=(*golden.golden_notes(target, segments.total), *pushed.notes),
    )
    outcome = judge_soak(run, segments, planned, rules, server.why_not)
    report = soak_report(outcome, files.describe_settings(target))
    files.publish(report, options.files, as_json=options.as_json)


def run_segments(
    runs: Runs,
    load: Load,
    planned: int,
    rules: Rules,
    segments: Segments,
    server: ServerWatch,
    on_segment: Callable[[Segment], None],
    patience_s: float = math.inf,
) -> None:
    """Run the segments in sequence, each with different arrivals.

    The soak ends early after a segment that was stopped or in which every request failed. It also ends as soon as the
    segments together can no longer pass the gates. Unless a gate on `error_rate` decides about failures, it ends after
    `patience_s` seconds in which every request failed.
    """
    patience_s = math.inf if any(gate.metric == "error_rate" for gate in rules.gates) else patience_s
    load, of_segment = rules.watched(load)
    soak = replace(of_segment, load=replace(load, seconds=planned * load.seconds))
    for number in range(planned):
        part = replace(load, seed=load.seed + number, warm_up_s=0.0 if number else load.warm_up_s)
        title, so_far = f"Segment {number + 1} of {planned}, for", segments.total
        hopeless = soak.further(load.warm_up_s + so_far.span_s, so_far.recorder.counts()) if so_far else soak.why
        measured = loads.run_load(
            runs, part, _either(hopeless, Outage(patience_s).why), title, quiet=not sys.stderr.isatty()
        )
        segment = segments.add(measured, server.memory_bytes())
        on_segment(segment)
        if measured.stopped or 0 < segment.requests == segment.failures:
            return


def _either(first: Watch, second: Watch) -> Watch:
    return lambda elapsed_s, counts: first(elapsed_s, counts) or second(elapsed_s, counts)


def segment_load(soak: Load, options: UsersOrRateOptions, segments: int, protocols: int) -> Load:
    """Return the load of one segment. Raise a usage error for a short soak, and for a rate that is not constant."""
    if soak.seconds < commands.LEAST_SOAK_S:
        raise click.BadParameter(
            f"A soak needs at least {commands.LEAST_SOAK_S:g} s to show a trend.", param_hint="--duration"
        )
    load = loads.users_or_rate(replace(soak, seconds=soak.seconds / segments), options, protocols)
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


def _report_segment(segment: Segment, segments: Segments, planned: int, log: TextIO | None) -> None:
    click.echo(segment_line(segment, len(segments.done), planned), err=True)
    if log is not None:
        log.write(json.dumps(segment_document(segment)) + "\n")
