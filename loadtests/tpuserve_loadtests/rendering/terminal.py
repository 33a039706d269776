"""A report on a terminal, or in a file to which a user redirects the output."""

from collections.abc import Sequence
from typing import Final

from rich.console import Console
from rich.markup import escape
from rich.measure import Measurement
from rich.table import Table as RichTable

from tpuserve_loadtests.rendering.parts import Printed, Table, Text
from tpuserve_loadtests.rendering.report import Report

# Width for output to a file, where Rich would wrap columns at 80 characters.
PLAIN_WIDTH: Final = 120
# Width to which names in a table's first column fold.
_FOLDED: Final = 16
_ANY_WIDTH: Final = 10_000


def print_report(report: Report, console: Console) -> None:
    """Print the report's tables and lines in order, PLAIN_WIDTH columns wide if the console is not a terminal."""
    if not console.is_terminal:
        console.width = PLAIN_WIDTH
    print_parts(report.printed(), console)


def print_parts(parts: Sequence[Printed], console: Console) -> None:
    """Print tables and lines in order, without a change to the console's width."""
    for part in parts:
        match part:
            case Text():
                console.print(part.text, markup=False, emoji=False, highlight=False, soft_wrap=not part.folds)
            case Table():
                _print_table(part, console)


def _print_table(table: Table, console: Console) -> None:
    if table.rows:
        console.print(_fitting(table, console))


def _fitting(table: Table, console: Console) -> RichTable:
    """Return the table with margins and spare columns as far as the terminal's width permits."""
    if table.margins == "always":
        return _rich(table, with_spare=True, has_margins=True)
    forms = [
        _rich(table, with_spare=with_spare, has_margins=has_margins)
        for with_spare in (True, False)
        for has_margins in (True, False)
    ]
    # Long names fold, so that they do not cost columns.
    longest = max(len(name) for name in (table.headings[0], *(row.name for row in table.rows)))
    folded = max(longest - _FOLDED, 0) if table.names == "fold" else 0
    return next((form for form in forms if _width(form, console) - folded <= console.width), forms[-1])


def _rich(table: Table, *, with_spare: bool, has_margins: bool) -> RichTable:
    shown = [with_spare or heading not in table.spare for heading in table.headings[1:]]
    rich = RichTable(title=escape(table.title), title_justify="left")
    rich.add_column(
        table.headings[0], justify="right" if table.names == "right" else "left", no_wrap=table.names != "fold"
    )
    for heading, is_shown in zip(table.headings[1:], shown, strict=True):
        if is_shown:
            rich.add_column(heading, justify="right", no_wrap=True)
    for row in table.rows:
        if row.is_total:
            rich.add_section()
        cells = [cell for cell, is_shown in zip(row.cells, shown, strict=False) if is_shown]
        rich.add_row(*map(escape, (row.name, *cells)), style="bold" if row.is_total else None)
    if not has_margins:
        rich.padding = (0, 0)
    return rich


def _width(table: RichTable, console: Console) -> int:
    return Measurement.get(console, console.options.update(max_width=_ANY_WIDTH), table).maximum
