"""Measure large requests: copies and throughput of a tensor, and the delay of small requests next to JSON images.

Run: `.venv/bin/python -m benchmarks large [copies] [throughput] [neighbours] [--quick] [--json]`. About 10 minutes.
"""

import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final

import click
from rich.console import Console
from rich.table import Table

from benchmarks.harness.load_tools import ToolFailed, missing_tools
from benchmarks.harness.measurement import WrongAnswer
from benchmarks.harness.process_tree import ServerDied
from benchmarks.harness.targets import write_model
from benchmarks.large import copies as copy_counts
from benchmarks.large import neighbours as latencies
from benchmarks.large import throughput as rates
from benchmarks.large.copies import CopyCount, CounterFailed
from benchmarks.large.neighbours import Latency
from benchmarks.large.throughput import ECHO, SERVER, SINK, Throughput
from benchmarks.large.ways import write_edge

WIDTH: Final = 100
PARTS: Final = ("copies", "throughput", "neighbours")
# Turns, and seconds of each.
_TURNS, _QUICK_TURNS = (5, 4), (1, 1)


@click.command()
@click.argument("parts", type=click.Choice(PARTS), nargs=-1)
@click.option("--quick", is_flag=True, help="One turn of a second each: shows that all works.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document. Progress goes to standard error.")
def main(parts: Sequence[str], quick: bool, as_json: bool) -> None:
    """Measure the PARTS (default: all): copies and throughput of large tensors, small requests next to JSON images."""
    if missing := missing_tools():
        raise click.UsageError(f"Load generators are missing. Run: apt-get install {' '.join(missing)}")
    rounds, seconds = _QUICK_TURNS if quick else _TURNS
    progress = Console(stderr=True)
    parts = parts or PARTS
    counts: list[CopyCount] = []
    found_rates: list[Throughput] = []
    found: list[Latency] = []
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        try:
            if "copies" in parts or "throughput" in parts:
                edge = write_edge(scratch)
            if "copies" in parts:
                counts = copy_counts.measure(edge, scratch, progress.print)
            if "throughput" in parts:
                found_rates = rates.measure(edge, scratch, rounds=rounds, seconds=seconds, progress=progress.print)
            if "neighbours" in parts:
                base = scratch / "models" / "mlp"
                write_model(base, scratch)
                found = latencies.measure(base, scratch, rounds=rounds, seconds=seconds, progress=progress.print)
        except (ServerDied, ToolFailed, WrongAnswer, CounterFailed) as error:
            raise click.ClickException(str(error)) from None
    if as_json:
        document = {
            "copies": [{**asdict(count), "server": count.server} for count in counts],
            "throughput": [{**asdict(rate), "limit_per_s": rate.limit_per_s} for rate in found_rates],
            "neighbours": [asdict(latency) for latency in found],
        }
        click.echo(json.dumps(document, indent=2))
        return
    console = Console(width=None if sys.stdout.isatty() else WIDTH)
    if counts:
        console.print(copy_table(counts))
    if found_rates:
        console.print(throughput_table(found_rates))
    if found:
        console.print(latency_table(found))


def copy_table(counts: Sequence[CopyCount]) -> Table:
    """Return a row for each way and size."""
    grid = _table("Copies of a large tensor in one request", "request")
    for name in ("size", "server", "host", "kernel"):
        grid.add_column(name, justify="right")
    for count in counts:
        grid.add_row(count.name, count.size, *(f"{copies:.2f}" for copies in (count.server, count.host, count.kernel)))
    return grid


def throughput_table(rates: Sequence[Throughput]) -> Table:
    """Return a row for each way and size."""
    grid = _table("Requests per second with large tensors", "request")
    for name in ("size", "server", "echo", "sink", "echo + copy", "server / (echo + copy)", "server / sink"):
        grid.add_column(name, justify="right")
    for each in rates:
        rate = each.rate_per_s
        shown = (f"{value:,.0f}" for value in (rate[SERVER], rate[ECHO], rate[SINK], each.limit_per_s))
        grid.add_row(each.name, each.size, *shown, f"{each.ratio:.2f}", f"{rate[SERVER] / rate[SINK]:.2f}")
    return grid


def latency_table(latencies: Sequence[Latency]) -> Table:
    """Return a row for each neighbour, and the ratio to the requests without neighbour."""
    grid = _table("Latency of small requests in ms, beside JSON images of 3.15 MB", "beside")
    for name in ("p50", "p99", "worst", "p99 ratio", "requests", "images"):
        grid.add_column(name, justify="right")
    alone = next(latency for latency in latencies if not latency.beside)
    for latency in latencies:
        figures = (f"{value_ms:.2f}" for value_ms in (latency.p50_ms, latency.p99_ms, latency.worst_ms))
        ratio = f"{latency.p99_ms / alone.p99_ms:.1f}"
        grid.add_row(latency.beside or "nothing", *figures, ratio, str(latency.small), str(latency.large))
    return grid


def _table(title: str, name: str) -> Table:
    grid = Table(title=title, title_justify="left")
    grid.add_column(name)
    return grid
