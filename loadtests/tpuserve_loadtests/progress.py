"""What a person sees while a run lasts: one line that is rewritten on a terminal, one line at the start elsewhere."""

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.text import Text

from tpuserve_loadtests.recorder import Recorder
from tpuserve_loadtests.report import PROTOCOL_TITLES


class Progress:
    """Use it in a `with` statement around the run; the line is gone when the run is over."""

    def __init__(self, duration_s: float, users_by_protocol: dict[str, int], console: Console) -> None:
        self._duration_s = duration_s
        self._users = ", ".join(f"{PROTOCOL_TITLES[name]} {users} users" for name, users in users_by_protocol.items())
        self._console = console
        # Refreshed by `tick` alone: a refreshing thread of its own would only be one more greenlet in the way.
        self._live = Live(console=console, auto_refresh=False, transient=True) if console.is_terminal else None

    def __enter__(self) -> Self:
        if self._live is None:
            self._console.print(f"Running for {self._duration_s:g} s: {self._users}", highlight=False, soft_wrap=True)
        else:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def tick(self, elapsed_s: float, recorder: Recorder) -> None:
        """Show how far the run is. Cheap; does nothing where there is no terminal."""
        if self._live is None:
            return
        requests, failures = recorder.counts()
        rate = requests / elapsed_s if elapsed_s > 0 else 0.0
        line = f"{elapsed_s:5.1f} s of {self._duration_s:g} s  {self._users}  {requests:,} requests"
        self._live.update(Text(f"{line}  {rate:,.0f}/s  {failures:,} failures"), refresh=True)
