"""The preflight's result: a table for each topology, or a line for each program on a narrow terminal."""

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tpuserve_exporter.reports.preflight_section import (
    COLUMNS,
    Place,
    Row,
    cells,
    describe_place,
    list_together,
    place_of,
)

if TYPE_CHECKING:
    from tpuserve_exporter.programs.preflight import PreflightReport

_PASSED = "compiles and fits"
_NOTE = "Latencies are estimates from flops and bytes, without communication between devices. No TPU was used."
# The terminal width that a table needs, in columns.
_TABLE_WIDTH = 118


def print_preflight(console: Console, report: "PreflightReport") -> None:
    """Print every program by topology, followed by the memory of all its programs together."""
    rows = report.to_json()
    several = len({row["part"] for row in rows}) > 1
    together = list_together(report.together_to_json())
    for place, ones in groupby(rows, key=place_of):
        narrow = console.width < _TABLE_WIDTH
        if narrow:
            for line in _lines(place, ones, several):
                console.print(line, soft_wrap=True)
        else:
            console.print(_table(place, ones, several))
        if sentence := together.pop(place[:3], None):
            console.print(Text(f"{'  ' if narrow else ' '}{sentence}"), soft_wrap=True)
            console.print()
    console.print(Text(_NOTE, style="dim"), soft_wrap=True)


def print_suggestion(console: Console, report: "PreflightReport") -> None:
    """Print the suggested batch sizes if they differ from the checked ones."""
    if report.batch_sizes and set(report.batch_sizes) != {one.program.batch_size for one in report.verdicts}:
        sizes = ",".join(map(str, report.batch_sizes))
        others = "by these estimates, other sizes do not fit, or take as long as the next larger size"
        console.print(Text(f"Suggested: --batch-sizes {sizes} ({others})"), soft_wrap=True)


def _lines(place: Place, rows: Iterable[Row], several: bool) -> Iterator[Text]:
    yield Text(describe_place(place), style="bold")
    for row in rows:
        bucket, verdict, *numbers = cells(row)
        numbers_text = [f"{name} {value}" for name, value in zip(COLUMNS[2:], numbers, strict=True) if value]
        name = f"{row['part']} {bucket}" if several else bucket
        yield Text.assemble(f"  batch {name}: ", (verdict, _style(row)), "".join(f", {one}" for one in numbers_text))


def _table(place: Place, rows: Iterable[Row], several: bool) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False, title=describe_place(place))
    table.title_justify, table.title_style = "left", "bold"
    for name in COLUMNS:
        table.add_column(name, overflow="fold", justify="left" if name in COLUMNS[:2] else "right")
    for row in rows:
        bucket, verdict, *numbers = cells(row)
        table.add_row(f"{row['part']} {bucket}" if several else bucket, Text(verdict, _style(row)), *numbers)
    return table


def _style(row: Row) -> str:
    return "green" if row["verdict"] == _PASSED else "red"
