"""Measure front-end processes: CPU of a request by process and thread, and the rate at which the engine is busy.

Run: `.venv/bin/python -m benchmarks frontends [--quick] [--json]`. About 4 minutes on two cores. Linux only.
"""

import json
import os
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import click
from rich.console import Console

from benchmarks.frontends import report
from benchmarks.frontends.measured_engine import EngineTime, measure_engine
from benchmarks.frontends.points import FrontEndPoint, measure_point
from benchmarks.frontends.report import Outcome
from benchmarks.harness import measurement
from benchmarks.harness.cpu_cost import turns
from benchmarks.harness.load_tools import ToolFailed, missing_tools
from benchmarks.harness.measurement import WrongAnswer
from benchmarks.harness.process_tree import ServerDied, exit_on_sigterm
from benchmarks.harness.targets import PROTOCOLS, model_server, write_model
from tpuserve_server.core.garbage import settle_garbage_collector

IN_FLIGHT: Final = (32, 128)
DRIVERS: Final = (1, 2, 4)
# Requests that each driver of the engine keeps in flight, and the rounds of medians.
DRIVER_IN_FLIGHT, ENGINE_ROUNDS, QUICK_ENGINE_ROUNDS = (32, 128), 3, 1
WIDTH: Final = 150


def default_counts(cores: int) -> tuple[int, ...]:
    """Return the numbers of front-ends to measure: powers of two up to the cores, and at least 1 and 2."""
    return tuple(2**power for power in range(max(cores.bit_length(), 2)))


@click.command()
@click.option("--duration", default=5, show_default=True, type=click.IntRange(1, 60), help="Seconds per measurement.")
@click.option(
    "--counts", default="", help="Comma-separated numbers of front-ends. Default: 1, 2, 4 ... up to the cores."
)
@click.option("--quick", is_flag=True, help="Measure for 2 seconds each, and the engine alone in one round.")
@click.option("--engine-only", is_flag=True, help="Measure only the engine alone, without Envoy and load generators.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document. Progress goes to standard error.")
def main(duration: int, counts: str, quick: bool, engine_only: bool, as_json: bool) -> None:
    """Measure a server with several front-end processes, and its engine alone.

    Needs h2load and wrk (Debian: nghttp2-client, wrk), except with --engine-only. Exit codes: 0 success, 1 a step
    failed, 2 usage error.
    """
    if not engine_only and (missing := missing_tools()):
        raise click.UsageError(f"Load generators are missing. Run: apt-get install {' '.join(missing)}")
    chosen = _chosen(counts)
    exit_on_sigterm()
    duration_s, load_before = 2 if quick else duration, os.getloadavg()[0]
    try:
        engines = measure_engines(duration_s, QUICK_ENGINE_ROUNDS if quick else ENGINE_ROUNDS)
        points = () if engine_only else tuple(_measure_servers(chosen, duration_s, Console(stderr=True)))
    except (ServerDied, ToolFailed, WrongAnswer) as error:
        raise click.ClickException(str(error)) from None
    outcome = Outcome(duration_s, os.cpu_count() or 1, load_before, points, engines)
    if as_json:
        click.echo(json.dumps(report.as_json(outcome), indent=2))
    else:
        report.print_outcome(outcome, Console(width=WIDTH))


def measure_engines(duration_s: float, rounds: int) -> tuple[EngineTime, ...]:
    """Measure the engine alone with all numbers of drivers in turn, and return the median of each over the rounds."""
    settle_garbage_collector()  # A server does this, too.
    cases = [(drivers, in_flight) for in_flight in DRIVER_IN_FLIGHT for drivers in DRIVERS]
    found: dict[tuple[int, int], list[EngineTime]] = {case: [] for case in cases}
    for turn in turns(cases, rounds):
        for case in turn:
            found[case].append(measure_engine(*case, duration_s))
    return tuple(median(found[case]) for case in cases)


def median(several: Sequence[EngineTime]) -> EngineTime:
    """Return the medians of measurements of one case. The requests are those of all."""
    return replace(
        several[0],
        requests=sum(each.requests for each in several),
        batch_requests=statistics.median(each.batch_requests for each in several),
        loop_us=statistics.median(each.loop_us for each in several),
        device_us=statistics.median(each.device_us for each in several),
        rate_per_s=statistics.median(each.rate_per_s for each in several),
    )


def _measure_servers(counts: Sequence[int], duration_s: int, progress: Console) -> Iterator[FrontEndPoint]:
    with tempfile.TemporaryDirectory(prefix="tpuserve-frontends-") as directory:
        scratch = Path(directory)
        base, bodies = scratch / "models" / "mlp", measurement.write_bodies(scratch)
        write_model(base, scratch)
        for count in counts:
            with model_server("envoy", base, scratch, f"--frontends={count}") as server:
                measurement.check_answer(server)
                for protocol, in_flight in ((each, load) for each in PROTOCOLS for load in IN_FLIGHT):
                    what = f"{count} front-ends, {protocol}, {in_flight} in flight"
                    progress.print(f"measuring {what}", markup=False, highlight=False)
                    yield _checked(measure_point(server[protocol], count, in_flight, duration_s, bodies, scratch), what)
                measurement.check_answer(server)


def _checked(point: FrontEndPoint, what: str) -> FrontEndPoint:
    if point.load.failures:
        raise WrongAnswer(f"{what}: {point.load.failures} of {point.load.requests} requests failed")
    return point


def _chosen(text: str) -> tuple[int, ...]:
    if not text:
        return default_counts(os.cpu_count() or 1)
    try:
        counts = tuple(int(each) for each in text.split(","))
    except ValueError:
        counts = (0,)
    if min(counts) < 1:
        raise click.BadParameter(f"expected positive numbers, such as 1,2,4, got {text!r}", param_hint="--counts")
    return counts
