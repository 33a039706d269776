"""Telling people how an export goes: a live line on a terminal, plain lines elsewhere, nothing beside JSON."""

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import click
from rich.console import Console
from rich.markup import escape


@dataclass(slots=True)
class Step:
    """A step under way. Its `detail` is shown when it ends."""

    title: str
    detail: str = ""


class Progress(Protocol):
    """Where an export reports to."""

    def step(self, title: str) -> contextlib.AbstractContextManager[Step]:
        """Show `title` while the body runs, and how long it took."""
        ...

    def warn(self, message: str) -> None: ...


class SilentProgress:
    """Says nothing."""

    @contextlib.contextmanager
    def step(self, title: str) -> Iterator[Step]:
        yield Step(title)

    def warn(self, message: str) -> None:
        pass


class PlainProgress:
    """A line for each finished step, for logs."""

    @contextlib.contextmanager
    def step(self, title: str) -> Iterator[Step]:
        step, started = Step(title), time.monotonic()
        yield step
        click.echo(f"{step.title} ({time.monotonic() - started:.1f} s){_suffix(step)}")

    def warn(self, message: str) -> None:
        click.echo(f"warning: {message}")


class TerminalProgress:
    """A spinner for the step under way, a check mark for each that is done."""

    def __init__(self, console: Console) -> None:
        self._console = console

    @contextlib.contextmanager
    def step(self, title: str) -> Iterator[Step]:
        step, started = Step(title), time.monotonic()
        try:
            with self._console.status(escape(title)):
                yield step
        except BaseException:
            self._console.print(f"[red]✗[/] {escape(title)}", highlight=False)
            raise
        took = f"[dim]{time.monotonic() - started:.1f} s[/]"
        self._console.print(f"[green]✓[/] {escape(title)} {took}[dim]{escape(_suffix(step))}[/]", highlight=False)

    def warn(self, message: str) -> None:
        self._console.print(f"[yellow]! {escape(message)}[/]", highlight=False)


def _suffix(step: Step) -> str:
    return f": {step.detail}" if step.detail else ""
