"""Progress of a run: a line that a capable terminal updates, or a line at the start and then at intervals."""

from types import TracebackType
from typing import Final, Self

from rich.console import Console
from rich.live import Live
from rich.text import Text

from tpuserve_formats.counted import counted
from tpuserve_loadtests.arrivals.load import Load
from tpuserve_loadtests.measurement.live_figures import RECENT_S, LiveFigures, LivePeriod
from tpuserve_loadtests.measurement.recorder import Counts
from tpuserve_loadtests.rendering.units import three_digits

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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
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
            self._live.update(Text(line, no_wrap=True, overflow="ellipsis"), refresh=True)
        elif measured_s >= self._next_line_s and (figures := self._period.advance(measured_s, counts)):
            self._print(f"  {elapsed_s:.0f} s  {_words(figures, counts)}")
            self._next_line_s = measured_s + max(LINE_S, _LINE_SHARE * measured_s)

    def _print(self, line: str) -> None:
        self._console.print(line, highlight=False, soft_wrap=True)


def _words(figures: LiveFigures, counts: Counts) -> str:
    p50, p99 = ("-" if ms is None else f"{three_digits(ms)} ms" for ms in (figures.p50_ms, figures.p99_ms))
    ended = f"{counted(counts.failures, 'failure')}  {counted(counts.requests, 'request')}"
    return f"{figures.rate_per_s:,.0f}/s  p50 {p50}  p99 {p99}  {ended}"
