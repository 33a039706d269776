"""Measure the client's CPU per prediction next to grpcio, httpx and the official stub, and its import. Linux only.

Run: `.venv/bin/python -m benchmarks client [imports] [predictions] [burst] [--quick] [--json]`. About 6 minutes, or 2
with `--quick`. The server runs in its own process, and its CPU is not counted. Libraries take turns in each round.
Figures are medians over the rounds.
"""

import gc
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import click
from rich.console import Console

# Hide TensorFlow's startup messages.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from benchmarks.client.imports import PROGRAMS, measure_import
from benchmarks.client.libraries import OWN, RAW
from benchmarks.client.report import Line, burst_lines, import_lines, prediction_lines, show, to_json
from benchmarks.client.turns import Turn, loads, measure_burst, measure_round
from benchmarks.harness.process_tree import ServerDied, exit_on_sigterm
from benchmarks.harness.targets import PROTOCOLS, Protocol, asgi_server, free_port
from tpuserve_client import Client, TpuserveError

WIDTH = 110
BURST_CALLS = 1000
READY_TIMEOUT_S = 60.0
SECTIONS = ("imports", "predictions", "burst")


@click.command()
@click.argument("sections", type=click.Choice(SECTIONS), nargs=-1)
@click.option("--rounds", default=9, show_default=True, type=click.IntRange(1, 100), help="Turns of each library.")
@click.option("--calls", default=1600, show_default=True, type=click.IntRange(1), help="Predictions of a turn.")
@click.option("--quick", is_flag=True, help="Run three rounds of 640 predictions. Figures are approximate.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document. Progress goes to standard error.")
def main(sections: tuple[str, ...], rounds: int, calls: int, quick: bool, as_json: bool) -> None:
    """Compare tpuserve_client with the libraries below it, by SECTION (default: all sections)."""
    if quick:
        rounds, calls = 3, 640
    exit_on_sigterm()
    # As in a process that only predicts: the collector must not visit TensorFlow's objects during the measurements.
    gc.freeze()
    progress = Console(stderr=True)
    progress.print(f"machine: {os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f} before the run")
    lines: list[Line] = []
    chosen = sections or SECTIONS
    try:
        if "imports" in chosen:
            lines += _imports(rounds)
        with running_server() as ports:
            if "predictions" in chosen:
                lines += prediction_lines(_predictions(ports, rounds, calls, progress))
            if "burst" in chosen:
                lines += _bursts(ports["rest"], rounds)
    except ServerDied as error:
        raise click.ClickException(str(error)) from None
    if as_json:
        click.echo(json.dumps(to_json(lines), indent=2))
    else:
        show(lines, Console(width=None if sys.stdout.isatty() else WIDTH))


def _imports(rounds: int) -> list[Line]:
    costs_ms: dict[str, list[float]] = {what: [] for what in PROGRAMS}
    for program in PROGRAMS.values():
        measure_import(program)  # compile the modules
    for _ in range(rounds):
        for what, program in PROGRAMS.items():
            costs_ms[what].append(measure_import(program))
    return import_lines(costs_ms)


def _predictions(ports: dict[Protocol, int], rounds: int, calls: int, progress: Console) -> Sequence[Turn]:
    turns: list[Turn] = []
    for number in range(rounds):
        for load in loads():
            turns += measure_round(load, ports, calls, number)
        progress.print(f"round {number + 1} of {rounds}", style="dim")
    return turns


def _bursts(port: int, rounds: int) -> list[Line]:
    # httpx takes half a minute of CPU for cold calls, so it has one turn.
    libraries = [RAW["rest"], *[OWN] * rounds]
    return burst_lines([measure_burst(library, port, BURST_CALLS) for library in libraries], BURST_CALLS)


@contextmanager
def running_server() -> Iterator[dict[Protocol, int]]:
    """Run the server for the duration of the block. Yield its ports. Raises ServerDied if it does not start."""
    port = free_port()
    # Connections stay open between the turns of a client.
    options = ("--timeout-keep-alive=600", "--timeout-request-header=600")
    with (
        tempfile.TemporaryDirectory(prefix="tpuserve-client-") as directory,
        asgi_server("benchmarks.client.server:app", port, Path(directory) / "server.log", *options) as tree,
    ):
        try:
            with Client(f"http://127.0.0.1:{port}") as client:
                client.wait_until_ready(READY_TIMEOUT_S)
        except TpuserveError as error:
            raise ServerDied(f"{error}\n{tree.log_tail()}") from None
        yield dict.fromkeys(PROTOCOLS, port)
