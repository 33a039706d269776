"""Progress displays of an export: a live line on a terminal, a list in a notebook cell, plain lines elsewhere.

A step of less than a second leaves no line unless it fails or the user sets --verbose. Its result is in the summary.
"""

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import click
from rich.console import Console
from rich.markup import escape
from rich.status import Status

from tpuserve_exporter.terms.progress import Progress, Step
from tpuserve_formats.markup import Markup, element, join

# Shorter steps leave no line.
_SHOWN_S = 1.0
# Interval between the lines of a long step in a log, in seconds.
_REPEAT_S = 10.0
# Width of a bar, in characters.
_BAR = 20
_QUIET = "opacity:.65"
_DELAYED = (signal.SIGINT, signal.SIGTERM)


def choose_progress(silent: bool, console: Console | None = None, *, verbose: bool = False) -> Progress:
    """Choose a display for this process's output: a notebook, a terminal, or a file or pipe."""
    console = console or Console()
    if silent:
        return SilentProgress()
    if console.is_jupyter:
        return NotebookProgress.in_cell(verbose=verbose)
    if console.is_terminal:
        return TerminalProgress(console, verbose=verbose)
    return PlainProgress(verbose=verbose)


class SilentProgress:
    """A display that shows nothing."""

    @contextlib.contextmanager
    def step(self, title: str) -> Iterator[Step]:
        yield Step(title)

    def warn(self, message: str) -> None:
        pass


class PlainProgress:
    """Lines for a log: one for each finished step that took long, and one every 10 seconds of a longer step."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, *, verbose: bool = False) -> None:
        self._timing = StepTiming(clock, verbose=verbose)

    @contextlib.contextmanager
    def step(self, title: str) -> Iterator[Step]:
        started = shown = self._timing.now()

        def show(how_far: str) -> None:
            nonlocal shown
            if self._timing.now() - shown >= _REPEAT_S:
                shown = self._timing.now()
                click.echo(f"{title}: {how_far} after {shown - started:.0f} s")

        step = Step(title, show=show)
        yield step
        if took := self._timing.describe(started):
            click.echo(f"{step.title} ({took}){_suffix(step)}")

    def warn(self, message: str) -> None:
        click.echo(f"warning: {message}")


class _BarStep(Step):
    """A step that shows its progress as a bar."""

    def advance(self, done: int, total: int) -> None:
        full = _BAR * done // max(total, 1)
        self.show(f"{'━' * full}{'╌' * (_BAR - full)} {done} of {total}")


class TerminalProgress:
    """A spinner for the running step, and a check mark for each finished step that took long."""

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic, *, verbose: bool = False) -> None:
        self._console = console
        self._timing = StepTiming(clock, verbose=verbose)

    @contextlib.contextmanager
    def step(self, title: str) -> Iterator[Step]:
        started = self._timing.now()
        status = self._console.status(escape(title))
        step = _BarStep(title, show=lambda how_far: status.update(f"{escape(title)} [dim]{how_far}[/]"))
        try:
            with delayed_signals():
                status.start()
            yield step
        except BaseException:
            self._end(status, f"[red]✗[/] {escape(title)}")
            raise
        took = self._timing.describe(started)
        self._end(status, f"[green]✓[/] {escape(title)} [dim]{took}{escape(_suffix(step))}[/]" if took else "")

    def _end(self, status: Status, line: str) -> None:
        """Replace the spinner with the line, or remove it. Signals wait, so that later output starts on a new line."""
        with delayed_signals():
            status.stop()
            if line:
                self._console.print(line, highlight=False)

    def warn(self, message: str) -> None:
        with delayed_signals():
            self._console.print(f"[yellow]! {escape(message)}[/]", highlight=False)


class NotebookProgress:
    """A display with a line for the running step, and a line for each finished step that took long.

    `show` replaces the output of the cell with HTML.
    """

    def __init__(
        self, show: Callable[[str], None], clock: Callable[[], float] = time.monotonic, *, verbose: bool = False
    ) -> None:
        self._show = show
        self._timing = StepTiming(clock, verbose=verbose)
        self._done: list[Markup] = []

    @classmethod
    def in_cell(cls, *, verbose: bool = False) -> "NotebookProgress":
        """Show progress in the running cell. IPython is installed wherever a notebook runs."""
        from IPython.display import HTML, display

        handle: Any = display(HTML(""), display_id=True)
        return cls(lambda html: handle.update(HTML(html)), verbose=verbose)

    @contextlib.contextmanager
    def step(self, title: str) -> Iterator[Step]:
        started = self._timing.now()
        step = Step(title, show=lambda how_far: self._redraw(_line("…", title, how_far)))
        self._redraw(_line("…", title, ""))
        try:
            yield step
        except BaseException:
            self._add(_line("✗", title, ""))
            raise
        if took := self._timing.describe(started):
            self._done.append(_line("✓", title, f"{took}: {step.detail}" if step.detail else took))
        self._redraw()

    def warn(self, message: str) -> None:
        self._add(_line("!", message, ""))

    def _add(self, line: Markup) -> None:
        self._done.append(line)
        self._redraw()

    def _redraw(self, *running: Markup) -> None:
        self._show(element("div", *self._done, *running))


@dataclass(frozen=True, slots=True)
class FinishedStep:
    """A finished step of an export, for the report."""

    title: str
    seconds: float
    detail: str
    failed: bool = False


class RecordedProgress:
    """A wrapper of another progress that keeps the finished steps for the report."""

    def __init__(self, shown: Progress) -> None:
        self._shown = shown
        self.steps: list[FinishedStep] = []

    @contextlib.contextmanager
    def step(self, title: str) -> Iterator[Step]:
        started, failed, step = time.monotonic(), True, Step(title)
        try:
            with self._shown.step(title) as step:
                yield step
            failed = False
        finally:
            self.steps.append(FinishedStep(title, round(time.monotonic() - started, 3), step.detail, failed))

    def warn(self, message: str) -> None:
        self._shown.warn(message)


class StepTiming:
    """A timer of steps for a display. Steps of a second or more leave a line. With `verbose`, all steps do."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, *, verbose: bool = False) -> None:
        self.now = clock
        self._least_s = 0.0 if verbose else _SHOWN_S

    def describe(self, started: float) -> str:
        """Return `1.3 s` for a step that ends now, or an empty text if it leaves no line."""
        seconds = self.now() - started
        return f"{seconds:.1f} s" if seconds >= self._least_s else ""


@contextlib.contextmanager
def delayed_signals() -> Iterator[None]:
    """Delay signals until the body ends, and then raise the first one. The body must be short.

    Python runs signal handlers only in the main thread, so this has no effect in other threads.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    # getsignal returns None for handlers of C code, which Python cannot restore.
    handlers = {number: handler for number in _DELAYED if (handler := signal.getsignal(number)) is not None}
    try:
        for number in handlers:
            signal.signal(number, lambda number, _frame: came.append(number))
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    if came:
        signal.raise_signal(came[0])


def _suffix(step: Step) -> str:
    return f": {step.detail}" if step.detail else ""


def _line(mark: str, text: str, detail: str) -> Markup:
    return element("div", join((f"{mark} {text} ", element("span", detail, style=_QUIET))))
