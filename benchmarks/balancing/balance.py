"""Measure two servers behind Envoy next to one server, over gRPC and REST. Linux only.

Run: `.venv/bin/python -m benchmarks balance [--quick]`, about 5 minutes, or 2 with `--quick`. The benchmark starts all
processes on loopback, and always stops them.
"""

import contextlib
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import click
from rich.console import Console
from rich.table import Table

from benchmarks.balancing.envoy import Server, balanced
from benchmarks.harness import measurement
from benchmarks.harness.load_tools import ToolFailed, missing_tools
from benchmarks.harness.measurement import Bodies, WrongAnswer
from benchmarks.harness.process_tree import ServerDied, exit_on_sigterm
from benchmarks.harness.targets import PROTOCOLS, ROOT, Protocol, model_server, write_model

# Milliseconds of a batch on the scripted device, and of each row. A batch has at most 32 rows. At this speed, two
# servers need a quarter of a core, so that the load generator and Envoy have room.
T0_MS, ROW_MS = 60.0, 1.0
GOAL: Final = 1.8
# Two batches for each of two servers: one runs and one waits.
IN_FLIGHT: Final = 128
DEVICES: Final = ("scripted", "cpu")
WAYS: Final = ("one", "one behind Envoy", "two behind Envoy")
_SCRIPTED: Final = (sys.executable, str(ROOT / "benchmarks/loadgen/scripted_server.py"), f"{T0_MS:g}", f"{ROW_MS:g}")
_FLAGS: Final = ("--tensorflow_intra_op_parallelism=1",)


@dataclass(frozen=True, slots=True)
class Turn:
    """One load: successful requests per second, failures, and CPU seconds per 1000 requests of servers and Envoy."""

    rate_per_s: float
    failures: int
    p99_ms: float
    server_cpu_s: float
    envoy_cpu_s: float


@dataclass(frozen=True, slots=True)
class Point:
    """The medians of one way over the rounds. `ratio` is to one server without Envoy, of the same rounds."""

    device: str
    protocol: Protocol
    way: str
    rate_per_s: float
    ratio: float
    failures: int
    p99_ms: float
    server_cpu_s: float
    envoy_cpu_s: float


@dataclass(frozen=True, slots=True)
class Run:
    """The parameters of every turn."""

    seconds: int
    rounds: int
    scratch: Path
    console: Console


def measure(device: str, base: Path, run: Run) -> Iterator[Point]:
    """Measure all ways with each protocol. The ways take turns in each round."""
    bodies = measurement.write_bodies(run.scratch)
    with _servers(device, base, run.scratch) as servers, contextlib.ExitStack() as stack:
        first = servers[:1]
        ways: dict[str, tuple[Server, Sequence[Server]]] = {
            "one": (servers[0], first),
            "one behind Envoy": (stack.enter_context(balanced(first, run.scratch)), first),
            "two behind Envoy": (stack.enter_context(balanced(servers, run.scratch)), servers),
        }
        for entry, _ in ways.values():
            measurement.check_answer(entry)
        for protocol in PROTOCOLS:
            turns: dict[str, list[Turn]] = {way: [] for way in ways}
            for number in range(run.rounds):
                for way, (entry, behind) in ways.items():
                    turns[way].append(_turn(entry, behind, protocol, bodies, run))
                    rate = turns[way][-1].rate_per_s
                    run.console.print(f"{device} {protocol} {way}, round {number + 1}: {rate:.0f}/s")
            yield from _points(device, protocol, turns)


@contextlib.contextmanager
def _servers(device: str, base: Path, scratch: Path) -> Iterator[list[Server]]:
    """Start two servers."""
    program = _SCRIPTED if device == "scripted" else ()
    with contextlib.ExitStack() as stack:
        servers: list[Server] = []
        for number in range(2):
            folder = scratch / f"{device}-{number}"
            folder.mkdir()
            environment = {"PYTHONPATH": str(ROOT)}
            server = model_server(base, folder, *_FLAGS, environment=environment, program=program)
            servers.append(stack.enter_context(server))
        yield servers


def _turn(entry: Server, behind: Sequence[Server], protocol: Protocol, bodies: Bodies, run: Run) -> Turn:
    trees = [server[protocol].tree for server in behind]
    before_s = sum(tree.cpu_seconds() for tree in trees)
    # The tree of the entry is Envoy's, except for a server alone.
    point = measurement.measure(entry[protocol], IN_FLIGHT, run.seconds, bodies, run.scratch)
    # The warm-up sends requests, too.
    requests = point.load.requests * (run.seconds + measurement.WARM_UP_S) / run.seconds
    server_cpu_s = 1000 * (sum(tree.cpu_seconds() for tree in trees) - before_s) / requests
    is_alone = entry in behind
    return Turn(
        point.load.rate_per_s,
        point.load.failures,
        point.load.p99_ms,
        server_cpu_s,
        0.0 if is_alone else point.cpu_s_per_1000,
    )


def _points(device: str, protocol: Protocol, turns: Mapping[str, Sequence[Turn]]) -> Iterator[Point]:
    for way, own in turns.items():
        pairs = zip(own, turns["one"], strict=True)
        yield Point(
            device,
            protocol,
            way,
            statistics.median(turn.rate_per_s for turn in own),
            statistics.median(turn.rate_per_s / alone.rate_per_s for turn, alone in pairs),
            sum(turn.failures for turn in own),
            statistics.median(turn.p99_ms for turn in own),
            statistics.median(turn.server_cpu_s for turn in own),
            statistics.median(turn.envoy_cpu_s for turn in own),
        )


def is_reached(points: Sequence[Point]) -> bool:
    """Return whether two servers reach the goal on the device that takes no CPU, and all requests there succeed.

    On the device `cpu` the load exceeds the machine, so that the load generator may time out.
    """
    scripted = [point for point in points if point.device == "scripted"]
    ratios = [point.ratio for point in scripted if point.way == "two behind Envoy"]
    return all(ratio >= GOAL for ratio in ratios) and not any(point.failures for point in scripted)


def show(points: Sequence[Point], console: Console) -> None:
    """Print the table."""
    cores = len(os.sched_getaffinity(0))
    title = f"{IN_FLIGHT} requests in flight; servers, Envoy and load generator share {cores} cores"
    table = Table(title=title)
    table.add_column("device")
    table.add_column("servers")
    for column in ("requests/s", "ratio", "failed", "p99 ms", "server CPU s/1000", "Envoy CPU s/1000"):
        table.add_column(column, justify="right")
    for point in points:
        table.add_row(
            f"{point.device} {point.protocol}",
            point.way,
            f"{point.rate_per_s:.0f}",
            f"{point.ratio:.2f}",
            str(point.failures),
            f"{point.p99_ms:.0f}",
            f"{point.server_cpu_s:.3f}",
            f"{point.envoy_cpu_s:.3f}" if point.envoy_cpu_s else "",
        )
    console.print(table)


@click.command(epilog="Exit codes: 0 the goal is reached, 1 it is missed or a step failed.")
@click.option("--seconds", default=5, show_default=True, type=click.IntRange(1), help="Seconds per turn, after 1 s.")
@click.option("--rounds", default=3, show_default=True, type=click.IntRange(1), help="Rounds; the table has medians.")
@click.option("--quick", is_flag=True, help="One round of 3 seconds, with approximate figures.")
@click.option("--devices", default=",".join(DEVICES), show_default=True, help="Comma-separated devices.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write the results to this JSON file.")
def main(seconds: int, rounds: int, quick: bool, devices: str, json_file: Path | None) -> None:
    """Load one server, one behind Envoy, and two behind Envoy.

    The scripted device takes time and no CPU, like a TPU. The goal is 1.8 times the rate of one server there. The
    device `cpu` is the MLP itself: two servers share the cores, so its ratio shows what Envoy costs.
    """
    exit_on_sigterm()
    console = Console(width=132)
    if missing := missing_tools():
        raise click.ClickException(f"The benchmark needs: apt-get install {' '.join(missing)}")
    try:
        with tempfile.TemporaryDirectory(prefix="tpuserve-balance-") as folder:
            scratch = Path(folder)
            run = Run(3, 1, scratch, console) if quick else Run(seconds, rounds, scratch, console)
            write_model(scratch / "model", scratch)
            chosen = [device for device in DEVICES if device in devices.split(",")]
            points = [point for device in chosen for point in measure(device, scratch / "model", run)]
    except (ServerDied, ToolFailed, WrongAnswer, OSError) as error:
        raise click.ClickException(str(error)) from None
    show(points, console)
    if json_file is not None:
        json_file.write_text(json.dumps([asdict(point) for point in points], indent=2))
    sys.exit(0 if is_reached(points) else 1)


if __name__ == "__main__":
    main()
