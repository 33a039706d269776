"""DeviceForecast: predicts when the device threads of a batcher will be free."""

import heapq
import math
from collections import deque
from collections.abc import Sequence

# Weight of the latest delay in the running mean. The excess of a delay over the mean is limited to this many standard
# deviations, or to the bound in seconds if that is larger. One long pause must not dominate the forecast.
_WEIGHT = 0.05
_MOST_SPREADS = 4.0
_LEAST_BOUND_S = 1e-3


class DeviceForecast:
    """Expected ends of the running batches, and how far actual starts deviate from the forecast. Not thread-safe."""

    def __init__(self, devices: int) -> None:
        """Forecast for `devices` idle threads."""
        self._devices = devices
        # By thread, in the order of their starts. A thread that runs a batch at a time has at most one.
        self._ends: dict[int, deque[float]] = {}
        self._last_end_s: dict[int, float] = {}
        self._delay_s = 0.0
        self._variance = 0.0

    @property
    def spread_s(self) -> float:
        """Standard deviation of the difference between a batch's start and its forecast."""
        return math.sqrt(self._variance)

    def started(self, thread: int, now_s: float, ready_s: float, run_s: float) -> None:
        """Record that a thread has taken a batch that should run for `run_s`. Its oldest task arrived at `ready_s`."""
        ends = self._ends.setdefault(thread, deque())
        self._learn(now_s - max(self._last_end_s.get(thread, -math.inf), ready_s))
        end_s = max(now_s, ends[-1] if ends else now_s) + run_s
        ends.append(end_s)
        self._last_end_s[thread] = end_s

    def finished(self, thread: int) -> None:
        """Record that a thread has finished the oldest batch that it began."""
        self._ends[thread].popleft()

    def dropped(self, thread: int) -> None:
        """Record that a thread did not run the last batch that it took."""
        ends = self._ends[thread]
        ends.pop()
        self._last_end_s[thread] = ends[-1] if ends else -math.inf

    def start_s(self, now_s: float, runs_s: Sequence[float]) -> float:
        """Return when a batch can start that runs after those of `runs_s`, none of which has begun."""
        if self._devices == 1:
            return self._alone_s(now_s) + sum(runs_s) + max(self._delay_s, 0.0)
        ends = [max(now_s, ends[-1]) for ends in self._ends.values() if ends]
        ends += [now_s] * (self._devices - len(ends))
        heapq.heapify(ends)
        for run_s in runs_s:
            heapq.heapreplace(ends, ends[0] + run_s)
        return ends[0] + max(self._delay_s, 0.0)

    def _alone_s(self, now_s: float) -> float:
        for ends in self._ends.values():
            if ends and ends[-1] > now_s:
                return ends[-1]
        return now_s

    def _learn(self, delay_s: float) -> None:
        off_s = min(delay_s - self._delay_s, max(_MOST_SPREADS * self.spread_s, _LEAST_BOUND_S))
        self._delay_s += _WEIGHT * off_s
        self._variance = (1 - _WEIGHT) * (self._variance + _WEIGHT * off_s * off_s)
