"""Measure the memory of the server by path and part, next to each runtime alone in a process. Linux only.

Run: `.venv/bin/python -m benchmarks memory [--requests 1000] [--json]`. About a minute. All servers and
processes have the same MLP. The exporter writes it first.
"""

import dataclasses
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click
from rich.console import Console
from rich.table import Table

from benchmarks.harness import mlp_model
from benchmarks.harness.measurement import WrongAnswer, check_answer
from benchmarks.harness.process_tree import ServerDied, exit_on_sigterm
from benchmarks.harness.targets import MODEL_NAME, ROOT, Protocol, Target, model_server, write_model
from benchmarks.memory.bare import PROGRAMS, running
from benchmarks.memory.usage import Usage
from tpuserve_client import Client

# Path of the server -> the program that does the same without a server, and the flags.
PATHS: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    "SavedModel with TensorFlow": ("TensorFlow's session", ()),
    "device programs": ("JAX's programs", ("--device=cpu",)),
    "TensorFlow Lite": ("LiteRT's interpreter", ("--prefer_tflite_model",)),
}
MAX_PROGRAMS_MB: Final = 300.0
WIDTH = 130


@dataclass(frozen=True, slots=True)
class Measured:
    """A process tree when it is ready, and after requests to a server. `start_cpu_s` is the CPU time of its start."""

    name: str
    start_cpu_s: float
    idle: Usage
    loaded: Usage | None = None

    @property
    def usage(self) -> Usage:
        """The last measurement."""
        return self.loaded or self.idle


def measure_bare(name: str, version: Path) -> Measured:
    """Run the program, and measure it when it is ready."""
    with running(name, version) as ready:
        return Measured(name, ready.start_cpu_s, Usage.of([ready.process]))


def measure_server(path: str, base: Path, scratch: Path, requests: int) -> Measured:
    """Start a server, and measure it when it is ready and after `requests` requests."""
    with model_server(base, scratch, *PATHS[path][1]) as server:
        tree = server["grpc"].tree
        start_cpu_s = tree.cpu_seconds()
        idle = Usage.of(tree.members)
        send(server, requests)
        check_answer(server)
        return Measured(path, start_cpu_s, idle, Usage.of(tree.members))


def send(server: Mapping[Protocol, Target], requests: int) -> None:
    """Send requests of 1 to 32 rows over gRPC, one after the other."""
    with Client(f"127.0.0.1:{server['grpc'].port}") as client:
        for index in range(requests):
            client.predict(MODEL_NAME, {mlp_model.INPUT: mlp_model.example(1 + index % 32)})


def export_versions(scratch: Path) -> Path:
    """Return the base path of a version with a SavedModel, and one below `programs` and `lite` for the other paths."""
    base = scratch / "mlp"
    write_model(base, scratch)
    sizes = ",".join(map(str, mlp_model.BATCH_SIZES))
    for folder, flags in (("programs", ("--device-programs",)), ("lite", ("--also", "tflite"))):
        arguments = (str(base / "1"), str(scratch / folder), "--batch-sizes", sizes, *flags)
        command = [sys.executable, "-m", "tpuserve_exporter.command.exporting", *arguments]
        environment = os.environ | {"JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "3"}
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise ServerDied(f"The export of the model failed:\n{(done.stdout + done.stderr)[-2000:]}")
    return base


@click.command()
@click.option("--requests", default=1000, show_default=True, type=click.IntRange(1))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document. Progress goes to standard error.")
def main(requests: int, as_json: bool) -> None:
    """Measure RSS, PSS, private and anonymous memory of a server on each path, and of each runtime alone.

    Exit codes: 0 success, 1 a step failed, 2 usage error.
    """
    exit_on_sigterm()
    progress = Console(stderr=True)
    with tempfile.TemporaryDirectory(prefix="tpuserve-memory-") as directory:
        scratch = Path(directory)
        try:
            progress.print("exporting the models")
            base = export_versions(scratch)
            bases = dict(zip(PATHS, (base, scratch / "programs", scratch / "lite"), strict=True))
            versions = {rival: bases[path] / "1" for path, (rival, _) in PATHS.items()}
            bare: list[Measured] = []
            servers: list[Measured] = []
            for name in PROGRAMS:
                progress.print(f"measuring {name}", markup=False)
                bare.append(measure_bare(name, versions.get(name, base / "1")))
            for path in PATHS:
                progress.print(f"measuring the server: {path}", markup=False)
                servers.append(measure_server(path, bases[path], scratch, requests))
        except (ServerDied, WrongAnswer) as error:
            raise click.ClickException(str(error)) from None
    if as_json:
        click.echo(json.dumps({"bare": list(map(_plain, bare)), "servers": list(map(_plain, servers))}, indent=2))
    else:
        print_report(bare, servers, requests, Console(width=WIDTH))


def _plain(measured: Measured) -> dict[str, object]:
    return dataclasses.asdict(measured)


def print_report(bare: list[Measured], servers: list[Measured], requests: int, console: Console) -> None:
    """Print the processes, the ratios, the parts, and the goal."""
    table = Table(title="Memory of the process tree, MB", title_justify="left")
    for column in ("process", "start CPU s", "RSS", "PSS", "private", "anonymous", "RSS ÷ alone", "anonymous ÷ alone"):
        table.add_column(column, justify="left" if column == "process" else "right")
    for one in bare:
        table.add_row(one.name, f"{one.start_cpu_s:.1f}", *_cells(one.idle))
    alone = {one.name: one.idle for one in bare}
    for server in servers:
        table.add_row(f"server: {server.name}", f"{server.start_cpu_s:.1f}", *_cells(server.idle))
        rival = alone[PATHS[server.name][0]]
        ratios = (server.usage.rss / rival.rss, server.usage.anonymous / rival.anonymous)
        table.add_row(f"  after {requests} requests", "", *_cells(server.usage), *(f"{ratio:.2f}" for ratio in ratios))
    console.print(table)
    parts = Table(title="Parts of the server's RSS, MB", title_justify="left")
    names = sorted({name for server in servers for name in server.usage.parts})
    parts.add_column("server")
    for name in names:
        parts.add_column(name, justify="right")
    for server in servers:
        parts.add_row(server.name, *(f"{server.usage.parts.get(name, 0):.0f}" for name in names))
    console.print(parts)
    programs = next(server.usage.rss for server in servers if server.name == "device programs")
    verdict = "reached" if programs <= MAX_PROGRAMS_MB else "MISSED"
    console.print(f"goal: RSS of device programs at most {MAX_PROGRAMS_MB:.0f} MB: {programs:.0f} MB, {verdict}")


def _cells(usage: Usage) -> list[str]:
    return [f"{size:.0f}" for size in (usage.rss, usage.pss, usage.private, usage.anonymous)]


if __name__ == "__main__":
    main()
