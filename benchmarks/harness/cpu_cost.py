"""CPU costs of the cases of a benchmark: rounds in which the cases take turns, and the table of their medians."""

import json
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Self, TypeVar

import click
from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks.harness.turns import in_turn

ROUNDS, QUICK_ROUNDS = 15, 5
WIDTH = 100

_Case = TypeVar("_Case")


@dataclass(frozen=True, slots=True)
class Cost:
    """CPU of a case in microseconds: the median, and the quartiles of the rounds."""

    name: str
    cpu_us: float
    low_us: float
    high_us: float
    limit_us: float | None

    @classmethod
    def of(cls, name: str, values_us: Sequence[float], limit_us: float | None) -> Self:
        """Return the cost of a case with a value for each round, of which there are at least two."""
        low_us, median_us, high_us = statistics.quantiles(values_us, n=4)
        return cls(name, median_us, low_us, high_us, limit_us)


def turns(cases: Sequence[_Case], rounds: int) -> Iterator[tuple[_Case, ...]]:
    """Yield all cases once in each round, so that they meet the same machine, in the order of `in_turn`."""
    for number in track(range(rounds), console=Console(stderr=True), transient=True):
        yield in_turn(cases, number)


def cost_table(costs: Sequence[Cost], *, title: str, part: str) -> Table:
    """Return a row for each cost, with its limit. `part` is the heading of the names."""
    grid = Table(title=title, title_justify="left")
    grid.add_column(part)
    for name in ("median", "quartiles", "limit", "verdict"):
        grid.add_column(name, justify="right")
    for cost in costs:
        limit = "" if cost.limit_us is None else f"<= {cost.limit_us:g}"
        verdict = "" if cost.limit_us is None else "reached" if cost.cpu_us <= cost.limit_us else "missed"
        grid.add_row(cost.name, f"{cost.cpu_us:.2f}", f"{cost.low_us:.2f} to {cost.high_us:.2f}", limit, verdict)
    return grid


def print_costs(costs: Sequence[Cost], table: Table, *, as_json: bool) -> None:
    """Print the table, or the costs as one JSON document."""
    if as_json:
        click.echo(json.dumps([asdict(cost) for cost in costs], indent=2))
    else:
        Console(width=None if sys.stdout.isatty() else WIDTH).print(table)
