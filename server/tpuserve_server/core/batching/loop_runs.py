"""LoopRuns: whether the event loop may run a batch instead of a device thread.

A device thread costs a few requests for a small model more than the model itself: the thread wakes up, competes with
the event loop for the interpreter's lock, and wakes the loop again. Such a batch is cheaper on the loop, if it surely
ends soon.
"""

import math
from typing import Final

from tpuserve_server.core.batching.batch import Batch

# The event loop answers no other request during a run, so a run must be short.
MOST_RUN_S: Final = 0.0003
# More requests share the cost of the device thread, which leaves the loop time for other requests.
MOST_REQUESTS: Final = 4
# Two runs in succession that took this long in spite of their expected cost send the following runs to the device
# thread for a while. A single one may have lost the CPU to another process.
SLOW_RUN_S: Final = 0.001
PAUSE_S: Final = 1.0
# Each further slow pair doubles the pause, up to this. A run that is not slow halves it.
MOST_PAUSE_S: Final = 64.0


class LoopRuns:
    """The choice for one version, by the expected and the actual duration of runs. The batcher's lock guards it."""

    __slots__ = ("_not_before_s", "_pause_s", "_was_slow", "may_run")

    def __init__(self, may_run: bool) -> None:
        """Start without slow runs. `may_run`: the version and its threads allow runs on an event loop."""
        self.may_run = may_run
        self._not_before_s = -math.inf
        self._pause_s = PAUSE_S
        self._was_slow = False

    def allows(self, batch: Batch, now_s: float) -> bool:
        """Return whether a batch that is ready may run on the event loop. Its expected seconds must be known."""
        is_short = 0.0 < batch.work_s <= MOST_RUN_S and batch.has_sure_cost
        return is_short and len(batch.tasks) <= MOST_REQUESTS and now_s >= self._not_before_s

    def ended(self, run_s: float, now_s: float) -> None:
        """Record the duration of a run on the event loop."""
        is_slow = run_s >= SLOW_RUN_S
        if not is_slow:
            self._pause_s = max(self._pause_s / 2, PAUSE_S)
        elif self._was_slow:
            self._not_before_s = now_s + self._pause_s
            self._pause_s = min(2 * self._pause_s, MOST_PAUSE_S)
        self._was_slow = is_slow and not self._was_slow
