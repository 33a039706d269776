"""Measure device programs through gRPC next to a bare loop of the same program, and their start times. Linux only.

Run: `.venv/bin/python -m benchmarks device_programs --model build/programs`. The benchmark exports the models, an MLP
and a ResNet-50, if the directory lacks them. It starts all processes on loopback, and always stops them. For another
version, use `--base BASE_PATH --rows N`.
"""

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import click
import numpy as np
import psutil
from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks.devices.device_program_models import MLP, RESNET, SIZES, Size, find_or_export
from benchmarks.devices.program_loop import MANIFEST
from benchmarks.devices.resnet import loop_process
from benchmarks.harness.load_tools import ToolFailed, framed, missing_tools, run_h2load
from benchmarks.harness.measurement import predict_request
from benchmarks.harness.process_tree import ProcessTree, ServerDied, exit_on_sigterm
from benchmarks.harness.targets import GRPC_PATH, model_server

NAME = "model"
# Requests in flight, in batches: the next batch fills while one runs.
BATCHES_IN_FLIGHT = 2
GOAL_OF_LOOP, GOAL_OF_COLD, MAX_RSS_MB = 0.95, 0.5, 600
READY_TIMEOUT_S = 300.0
# Width of a table written to a file or a pipe, in columns.
LOG_WIDTH = 120


@dataclass(frozen=True, slots=True)
class Rates:
    """Rows per second of each round, with alternating rounds, and the 99th percentile of latency of the last load."""

    served: list[float]
    loop: list[float]
    p99_ms: float

    @property
    def ratio(self) -> float:
        """Median of `served` over median of `loop`."""
        return statistics.median(self.served) / statistics.median(self.loop)


@dataclass(frozen=True, slots=True)
class Start:
    """Seconds from the command to readiness, RSS of the largest process, and whether any process imports TensorFlow."""

    seconds: float
    rss_mb: float
    imports_tensorflow: bool


@dataclass(frozen=True, slots=True)
class Measured:
    """Figures of one model. Cold starts have an empty compilation cache, and alternate with warm starts."""

    size: Size
    rates: Rates
    cold: list[Start]
    warm: list[Start]

    @property
    def warm_of_cold(self) -> float:
        """Median of the warm start times over median of the cold ones."""
        cold, warm = (statistics.median(one.seconds for one in starts) for starts in (self.cold, self.warm))
        return warm / cold

    @property
    def rss_mb(self) -> float:
        """Largest RSS after a warm start, because compiling leaves memory in use."""
        return max(one.rss_mb for one in self.warm)


@dataclass(frozen=True, slots=True)
class Goal:
    """One row of the table of goals."""

    what: str
    goal: str
    got: str
    reached: bool


def measure(size: Size, base: Path, device: str, rounds: int, seconds: int, scratch: Path) -> Measured:
    """Start cold and warm once per round, then compare the server with the loop."""
    cold, warm = [], []
    for index in range(rounds):
        cache = scratch / f"{size.name}-compiled{index}"
        cold.append(start(base, cache, device, scratch))
        warm.append(start(base, cache, device, scratch))
    return Measured(size, compare(size, base, device, rounds, seconds, scratch), cold, warm)


def start(base: Path, cache: Path, device: str, scratch: Path) -> Start:
    """Start a server, and stop it when it is ready."""
    began_s = time.monotonic()
    flags = (f"--device={device}", f"--compilation_cache_dir={cache}")
    with model_server(base, scratch, *flags, name=NAME, ready_timeout_s=READY_TIMEOUT_S) as server:
        seconds = time.monotonic() - began_s
        tree = server["grpc"].tree
        return Start(seconds, max(map(rss_mb, tree.members)), maps_tensorflow(tree))


def rss_mb(process: psutil.Process) -> float:
    """Return the resident memory of one process in MB of 10^6 bytes, including the mapped pages of the weights file."""
    try:
        return float(process.memory_info().rss) / 1e6
    except psutil.NoSuchProcess:
        return 0.0


def maps_tensorflow(tree: ProcessTree) -> bool:
    """Return whether any process has mapped TensorFlow's libraries, which every process that imports it does."""
    maps = (Path(f"/proc/{member.pid}/maps") for member in tree.members)
    return any("/tensorflow/" in path.read_text() for path in maps if path.exists())


def compare(size: Size, base: Path, device: str, rounds: int, seconds: int, scratch: Path) -> Rates:
    """Return the rows per second of the server, with two batches in flight, and of the loop, in alternating rounds."""
    manifest = json.loads((base / "1" / MANIFEST).read_text())
    ((name, tensor),) = manifest["signatures"]["serving_default"]["inputs"].items()
    row = np.random.default_rng(0).random((size.of_request, *tensor["shape"][1:])).astype(tensor["dtype"])
    body = scratch / "row.grpc"
    body.write_bytes(framed(predict_request(NAME, {name: row})))
    # The same batch size as the loop, and a timeout that makes every batch full.
    flags = (f"--device={device}", f"--max_batch_size={size.rows}", "--batch_timeout_micros=100000")
    in_flight = BATCHES_IN_FLIGHT * size.rows // size.of_request
    served, looped, p99_ms = [], [], 0.0
    with (
        model_server(base, scratch, *flags, name=NAME, ready_timeout_s=READY_TIMEOUT_S) as server,
        loop_process("program_loop.py", str(base / "1"), device) as loop,
    ):
        for _ in range(rounds):
            port = server["grpc"].port
            load = run_h2load(port, GRPC_PATH, body, in_flight=in_flight, duration_s=seconds, scratch=scratch)
            served.append(load.rate_per_s * size.of_request)
            p99_ms = load.p99_ms
            looped.append(loop.rate(size.rows, seconds))
    return Rates(served, looped, p99_ms)


def judge(measured: Sequence[Measured]) -> list[Goal]:
    """Return the goals of these models and the figures reached."""
    goals = []
    for one in measured:
        ratio = one.rates.ratio
        what = f"{one.size.title}: served rate relative to the loop"
        goals.append(Goal(what, f"≥ {GOAL_OF_LOOP}", f"{ratio:.3f}", ratio >= GOAL_OF_LOOP))
        if one.size is not MLP:
            got = one.warm_of_cold
            what = f"{one.size.title}: warm start relative to cold start"
            goals.append(Goal(what, f"≤ {GOAL_OF_COLD}", f"{got:.2f}", got <= GOAL_OF_COLD))
        if one.size is not RESNET:
            what = f"{one.size.title}: resident memory"
            goals.append(Goal(what, f"≤ {MAX_RSS_MB} MB", f"{one.rss_mb:.0f} MB", one.rss_mb <= MAX_RSS_MB))
        imports = any(each.imports_tensorflow for each in (*one.cold, *one.warm))
        goals.append(
            Goal(f"{one.size.title}: TensorFlow imported by the server", "no", "yes" if imports else "no", not imports)
        )
    return goals


def show(measured: Sequence[Measured], device: str, console: Console) -> None:
    """Print the figures and the goals."""
    table = Table(box=box.SIMPLE_HEAD, title=f"Device programs on PJRT, --device={device}, medians")
    for column in (
        "model",
        "batch",
        "served, rows/s",
        "loop, rows/s",
        "ratio",
        "p99",
        "cold start",
        "warm start",
        "RSS",
    ):
        table.add_column(column, justify="left" if column == "model" else "right")
    for one in measured:
        cold, warm = (statistics.median(each.seconds for each in starts) for starts in (one.cold, one.warm))
        served, looped = statistics.median(one.rates.served), statistics.median(one.rates.loop)
        table.add_row(
            *(one.size.title, str(one.size.rows), f"{served:.1f}", f"{looped:.1f}", f"{one.rates.ratio:.3f}"),
            *(f"{one.rates.p99_ms:.0f} ms", f"{cold:.1f} s", f"{warm:.1f} s", f"{one.rss_mb:.0f} MB"),
        )
    console.print(table)
    goals = Table(box=box.SIMPLE_HEAD)
    for column in ("goal", "limit", "result", "verdict"):
        goals.add_column(column)
    for goal in judge(measured):
        goals.add_row(goal.what, goal.goal, goal.got, "reached" if goal.reached else "MISSED")
    console.print(goals)


@click.command(epilog="Exit codes: 0 success (the table shows missed goals), 1 a step failed.")
@click.option("--model", type=click.Path(path_type=Path), help="Directory that keeps the models between runs.")
@click.option("--only", type=click.Choice([size.name for size in SIZES]), help="Measure only this model.")
@click.option("--base", type=click.Path(exists=True, path_type=Path), help="Base path of another model with version 1.")
@click.option("--rows", default=8, show_default=True, help="With --base: rows per batch, the size of a program.")
@click.option("--of-request", default=1, show_default=True, help="With --base: rows per request.")
@click.option("--device", type=click.Choice(["cpu", "gpu", "tpu"]), default="cpu", show_default=True)
@click.option("--rounds", default=3, show_default=True, help="Number of rounds and of starts. The medians count.")
@click.option("--seconds", default=10, show_default=True, help="Seconds per round. ResNet-50 takes three times this.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document. Progress goes to standard error.")
def main(
    model: Path | None,
    only: str | None,
    base: Path | None,
    rows: int,
    of_request: int,
    device: str,
    rounds: int,
    seconds: int,
    as_json: bool,
) -> None:
    """Measure start times with an empty and a filled compilation cache, then compare with a loop."""
    exit_on_sigterm()
    console = Console(stderr=as_json, width=None if sys.stdout.isatty() else LOG_WIDTH)
    if missing := missing_tools():
        raise click.ClickException(f"This benchmark needs h2load. Run: apt-get install {' '.join(missing)}")
    sizes = (
        [Size(base.name, base.name, "", rows, of_request)]
        if base
        else [one for one in SIZES if only in (None, one.name)]
    )
    measured = []
    try:
        with tempfile.TemporaryDirectory(prefix="tpuserve-programs-") as folder:
            scratch = Path(folder)
            for size in sizes:
                console.print(f"measuring {size.title}")
                found = base or find_or_export(size, (model or scratch).absolute())
                measured.append(measure(size, found.absolute(), device, rounds, seconds * size.turns, scratch))
    except (ServerDied, ToolFailed, OSError) as error:
        raise click.ClickException(str(error)) from None
    show(measured, device, console)
    if as_json:
        goals = [asdict(goal) for goal in judge(measured)]
        print(json.dumps({"models": [asdict(one) for one in measured], "goals": goals}, indent=2))
