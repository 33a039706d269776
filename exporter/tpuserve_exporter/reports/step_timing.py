"""Duration of steps, and the choice of those that leave a line."""

import time
from collections.abc import Callable

# Shorter steps leave no line. Their results are in the summary.
_SHOWN_S = 1.0


class StepTiming:
    """A timer of steps for a display. Steps of a second or more leave a line. With `verbose`, all steps do."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, *, verbose: bool = False) -> None:
        self.now = clock
        self._least_s = 0.0 if verbose else _SHOWN_S

    def describe(self, started: float) -> str:
        """Return `1.3 s` for a step that ends now, or an empty text if it leaves no line."""
        seconds = self.now() - started
        return f"{seconds:.1f} s" if seconds >= self._least_s else ""
