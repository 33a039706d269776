"""Measure the goodput of a running server at up to ten times its capacity and in a retry storm. Linux only.

Run: `.venv/bin/python -m benchmarks overload [--picture FILE]`, about 10 minutes. The benchmark starts all processes on
loopback, and always stops them.
"""

import json
import math
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import click
from rich.console import Console
from rich.table import Table

from benchmarks.batching import refusal_cost, simulated_overload
from benchmarks.batching.deadline_load import Sent, joined
from benchmarks.batching.refusal_cost import RefusalCost
from benchmarks.harness import environments
from benchmarks.harness.environments import SetupFailed
from benchmarks.harness.load_tools import ToolFailed
from benchmarks.harness.measurement import WrongAnswer, write_bodies
from benchmarks.harness.process_tree import ServerDied, exit_on_sigterm
from benchmarks.harness.targets import PROTOCOLS, ROOT, Protocol, Target, model_server, write_model

LEAST_SHARE_OF_PEAK: Final = 0.90
MOST_REFUSAL_SHARE: Final = 0.3
TIMEOUT_S: Final = 0.5
# Milliseconds of a batch on the scripted device, and of each row. The generator shares the machine, so five times the
# capacity must be within its reach.
T0_MS, ROW_MS, MAX_ROWS = 20.0, 1.0, 32
CAPACITY_PER_S: Final = MAX_ROWS / (T0_MS + ROW_MS * MAX_ROWS) * 1000
_RETRIES = 3
# A process of the generator sends at most this many requests per second on time.
_MOST_PER_PROCESS_S = 3500
_SERVER = ROOT / "benchmarks" / "loadgen" / "scripted_server.py"
_FLAGS = ("--tensorflow_intra_op_parallelism=1",)


@dataclass(frozen=True, slots=True)
class Step:
    """A load, as a multiple of the capacity."""

    name: str
    load: float
    retries: int = 0


STEPS: Final = (
    Step("0.9x", 0.9),
    Step("1x", 1.0),
    Step("2x", 2.0),
    Step("5x", 5.0),
    Step("10x", 10.0),
    Step("storm 1.5x", 1.5, _RETRIES),
)


@dataclass(frozen=True, slots=True)
class Point:
    """The medians of one step over the rounds. `share` is the goodput over the highest of the same server.

    `refused` and `late` are shares of the requests. `cpu_ms` is the server's CPU time for each request.
    `limited` counts the rounds in which the load generator was the limit.
    """

    protocol: Protocol
    step: str
    load: float
    goodput_per_s: float
    share: float
    refused: float
    late: float
    p50_ms: float
    p99_ms: float
    cpu_ms: float
    lag_ms: float
    limited: int


@dataclass(frozen=True, slots=True)
class Turn:
    """One round of a step: the client's results, and the server's CPU time for each request in milliseconds."""

    sent: Sent
    cpu_ms: float


def send(target: Target, step: Step, seconds: float) -> Sent:
    """Run as many processes of deadline_load.py as the load needs, and return their results."""
    rate = step.load * CAPACITY_PER_S
    processes = math.ceil(rate / _MOST_PER_PROCESS_S)
    program = Path(__file__).with_name("deadline_load.py")
    command = [sys.executable, str(program), target.protocol, str(target.port)]
    command += [str(rate / processes), str(seconds), str(TIMEOUT_S), str(step.retries)]
    with ThreadPoolExecutor(processes) as pool:
        return joined([*pool.map(lambda _: _send(command, 4 * seconds + 120), range(processes))])


def _send(command: Sequence[str], timeout_s: float) -> Sent:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=timeout_s)
    line = next((line for line in done.stdout.splitlines() if line.startswith("RESULT ")), None)
    if done.returncode or line is None:
        raise ToolFailed(f"The load generator failed:\n{done.stderr[-1000:]}")
    return Sent(**json.loads(line.removeprefix("RESULT ")))


def turn(target: Target, step: Step, seconds: float) -> Turn:
    """Send one load, and measure the server's CPU time meanwhile."""
    before_s = target.tree.cpu_seconds()
    sent = send(target, step, seconds)
    used_s = target.tree.cpu_seconds() - before_s
    # The warm-up has the same load.
    requests = max(sent.requests, 1)
    return Turn(sent, 1000 * used_s / requests)


def points(protocol: Protocol, turns: Sequence[tuple[Step, Turn]]) -> list[Point]:
    """Return the medians of each step."""
    goodput = {
        step: statistics.median(turn.sent.goodput_per_s for each, turn in turns if each == step) for step, _ in turns
    }
    peak = max(goodput.values())
    found = []
    for step, per_s in goodput.items():
        own = [turn for each, turn in turns if each == step]
        sent = [turn.sent for turn in own]
        found.append(
            Point(
                protocol=protocol,
                step=step.name,
                load=step.load,
                goodput_per_s=per_s,
                share=per_s / peak if peak else 0.0,
                refused=statistics.median(each.refused / max(each.requests, 1) for each in sent),
                late=statistics.median(each.late / max(each.requests, 1) for each in sent),
                p50_ms=statistics.median(each.p50_ms for each in sent),
                p99_ms=statistics.median(each.p99_ms for each in sent),
                cpu_ms=statistics.median(turn.cpu_ms for turn in own),
                lag_ms=statistics.median(each.lag_p99_ms for each in sent),
                limited=sum(bool(each.limits) for each in sent),
            )
        )
    return found


def measure(base: Path, scratch: Path, run: "Run") -> Iterator[tuple[list[Point], RefusalCost]]:
    """Measure all steps and the cost of a refusal over each protocol. They take turns in each round."""
    bodies = write_bodies(scratch)
    program = (sys.executable, str(_SERVER), f"{T0_MS:g}", f"{ROW_MS:g}")
    for protocol in run.protocols:
        turns: list[tuple[Step, Turn]] = []
        costs: list[tuple[float, float]] = []
        environment = {"PYTHONPATH": str(ROOT)}
        with model_server(base, scratch, *_FLAGS, environment=environment, program=program) as server:
            for number in range(run.rounds):
                for step in STEPS:
                    turns.append((step, turn(server[protocol], step, run.seconds)))
                    per_s = turns[-1][1].sent.goodput_per_s
                    run.console.print(f"{protocol} {step.name}, round {number + 1}: {per_s:.0f}/s in time")
                costs.append(refusal_cost.turn(server, protocol, bodies, scratch))
        request_us, refusal_us = zip(*costs, strict=True)
        yield points(protocol, turns), RefusalCost(protocol, request_us, refusal_us)


@dataclass(frozen=True, slots=True)
class Run:
    """The parameters of every step."""

    seconds: float
    rounds: int
    protocols: tuple[Protocol, ...]
    console: Console


def show(found: Sequence[Point], costs: Sequence[RefusalCost], console: Console) -> None:
    """Print the table, and the cost of a refusal."""
    table = Table(
        title=f"Goodput with deadlines of {TIMEOUT_S:g} s; the device answers {CAPACITY_PER_S:.0f} requests/s"
    )
    columns = "load", "goodput/s", "of the peak", "refused", "late", "p50 ms", "p99 ms", "CPU ms", "lag ms", "limited"
    table.add_column("protocol")
    for column in columns:
        table.add_column(column, justify="right")
    for each in found:
        table.add_row(
            each.protocol,
            each.step,
            f"{each.goodput_per_s:.0f}",
            f"{100 * each.share:.0f} %",
            f"{100 * each.refused:.0f} %",
            f"{100 * each.late:.1f} %",
            f"{each.p50_ms:.0f}",
            f"{each.p99_ms:.0f}",
            f"{each.cpu_ms:.2f}",
            f"{each.lag_ms:.0f}",
            str(each.limited),
        )
    console.print(table)
    for cost in costs:
        console.print(str(cost), highlight=False)


@click.command(epilog="Exit codes: 0 the goal is reached, 1 it is missed or a step failed.")
@click.option("--seconds", default=10.0, show_default=True, help="Seconds per step, after a warm-up of 2 s.")
@click.option("--rounds", default=3, show_default=True, type=click.IntRange(1), help="Rounds; the table has medians.")
@click.option("--protocols", default=",".join(PROTOCOLS), show_default=True, help="Comma-separated protocols.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write the results to this JSON file.")
@click.option("--picture", type=click.Path(path_type=Path), help="Draw simulated and live goodput into this .svg file.")
def main(seconds: float, rounds: int, protocols: str, json_file: Path | None, picture: Path | None) -> None:
    """Send requests with a deadline of 0.5 s, at 0.9 to 10 times the capacity and in a retry storm.

    The goals are a goodput of 90 % of the peak, with the load generator on the same machine and no objective, and a
    refusal for at most 0.3 of the CPU of a request. Needs h2load and wrk (Debian: nghttp2-client, wrk).
    """
    exit_on_sigterm()
    console = Console(width=132)
    chosen = tuple(protocol for protocol in PROTOCOLS if protocol in protocols.split(","))
    try:
        with tempfile.TemporaryDirectory(prefix="tpuserve-overload-") as folder:
            scratch = Path(folder)
            base = scratch / "model"
            write_model(base, scratch)
            measured = list(measure(base, scratch, Run(seconds, rounds, chosen, console)))
            found, costs = [point for points, _ in measured for point in points], [cost for _, cost in measured]
            show(found, costs, console)
            figures = json_file or scratch / "overload.json"
            simulated = simulated_overload.as_json(_simulate(console)) if json_file or picture else []
            figures.write_text(
                json.dumps(
                    {"live": list(map(asdict, found)), "refusals": list(map(asdict, costs)), "simulated": simulated},
                    indent=2,
                )
            )
            if picture is not None:
                environments.draw("draw_overload.py", figures, picture)
    except (ServerDied, ToolFailed, WrongAnswer, SetupFailed, OSError) as error:
        raise click.ClickException(str(error)) from None
    sys.exit(0 if is_reached(found, costs) else 1)


def is_reached(found: Sequence[Point], costs: Sequence[RefusalCost]) -> bool:
    """Return whether the goodput is at least 90 % of the peak in every step with overload, and a refusal is cheap."""
    return all(point.share >= LEAST_SHARE_OF_PEAK for point in found if point.load > 1) and all(
        cost.share <= MOST_REFUSAL_SHARE for cost in costs
    )


def _simulate(console: Console) -> list[simulated_overload.Outcome]:
    return list(simulated_overload.measure(quick=True, report=console.print))
