"""Progress of an export in a notebook cell: a list of steps that is redrawn as it grows."""

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

from tpuserve_exporter.reports.step_timing import StepTiming
from tpuserve_exporter.terms.progress import Step
from tpuserve_formats.markup import Markup, element, join

_QUIET = "opacity:.65"


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


def _line(mark: str, text: str, detail: str) -> Markup:
    return element("div", join((f"{mark} {text} ", element("span", detail, style=_QUIET))))
