"""What the preflight found, as a table for each topology."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, TypeAlias

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tpuserve_exporter.report_page.preflight_section import COLUMNS, cells, describe_place, place_of

Rows: TypeAlias = Sequence[Mapping[str, Any]]

_PASSED = "compiles and fits"
NOTE = "Latencies are estimates from flops and bytes, without what devices exchange; no TPU was used."


def print_preflight(console: Console, rows: Rows, advice: Sequence[str], batch_sizes: Sequence[int]) -> None:
    """`rows` are PreflightReport.to_json()."""
    for table in _tables(rows):
        console.print(table)
    console.print(Text(NOTE, style="dim"), soft_wrap=True)
    for sentence in advice:
        console.print(Text(f"! {sentence}", style="yellow"), soft_wrap=True)
    if batch_sizes and set(batch_sizes) != {row["batch_size"] for row in rows}:
        sizes = ",".join(map(str, batch_sizes))
        console.print(
            Text(f"Suggested: --batch-sizes {sizes}. The others do not fit, or take as long as the next larger."),
            soft_wrap=True,
        )


def _tables(rows: Rows) -> Iterator[Table]:
    parts = {row["part"] for row in rows}
    for place, ones in groupby(rows, key=place_of):
        table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False, title=describe_place(place))
        table.title_justify, table.title_style = "left", "bold"
        for name in COLUMNS:
            table.add_column(name, overflow="fold", justify="left" if name in COLUMNS[:2] else "right")
        for row in ones:
            part = f"{row['part']} " if len(parts) > 1 else ""
            bucket, verdict, *numbers = cells(row)
            style = "green" if row["verdict"] == _PASSED else "red"
            table.add_row(part + bucket, Text(verdict, style=style), *numbers)
        yield table
