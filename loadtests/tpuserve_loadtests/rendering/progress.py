"""Progress of a run: a line that a capable terminal updates, or a single line at the start."""

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.text import Text

from tpuserve_loadtests.arrivals.load import Load
from tpuserve_loadtests.measurement.recorder import Counts


class Progress:
    """Progress line for use in a `with` statement around the run. It disappears when the run ends."""

    def __init__(self, load: Load, console: Console, title: str = "Running for") -> None:
        self._load = load
        self._title = title
        self._console = console
        # Only `tick` refreshes: a refresh thread would be another greenlet that delays requests.
        can_rewrite = console.is_terminal and not console.is_dumb_terminal
        self._live = Live(console=console, auto_refresh=False, transient=True) if can_rewrite else None

    def __enter__(self) -> Self:
        if self._live is None:
            line = f"{self._title} {self._load.total_s:.4g} s: {self._load}"
            self._console.print(line, highlight=False, soft_wrap=True)
        else:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def tick(self, elapsed_s: float, counts: Counts) -> None:
        """Show the progress. Cheap, and without effect if there is no terminal."""
        if self._live is None:
            return
        measured_s = elapsed_s - self._load.warm_up_s
        line = f"{self._title} {self._load.total_s:.4g} s: {elapsed_s:.1f} s"
        if measured_s > 0:
            rate = f"{counts.requests / measured_s:,.0f}/s"
            line += f"  {counts.requests:,} requests  {rate}  {counts.failures:,} failures"
        else:
            line += "  warming up"
        # Keep to one line on narrow terminals. The load is last, because the user knows it.
        self._live.update(Text(f"{line}  {self._load}", no_wrap=True, overflow="ellipsis"), refresh=True)
