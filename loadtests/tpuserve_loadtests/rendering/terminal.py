"""A report on a terminal or in a file to which a user redirects the output, and the progress line of a run."""

from collections.abc import Sequence
from typing import Final, Self

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.measure import Measurement
from rich.table import Table as RichTable
from rich.text import Text as RichText

from tpuserve_formats.counted import counted
from tpuserve_loadtests.arrivals.load import Load
from tpuserve_loadtests.measurement.live_figures import RECENT_S, LiveFigures, LivePeriod
from tpuserve_loadtests.measurement.recorder import Counts
from tpuserve_loadtests.rendering.report import Group, Remark, Report, Section, Table
from tpuserve_loadtests.rendering.scales import three_digits

# Width for output to a file, where Rich would wrap columns at 80 characters.
PLAIN_WIDTH: Final = 120
# Width to which names in a table's first column fold.
_FOLDED: Final = 16
_ANY_WIDTH: Final = 10_000


def print_report(report: Report, console: Console) -> None:
    """Print the opening and the sections, PLAIN_WIDTH columns wide if the console is not a terminal."""
    if not console.is_terminal:
        console.width = PLAIN_WIDTH
    page = report.page()
    _print(page.opening or page.headline.sentence, console, folds=not page.opening)
    if not report.terse:
        print_sections(page.sections, console)


def print_sections(sections: Sequence[Section], console: Console) -> None:
    """Print the sections of a page in order, without charts and without a change to the console's width."""
    for section in sections:
        match section:
            case Group() | Table() | Remark() if section.on == "page":
                pass
            case Group():
                _print(f"{section.title}.", console)
                _print(section.headline.sentence, console, folds=True)
                print_sections(section.sections, console)
            case Table() if section.rows:
                console.print(_fitting(section, console))
            case Remark():
                for line in section.lines:
                    _print(f"  {line}", console)


def _print(text: str, console: Console, *, folds: bool = False) -> None:
    # Lines that do not fold stay whole in files and pipes.
    console.print(text, markup=False, emoji=False, highlight=False, soft_wrap=not folds)


def _fitting(table: Table, console: Console) -> RichTable:
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
    rich = RichTable(title=escape(table.printed_title or table.title), title_justify="left")
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


# Without a terminal: seconds between lines, and the share of the time so far, so that long runs print few lines.
LINE_S: Final = 10.0
_LINE_SHARE: Final = 0.05


class Progress:
    """Progress for use in a `with` statement around the run.

    Rate and latencies are those of the last five seconds or, without a terminal, those since the previous line. On a
    terminal, the line disappears when the run ends.
    """

    def __init__(self, load: Load, console: Console, title: str = "Running for") -> None:
        self._load = load
        self._title = f"{title} {load.length}"
        self._console = console
        # Only `tick` refreshes: a refresh thread would be another greenlet that delays requests.
        can_rewrite = console.is_terminal and not console.is_dumb_terminal
        self._live = Live(console=console, auto_refresh=False, transient=True) if can_rewrite else None
        self._period = LivePeriod(RECENT_S if can_rewrite else 0.0)
        self._next_line_s = LINE_S

    def __enter__(self) -> Self:
        if self._live is None:
            self._print(f"{self._title}: {self._load}")
        else:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def tick(self, elapsed_s: float, counts: Counts) -> None:
        """Show the progress. Without a terminal, cheap and mostly without effect."""
        measured_s = elapsed_s - self._load.warm_up_s
        if self._live is not None:
            figures = self._period.advance(measured_s, counts)
            words = _words(figures, counts) if figures else "warming up"
            # Keep to one line on narrow terminals. The load is last, because the user knows it.
            line = f"{self._title}: {elapsed_s:.1f} s  {words}  {self._load}"
            self._live.update(RichText(line, no_wrap=True, overflow="ellipsis"), refresh=True)
        elif measured_s >= self._next_line_s and (figures := self._period.advance(measured_s, counts)):
            self._print(f"  {elapsed_s:.0f} s  {_words(figures, counts)}")
            self._next_line_s = measured_s + max(LINE_S, _LINE_SHARE * measured_s)

    def _print(self, line: str) -> None:
        self._console.print(line, highlight=False, soft_wrap=True)


def _words(figures: LiveFigures, counts: Counts) -> str:
    p50, p99 = ("-" if ms is None else f"{three_digits(ms)} ms" for ms in (figures.p50_ms, figures.p99_ms))
    ended = f"{counted(counts.failures, 'failure')}  {counted(counts.requests, 'request')}"
    return f"{figures.rate_per_s:,.0f}/s  p50 {p50}  p99 {p99}  {ended}"
