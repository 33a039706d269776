"""Compare OpenVINO with TensorFlow on ResNet-50: images per second by batch size, and greedy batches. Linux only.

Run: `.venv/bin/python -m benchmarks cpu_runtimes`. Takes about 8 minutes, including one or two to write the model.
`--model FOLDER` keeps the model for the next run, also of `resnet`. All processes run on loopback, and always end.
"""

import json
import statistics
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TypeVar

import click
from rich.console import Console
from rich.table import Table

from benchmarks.devices import resnet_model
from benchmarks.devices.resnet import FULL, GREEDY, IN_FLIGHT, WAYS, loop_process, write_body, write_model
from benchmarks.harness.load_tools import ToolFailed, missing_tools, run_h2load
from benchmarks.harness.process_tree import ServerDied, exit_on_sigterm
from benchmarks.harness.targets import GRPC_PATH, model_server

RUNTIMES = ("tensorflow", "openvino")
PRECISIONS = ("float32", "bfloat16")
GOAL_OF_OPENVINO, GOAL_OF_GREEDY = 1.25, 0.95

_Item = TypeVar("_Item")

# Images per second of each round, by runtime and precision, then by batch size.
Loops = dict[str, dict[int, list[float]]]
# Images per second of each round, by runtime, then by way of batching.
Served = dict[str, dict[str, list[float]]]


def measure_loops(base: Path, rounds: int, seconds: float) -> Loops:
    """Measure each runtime and precision in a loop of each batch size, in turns. Each is first in some round."""
    kinds = [(runtime, precision) for precision in PRECISIONS for runtime in RUNTIMES]
    found: Loops = {" ".join(kind): {rows: [] for rows in resnet_model.BATCH_SIZES} for kind in kinds}
    with ExitStack() as running:
        loops = {
            " ".join((runtime, precision)): running.enter_context(
                loop_process("session_loop.py", str(base / "1"), precision, runtime)
            )
            for runtime, precision in kinds
        }
        for number in range(rounds):
            for rows in resnet_model.BATCH_SIZES:
                for name in rotated(list(loops), number):
                    found[name][rows].append(loops[name].rate(rows, seconds))
    return found


def measure_served(base: Path, rounds: int, seconds: int, scratch: Path) -> Served:
    """Measure servers in bfloat16 over gRPC, with full and with greedy batches, in turns as `measure_loops`."""
    body = write_body(scratch)
    served: Served = {runtime: {way: [] for way in WAYS} for runtime in RUNTIMES}
    with ExitStack() as running:
        servers = {
            (runtime, way): running.enter_context(
                model_server(
                    base,
                    scratch,
                    "--mixed_precision=bfloat16",
                    f"--openvino={'auto' if runtime == 'openvino' else 'off'}",
                    *flags,
                    name=resnet_model.NAME,
                )
            )["grpc"]
            for runtime in RUNTIMES
            for way, flags in WAYS.items()
        }
        for number in range(rounds):
            for runtime, way in rotated(list(servers), number):
                load = run_h2load(
                    servers[runtime, way].port,
                    GRPC_PATH,
                    body,
                    in_flight=IN_FLIGHT,
                    duration_s=seconds,
                    scratch=scratch,
                )
                served[runtime][way].append(load.rate_per_s)
    return served


def rotated(items: list[_Item], number: int) -> list[_Item]:
    """Return the items, beginning with number `number`."""
    first = number % len(items)
    return items[first:] + items[:first]


@click.command(epilog="Exit codes: 0 success (the tables show missed goals), 1 a step failed.")
@click.option("--rounds", default=4, show_default=True, help="Number of rounds. The median counts.")
@click.option(
    "--seconds", default=4, show_default=True, help="Seconds per round of a loop; servers take 3 times as long."
)
@click.option("--model", type=click.Path(path_type=Path), help="Directory that keeps the model between runs.")
@click.option("--only", type=click.Choice(["loops", "served"]), help="Measure only the loops, or only the servers.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document. Progress goes to standard error.")
def main(rounds: int, seconds: int, model: Path | None, only: str | None, as_json: bool) -> None:
    """Compare OpenVINO with TensorFlow on ResNet-50, in loops and behind the server."""
    exit_on_sigterm()
    console = Console(stderr=as_json)
    if missing := missing_tools():
        raise click.ClickException(f"This benchmark needs h2load. Run: apt-get install {' '.join(missing)}")
    try:
        with tempfile.TemporaryDirectory(prefix="tpuserve-cpu-") as folder:
            base = (model or Path(folder)) / resnet_model.NAME
            if not (base / "1").exists():
                console.print("exporting ResNet-50")
                write_model(base.parent, Path(folder))
            loops = {} if only == "served" else measure_loops(base, rounds, seconds)
            served = {} if only == "loops" else measure_served(base, rounds, 3 * seconds, Path(folder))
    except (ServerDied, ToolFailed, OSError) as error:
        raise click.ClickException(str(error)) from None
    if loops:
        show_loops(loops, console)
    if served:
        show_served(served, console)
    if as_json:
        print(json.dumps({"loops": loops, "served": served}, indent=2))


def show_loops(loops: Loops, console: Console) -> None:
    """Print the images per second of the loops, and the ratio of OpenVINO to TensorFlow."""
    table = Table(title="ResNet-50 in a loop, images/s, medians")
    for column in ("runtime, precision", *(f"batches of {rows}" for rows in resnet_model.BATCH_SIZES)):
        table.add_column(column)
    for name, by_rows in loops.items():
        table.add_row(name, *(f"{statistics.median(rates):.1f}" for rates in by_rows.values()))
    for precision in PRECISIONS:
        goal = f" (goal ≥ {GOAL_OF_OPENVINO})" if precision == "bfloat16" else ""
        ratios = [
            statistics.median(ours) / statistics.median(theirs)
            for ours, theirs in zip(
                loops[f"openvino {precision}"].values(), loops[f"tensorflow {precision}"].values(), strict=True
            )
        ]
        table.add_row(f"openvino ÷ tensorflow, {precision}{goal}", *(f"{ratio:.2f}" for ratio in ratios))
    console.print(table)


def show_served(served: Served, console: Console) -> None:
    """Print the images per second of the servers, and the ratio of greedy to full batches."""
    table = Table(title=f"ResNet-50 over gRPC, bfloat16, {IN_FLIGHT} in flight, images/s, medians")
    for column in ("runtime", FULL, GREEDY, f"greedy ÷ full (goal ≥ {GOAL_OF_GREEDY})"):
        table.add_column(column)
    for runtime, ways in served.items():
        full, greedy = statistics.median(ways[FULL]), statistics.median(ways[GREEDY])
        table.add_row(runtime, f"{full:.1f}", f"{greedy:.1f}", f"{greedy / full:.3f}")
    console.print(table)
