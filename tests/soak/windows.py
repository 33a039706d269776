"""Windows: periods in which a fault explains outcomes that are otherwise a failure of the server."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from tests.soak.outcome import Outcome


@dataclass(slots=True)
class Window:
    """The period of one fault. `explains` returns for a model and an outcome whether the fault allows it."""

    cause: str
    explains: Callable[[str, Outcome], bool]
    from_s: float
    until_s: float = math.inf


class Windows:
    """The windows of a run. Used by one event loop."""

    def __init__(self) -> None:
        self._windows: list[Window] = []

    def open(self, cause: str, at_s: float, explains: Callable[[str, Outcome], bool]) -> Window:
        """Begin a window. The caller sets its end."""
        window = Window(cause, explains, at_s)
        self._windows.append(window)
        return window

    def cause(self, model: str, outcome: Outcome, from_s: float, until_s: float) -> str:
        """Return the fault that explains the outcome of a request that began and ended at these times, or ""."""
        for window in reversed(self._windows):
            if window.from_s <= until_s and from_s <= window.until_s and window.explains(model, outcome):
                return window.cause
        return ""
