"""How an export shows its progress: a live line on a terminal, plain lines elsewhere, nothing beside JSON.

A step of less than a second leaves no line, unless it fails or --verbose asks for all: its result is in the summary.
"""

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import click
from rich.console import Console
from rich.markup import escape
from rich.status import Status

from tpuserve_exporter.progress import Progress, Step
from tpuserve_exporter.reporting.held_signals import held_signals

# Where lines are all there is, a step that is longer says how far it is this often.
_REPEAT_S = 10.0
# A shorter step leaves no line.
_SHOWN_S = 1.0
# Characters of a bar.
_BAR = 20


class SilentProgress:
    """Says nothing."""

    @contextlib.contextmanager
    def step(self, title: str) -> Iterator[Step]:
        yield Step(title)

    def warn(self, message: str) -> None:
        pass


class PlainProgress:
    """A line for each finished step that took long, for logs; and now and then one on how far a long step is."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, *, verbose: bool = False) -> None:
        self._clock = clock
        self._least_s = 0.0 if verbose else _SHOWN_S

    @contextlib.contextmanager
    def step(self, title: str) -> Iterator[Step]:
        started = said = self._clock()

        def show(how_far: str) -> None:
            nonlocal said
            if self._clock() - said >= _REPEAT_S:
                said = self._clock()
                click.echo(f"{title}: {how_far} after {said - started:.0f} s")

        step = Step(title, show=show)
        yield step
        seconds = self._clock() - started
        if seconds >= self._least_s:
            click.echo(f"{step.title} ({seconds:.1f} s){_suffix(step)}")

    def warn(self, message: str) -> None:
        click.echo(f"warning: {message}")


class _BarStep(Step):
    """Says how far it is by a bar, too."""

    def advance(self, done: int, total: int) -> None:
        full = _BAR * done // max(total, 1)
        self.show(f"{'━' * full}{'╌' * (_BAR - full)} {done} of {total}")


class TerminalProgress:
    """A spinner for the step under way, a check mark for each that took long."""

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic, *, verbose: bool = False) -> None:
        self._console = console
        self._clock = clock
        self._least_s = 0.0 if verbose else _SHOWN_S

    @contextlib.contextmanager
    def step(self, title: str) -> Iterator[Step]:
        started = self._clock()
        status = self._console.status(escape(title))
        step = _BarStep(title, show=lambda how_far: status.update(f"{escape(title)} [dim]{how_far}[/]"))
        try:
            with held_signals():
                status.start()
            yield step
        except BaseException:
            self._end(status, f"[red]✗[/] {escape(title)}")
            raise
        seconds = self._clock() - started
        line = f"[green]✓[/] {escape(title)} [dim]{seconds:.1f} s[/][dim]{escape(_suffix(step))}[/]"
        self._end(status, line if seconds >= self._least_s else "")

    def _end(self, status: Status, line: str) -> None:
        """Put the line, or nothing, in the spinner's place, whatever signal comes: the next output has its own line."""
        with held_signals():
            status.stop()
            if line:
                self._console.print(line, highlight=False)

    def warn(self, message: str) -> None:
        with held_signals():
            self._console.print(f"[yellow]! {escape(message)}[/]", highlight=False)


@dataclass(frozen=True, slots=True)
class FinishedStep:
    """What a step was, how long it took, and whether it was the one that failed."""

    title: str
    seconds: float
    detail: str
    failed: bool = False


class RecordedProgress:
    """Another progress, of which the finished steps are kept for the report."""

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


def choose_progress(silent: bool, console: Console | None = None, *, verbose: bool = False) -> Progress:
    """Choose by where this process writes to: a notebook, a terminal, or a file or pipe."""
    console = console or Console()
    if silent:
        return SilentProgress()
    if console.is_jupyter:
        from tpuserve_exporter.reporting.notebook_progress import NotebookProgress

        return NotebookProgress.in_cell()
    if console.is_terminal:
        return TerminalProgress(console, verbose=verbose)
    return PlainProgress(verbose=verbose)


def _suffix(step: Step) -> str:
    return f": {step.detail}" if step.detail else ""
