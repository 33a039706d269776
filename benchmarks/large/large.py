"""Measure large requests: the copies of a tensor of 602 KB, and the delay of small requests next to JSON images.

Run: `.venv/bin/python -m benchmarks large [copies] [neighbours] [--quick] [--json]`. About 10 minutes.
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
from benchmarks.large import copies as copy_costs
from benchmarks.large import neighbours as latencies
from benchmarks.large.copies import CopyCost
from benchmarks.large.neighbours import Latency

WIDTH: Final = 100
PARTS: Final = ("copies", "neighbours")
# Turns, and seconds of each.
_TURNS, _QUICK_TURNS = (5, 4), (1, 1)


@click.command()
@click.argument("parts", type=click.Choice(PARTS), nargs=-1)
@click.option("--quick", is_flag=True, help="One turn of a second each: shows that all works.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document. Progress goes to standard error.")
def main(parts: Sequence[str], quick: bool, as_json: bool) -> None:
    """Measure the PARTS: copies of a large tensor, and small requests next to JSON images (default: both)."""
    if missing := missing_tools():
        raise click.UsageError(f"Load generators are missing. Run: apt-get install {' '.join(missing)}")
    rounds, seconds = _QUICK_TURNS if quick else _TURNS
    progress = Console(stderr=True)
    costs: list[CopyCost] = []
    found: list[Latency] = []
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        base = scratch / "models" / "mlp"
        write_model(base, scratch)
        try:
            if "copies" in (parts or PARTS):
                costs = copy_costs.measure(base, scratch, rounds=rounds, seconds=seconds, progress=progress.print)
            if "neighbours" in (parts or PARTS):
                found = latencies.measure(base, scratch, rounds=rounds, seconds=seconds, progress=progress.print)
        except (ServerDied, ToolFailed, WrongAnswer) as error:
            raise click.ClickException(str(error)) from None
    if as_json:
        document = {
            "copies": [{**asdict(cost), "copies": cost.copies} for cost in costs],
            "neighbours": [asdict(latency) for latency in found],
        }
        click.echo(json.dumps(document, indent=2))
        return
    console = Console(width=None if sys.stdout.isatty() else WIDTH)
    if costs:
        console.print(copy_table(costs))
    if found:
        console.print(latency_table(found))


def copy_table(costs: Sequence[CopyCost]) -> Table:
    """Return a row for each call."""
    grid = _table("CPU of a request in microseconds, one in flight", "request")
    for name in ("1 row", "602 KB", "a copy of 602 KB", "difference in copies"):
        grid.add_column(name, justify="right")
    for cost in costs:
        figures = (f"{figure_us:,.0f}" for figure_us in (cost.row_us, cost.image_us, cost.copy_us))
        grid.add_row(cost.name, *figures, f"{cost.copies:.1f}")
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
