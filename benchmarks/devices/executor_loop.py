"""Measure the executor of device programs next to JAX that calls the same programs in a loop, in one process.

    python -m benchmarks executor --base models/digits --device gpu --rows 1,32,256

The benchmark starts no server and needs no TensorFlow, so the figures are those of `server/.../executors/pjrt` alone:
the choice of the program, conversions, measurement of busy time, and the transfer of the outputs.
"""

import json
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import click
import jax
import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks.devices.program_loop import ProgramLoop, calls_per_second
from tpuserve_server.core.terms.deadline import SystemClock
from tpuserve_server.core.terms.servable import Executor, InFlight, Servable, VersionFiles
from tpuserve_server.core.terms.types import ServableId, Tensors
from tpuserve_server.executors.pjrt import Device, PjrtOptions
from tpuserve_server.executors.pjrt.executor import PjrtExecutor
from tpuserve_server.observe.metrics.measurements import DeviceMeasurements

SIGNATURE = "serving_default"
# Calls at a time: one shows the time of a call, two are what the server has on a TPU or GPU.
IN_FLIGHT = (1, 2)
LOG_WIDTH = 120


@dataclass(frozen=True, slots=True)
class Case:
    """Rows per second at one batch size, a figure per round. Rounds of the executor and of the loop alternate."""

    rows: int
    in_flight: int
    executor: list[float]
    loop: list[float]

    @property
    def ratio(self) -> float:
        """Median of the executor over median of the loop."""
        return statistics.median(self.executor) / statistics.median(self.loop)


def measure(version: Path, device: Device, rows: Sequence[int], rounds: int, seconds: float) -> list[Case]:
    """Measure each number of rows, with one call and with two calls at a time."""
    loop = ProgramLoop(version, device)
    servable = open_servable(version, device)
    cases = [Case(count, in_flight, [], []) for count in rows for in_flight in IN_FLIGHT]
    for case in cases:
        ways = (
            (case.executor, partial(rate, servable, random_inputs(servable, case.rows))),
            (case.loop, loop.rate),
        )
        for index in range(rounds):
            # The first turn after a pause may be slower, so each way begins every other round.
            for figures, way in ways if index % 2 else reversed(ways):
                figures.append(way(case.rows, seconds, case.in_flight))
    servable.close()
    return cases


def open_servable(version: Path, device: Device) -> Servable:
    """Load a version without host parts."""
    executor = PjrtExecutor(PjrtOptions(device), _no_host, DeviceMeasurements(), SystemClock())
    return executor.load(ServableId("model", 1), VersionFiles(version))


def _no_host() -> Executor:
    raise click.ClickException("This benchmark measures versions whose signatures all run as device programs.")


def random_inputs(servable: Servable, rows: int) -> Tensors:
    """Return inputs whose free dimension is the number of rows."""
    random = np.random.default_rng(0)
    tensors = servable.signatures[SIGNATURE].inputs
    return {
        name: random.random([rows if size is None else size for size in tensor.shape or ()]).astype(tensor.dtype)
        for name, tensor in tensors.items()
    }


def rate(servable: Servable, inputs: Tensors, rows: int, seconds: float, in_flight: int) -> float:
    """Return the rows per second of the executor, without the batcher."""
    start = partial(servable.dispatch, SIGNATURE, inputs, tuple(servable.signatures[SIGNATURE].outputs))
    return rows * calls_per_second(start, _result, seconds, in_flight)


def _result(run: InFlight) -> Tensors:
    return run.result()


def show(cases: Sequence[Case], console: Console) -> None:
    """Print a table of medians."""
    table = Table(box=box.SIMPLE_HEAD, title=f"Executor and loop on {jax.devices()[0].device_kind}, medians")
    for column in ("rows", "in flight", "executor, rows/s", "loop, rows/s", "ratio", "a call, ms"):
        table.add_column(column, justify="right")
    for case in cases:
        executor, loop = statistics.median(case.executor), statistics.median(case.loop)
        table.add_row(
            *(str(case.rows), str(case.in_flight), f"{executor:,.0f}", f"{loop:,.0f}"),
            *(f"{case.ratio:.3f}", f"{1000 * case.rows / executor:.3f}"),
        )
    console.print(table)


def _numbers(context: click.Context, parameter: click.Parameter, text: str) -> list[int]:
    try:
        return [int(number) for number in text.split(",")]
    except ValueError:
        raise click.BadParameter(f"'{text}' is not a list of numbers such as 1,32,256") from None


@click.command()
@click.option("--base", required=True, type=click.Path(exists=True, path_type=Path), help="Base path with version 1.")
@click.option("--rows", default="1,32,256", show_default=True, callback=_numbers, help="Sizes of its programs.")
@click.option("--device", type=click.Choice(["cpu", "gpu", "tpu"]), default="cpu", show_default=True)
@click.option("--rounds", default=3, show_default=True, help="Number of rounds. The medians count.")
@click.option("--seconds", default=2.0, show_default=True, help="Seconds of each figure.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document. The table goes to standard error.")
def main(base: Path, rows: list[int], device: Device, rounds: int, seconds: float, as_json: bool) -> None:
    """Compare the executor with a loop of the same programs."""
    cases = measure(base / "1", device, rows, rounds, seconds)
    show(cases, Console(stderr=as_json, width=None if sys.stdout.isatty() else LOG_WIDTH))
    if as_json:
        found = [{**asdict(case), "ratio": case.ratio} for case in cases]
        print(json.dumps({"device": jax.devices()[0].device_kind, "cases": found}, indent=2))
