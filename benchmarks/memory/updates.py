"""Measure the memory of a server whose model with large weights is updated several times. Linux only.

Run: `.venv/bin/python -m benchmarks updates [--megabytes 512] [--updates 10] [--json]`. About 2 minutes. The same with
TensorFlow's own allocator, which keeps the memory of unloaded versions, is the comparison.
"""

import dataclasses
import json
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click
import psutil
from rich.console import Console
from rich.table import Table

from benchmarks.harness import mlp_model
from benchmarks.harness.load_tools import ToolFailed
from benchmarks.harness.process_tree import ServerDied, exit_on_sigterm, started
from benchmarks.harness.targets import ROOT, Target, model_server
from benchmarks.memory import large_model
from benchmarks.reload.reload import POLL_FLAG, replace
from benchmarks.reload.tools import publish

ALLOCATORS: Final[Mapping[str, Mapping[str, str]]] = {
    "tpuserve": {},
    "TensorFlow's allocator": {"TF_ONEDNN_USE_SYSTEM_ALLOCATOR": "0"},
}
# Memory of the server without weights, and of what a load needs in addition.
REST_MB: Final = 250
_WRITE_TIMEOUT_S: Final = 600.0
# Value of /proc/PID/clear_refs that sets the peak to the present size (proc(5)).
_RESET_PEAK: Final = "5"


@dataclass(frozen=True, slots=True)
class Update:
    """Memory of the server in MB of 10^6 bytes: when it serves the new version alone, and the peak until then."""

    rss_mb: float
    peak_mb: float


@dataclass(frozen=True, slots=True)
class Updates:
    """The first load and the updates of a server. `weights_mb` is the size of the weights in MB of 10^6 bytes."""

    name: str
    weights_mb: float
    loads: list[Update]

    @property
    def peak_mb(self) -> float:
        """The largest size of all."""
        return max(load.peak_mb for load in self.loads)


def measure(
    name: str, template: Path, megabytes: int, updates: int, scratch: Path, program: Sequence[str] = ()
) -> Updates:
    """Start a server, and replace its version `updates` times. `program` as in `model_server`."""
    base = scratch / name.split()[0]
    base.mkdir()
    publish(template, base, 1)
    with model_server(base, scratch, POLL_FLAG, environment=ALLOCATORS[name], program=program) as server:
        loads = [_look(server["rest"])]
        for version in range(2, updates + 2):
            process = _process(server["rest"])
            Path(f"/proc/{process.pid}/clear_refs").write_text(_RESET_PEAK)
            replace(server["rest"], template, base, version)
            loads.append(_look(server["rest"]))
    return Updates(name, megabytes * 2**20 / 1e6, loads)


def _process(target: Target) -> psutil.Process:
    """Return the process that serves, and not its supervisor."""
    return max(target.tree.members, key=lambda member: member.memory_info().rss)


def _look(target: Target) -> Update:
    lines = Path(f"/proc/{_process(target).pid}/status").read_text().splitlines()
    sizes = {name: value.split() for name, _, value in (line.partition(":") for line in lines)}
    rss_mb, peak_mb = (int(sizes[name][0]) * 1024 / 1e6 for name in ("VmRSS", "VmHWM"))
    return Update(rss_mb, peak_mb)


def write_model(base: Path, megabytes: int, scratch: Path) -> Path:
    """Write the model in a separate process, and return the directory of its version."""
    command = [sys.executable, str(large_model.__file__), str(base), str(megabytes)]
    with started(command, scratch / "model.log", os.environ | {"PYTHONPATH": str(ROOT)}) as tree:
        tree.process.wait(_WRITE_TIMEOUT_S)
        version = base / str(mlp_model.VERSION)
        if not (version / "assets.extra").exists():
            raise ServerDied(f"The benchmark did not write its model:\n{tree.log_tail()}")
    return version


def print_report(found: list[Updates], console: Console) -> None:
    """Print each load, and the goal."""
    table = Table(title=f"Memory of the server, MB, with {found[0].weights_mb:.0f} MB of weights", title_justify="left")
    table.add_column("update", justify="right")
    for each in found:
        table.add_column(each.name, justify="right")
        table.add_column("peak", justify="right")
    for index, loads in enumerate(zip(*(each.loads for each in found), strict=True)):
        cells = (f"{size:.0f}" for load in loads for size in (load.rss_mb, load.peak_mb))
        table.add_row(str(index) if index else "start", *cells)
    console.print(table)
    most_mb = 2 * found[0].weights_mb + REST_MB
    verdict = "reached" if found[0].peak_mb <= most_mb else "MISSED"
    console.print(f"goal: a peak of at most {most_mb:.0f} MB, twice the weights: {found[0].peak_mb:.0f} MB, {verdict}")


@click.command()
@click.option("--megabytes", default=512, show_default=True, type=click.IntRange(64), help="Weights, in MiB.")
@click.option("--updates", default=10, show_default=True, type=click.IntRange(1, 1000))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document. Progress goes to standard error.")
def main(megabytes: int, updates: int, as_json: bool) -> None:
    """Measure resident memory and its peak during updates of a model with large weights.

    Exit codes: 0 success, 1 a step failed, 2 usage error.
    """
    exit_on_sigterm()
    progress = Console(stderr=True)
    with tempfile.TemporaryDirectory(prefix="tpuserve-updates-") as directory:
        scratch = Path(directory)
        try:
            progress.print("writing the model")
            template = write_model(scratch / "template", megabytes, scratch)
            found: list[Updates] = []
            for name in ALLOCATORS:
                progress.print(f"measuring {updates} updates: {name}", markup=False)
                found.append(measure(name, template, megabytes, updates, scratch))
        except (ServerDied, ToolFailed) as error:
            raise click.ClickException(str(error)) from None
    if as_json:
        click.echo(json.dumps([dataclasses.asdict(each) for each in found], indent=2))
    else:
        print_report(found, Console(width=100))


if __name__ == "__main__":
    main()
