"""Measure the delays of the event loop, with short batches on the loop and on their device thread. Linux only.

Run: `.venv/bin/python -m benchmarks loop_delay [--quick]`. About 3 minutes, or 1 with `--quick`. One
server with the MLP switches between both modes, which take turns under each load (decision 72).
"""

import os
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import click
from rich.console import Console
from rich.table import Table

from benchmarks.harness import measurement
from benchmarks.harness.load_tools import ToolFailed, missing_tools, percentile
from benchmarks.harness.measurement import Bodies, Point, WrongAnswer
from benchmarks.harness.process_tree import ServerDied, exit_on_sigterm
from benchmarks.harness.targets import ROOT, Target, model_server, write_model
from benchmarks.harness.turns import in_turn
from benchmarks.overhead.loop_probe import DELAYS, FOLDER, MOST_REQUESTS, RUNS, Record, read_records
from tpuserve_server.core.batching import loop_runner

IN_FLIGHT: Final = (1, 4, 32)
ROUNDS, QUICK_ROUNDS, SECONDS = 6, 2, 3
# Most requests of a batch on the loop, by mode.
MODES: Final = {"thread": 0, "loop": loop_runner.MOST_REQUESTS}
# The probe looks for the file that switches the mode every 0.1 s.
_SWITCH_S: Final = 0.5
_WIDTH: Final = 130


@dataclass(slots=True)
class Side:
    """The turns of one mode under one load, and what the probe recorded meanwhile."""

    points: list[Point] = field(default_factory=list)
    delays: list[Record] = field(default_factory=list)
    runs: list[Record] = field(default_factory=list)


def measure(target: Target, folder: Path, bodies: Bodies, scratch: Path, rounds: int) -> dict[int, dict[str, Side]]:
    """Measure both modes in turns under each load. Raises ServerDied and ToolFailed."""
    found = {load: {mode: Side() for mode in MODES} for load in IN_FLIGHT}
    for in_flight, sides in found.items():
        for number in range(rounds):
            for mode in in_turn(tuple(MODES), number):
                _switch(folder, mode)
                from_s = time.monotonic()
                sides[mode].points.append(measurement.measure(target, in_flight, SECONDS, bodies, scratch))
                until_s = time.monotonic()
                # The probe writes what it has every 0.1 s.
                time.sleep(_SWITCH_S)
                sides[mode].delays += _between(folder / DELAYS, from_s, until_s)
                sides[mode].runs += _between(folder / RUNS, from_s, until_s)
    return found


def _switch(folder: Path, mode: str) -> None:
    # In one step, because the probe may read it at any time.
    written = folder / "written"
    written.write_text(str(MODES[mode]))
    written.rename(folder / MOST_REQUESTS)
    time.sleep(_SWITCH_S)


def _between(path: Path, from_s: float, until_s: float) -> list[Record]:
    return [record for record in read_records(path) if from_s <= record[0] <= until_s]


def table(found: dict[int, dict[str, Side]]) -> Table:
    """Return a row for each load and mode. The spread of delays and runs is in ms: p50, p99.9 and worst."""
    grid = Table(
        title="Event loop with batches on the device thread and on the loop, in ms: p50 / p99.9 / worst",
        title_justify="left",
        caption="A sign of life every 2 ms measures the delay of the loop. The CPU of a run is that of the loop's "
        "thread: a run that takes longer has lost the CPU to another thread or process.",
        caption_justify="left",
    )
    grid.add_column("in flight", justify="right")
    grid.add_column("batches on")
    for name in ("p50 ms", "CPU s/1000", "delay of the loop", "runs/request", "run on the loop", "its CPU"):
        grid.add_column(name, justify="right")
    for in_flight, sides in found.items():
        for mode, side in sides.items():
            point = measurement.joined(side.points)
            share = len(side.runs) / (point.load.requests * (SECONDS + measurement.WARM_UP_S) / SECONDS)
            grid.add_row(
                str(in_flight),
                mode,
                f"{point.load.p50_ms:.3f}",
                f"{point.cpu_s_per_1000:.3f}",
                _spread([took_s for _, took_s, _ in side.delays]),
                f"{share:.2f}",
                _spread([took_s for _, took_s, _ in side.runs]),
                _spread([cpu_s for _, _, cpu_s in side.runs]),
            )
    return grid


def _spread(values_s: Sequence[float]) -> str:
    ordered_us = sorted(round(1e6 * value) for value in values_s)
    return " / ".join(f"{percentile(ordered_us, part) / 1000:.2f}" for part in (50, 99.9, 100)) if ordered_us else "-"


@click.command()
@click.option("--quick", is_flag=True, help="Take 2 turns instead of 6. Figures are approximate.")
def main(quick: bool) -> None:
    """Measure the latency, the CPU and the delays of the event loop, with and without runs on the loop.

    Needs h2load (Debian: nghttp2-client). Exit codes: 0 success, 1 a step failed, 2 usage error.
    """
    if "nghttp2-client" in missing_tools():
        raise click.UsageError("h2load is missing. Run: apt-get install nghttp2-client")
    exit_on_sigterm()
    with tempfile.TemporaryDirectory(prefix="tpuserve-loop-") as directory:
        scratch = Path(directory)
        folder = scratch / "probe"
        folder.mkdir()
        (folder / MOST_REQUESTS).write_text("0")
        base = scratch / "models" / "mlp"
        program = (sys.executable, "-m", "benchmarks.overhead.loop_probe")
        environment = {FOLDER: str(folder), "PYTHONPATH": str(ROOT)}
        load = os.getloadavg()[0]
        try:
            write_model(base, scratch)
            bodies = measurement.write_bodies(scratch)
            with model_server(base, scratch, environment=environment, program=program) as server:
                measurement.check_answer(server)
                found = measure(server["grpc"], folder, bodies, scratch, QUICK_ROUNDS if quick else ROUNDS)
                measurement.check_answer(server)
        except (ServerDied, ToolFailed, WrongAnswer) as error:
            raise click.ClickException(str(error)) from None
    console = Console(width=_WIDTH)
    console.print(table(found))
    console.print(f"gRPC. Load average before: {load:.1f} on {os.cpu_count()} cores.")


if __name__ == "__main__":
    main()
