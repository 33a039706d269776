"""How an export goes, in the cell of a notebook that it runs in: a list of steps that is shown anew as it grows."""

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

from tpuserve_exporter.progress import Step
from tpuserve_exporter.report_page.markup import Markup, element, join

_QUIET = "opacity:.65"


class NotebookProgress:
    """`show` replaces what the cell shows by this HTML."""

    def __init__(self, show: Callable[[str], None]) -> None:
        self._show = show
        self._done: list[Markup] = []

    @classmethod
    def in_cell(cls) -> "NotebookProgress":
        """In the cell that runs now. IPython is there wherever a notebook is."""
        from IPython.display import HTML, display

        handle: Any = display(HTML(""), display_id=True)
        return cls(lambda html: handle.update(HTML(html)))

    @contextlib.contextmanager
    def step(self, title: str) -> Iterator[Step]:
        started = time.monotonic()
        step = Step(title, show=lambda how_far: self._redraw(_line("…", title, how_far)))
        self._redraw(_line("…", title, ""))
        try:
            yield step
        except BaseException:
            self._add(_line("✗", title, ""))
            raise
        took = f"{time.monotonic() - started:.1f} s"
        self._add(_line("✓", title, f"{took}: {step.detail}" if step.detail else took))

    def warn(self, message: str) -> None:
        self._add(_line("!", message, ""))

    def _add(self, line: Markup) -> None:
        self._done.append(line)
        self._redraw()

    def _redraw(self, *running: Markup) -> None:
        self._show(element("div", *self._done, *running))


def _line(mark: str, text: str, beside: str) -> Markup:
    return element("div", join((f"{mark} {text} ", element("span", beside, style=_QUIET))))
