"""DeviceQueue: the batches that have left the queue of one batcher, and when its device will be free."""

import itertools
import math
from collections import deque
from collections.abc import Sequence

from tpuserve_server.core.batching.task import Task

# Weight of the latest delay in the running mean. The excess of a delay over the mean is limited to this many standard
# deviations, or to the bound in seconds if that is larger. One long pause must not dominate the forecast.
_WEIGHT = 0.05
_MOST_SPREADS = 4.0
_LEAST_BOUND_S = 1e-3


class TakenBatch:
    """A batch that a device thread has taken. The device has it since `begun_s` if it is the thread's oldest."""

    __slots__ = ("begun_s", "is_hung", "run_s", "tasks")

    def __init__(self, tasks: Sequence[Task], begun_s: float, run_s: float) -> None:
        """Record a batch that should run for `run_s`, or 0 if that is unknown."""
        self.tasks = tasks
        self.begun_s = begun_s
        self.run_s = run_s
        self.is_hung = False


class DeviceQueue:
    """The only record of what the device threads of a batcher have. Predictions and the watchdog read it.

    A thread's batches run in the order in which it took them, even if the event loop runs them instead of the thread.
    Each begins at the end of the one before, so the error of one prediction does not pass to the next.

    The batcher's lock guards it, except `run_again`.
    """

    def __init__(self, threads: int) -> None:
        """Record the batches of `threads` idle device threads, numbered from 0."""
        self.threads = threads
        self._taken: list[deque[TakenBatch]] = [deque() for _ in range(threads)]
        # When the latest batch of each thread that has ended was expected to end.
        self._expected_s = [-math.inf] * threads
        # Mean and variance of the time from the expected to the actual begin of a batch.
        self._delay_s = self._variance = 0.0

    # Events of a batch.

    def take(self, thread: int, tasks: Sequence[Task], ready_s: float, now_s: float, run_s: float) -> None:
        """Record that a thread has taken a batch that was ready at `ready_s` and should run for `run_s`."""
        taken = self._taken[thread]
        if not taken:
            self._learn(now_s - max(self._expected_s[thread], ready_s))
        taken.append(TakenBatch(tasks, now_s, run_s))

    def drop(self, thread: int) -> None:
        """Forget the batch that a thread took last, because none of its tasks was alive."""
        self._taken[thread].pop()

    def end(self, thread: int, now_s: float) -> TakenBatch:
        """Remove and return a thread's oldest batch, which has been answered. The next one begins now."""
        taken = self._taken[thread]
        ended = taken.popleft()
        self._expected_s[thread] = expected_s = ended.begun_s + ended.run_s
        if taken:
            self._learn(now_s - expected_s)
            taken[0].begun_s = now_s
        return ended

    def run_again(self, thread: int, now_s: float) -> None:
        """Record that a thread runs a part of its oldest batch again. Only that thread calls this, without the lock."""
        self._taken[thread][0].begun_s = now_s

    # When the device will be free.

    @property
    def is_idle(self) -> bool:
        """Whether a device thread has no batch."""
        return not all(self._taken)

    @property
    def spread_s(self) -> float:
        """Standard deviation of the time from the expected to the actual begin of a batch."""
        return math.sqrt(self._variance)

    def start_s(self, now_s: float, work_s: float) -> float:
        """Predict when a batch begins that runs after waiting batches of `work_s`, in seconds of one device.

        Several threads share the work as if batches could be cut: each takes the next batch when it is free.
        """
        delay_s = self._delay_s if self._delay_s > 0.0 else 0.0
        if self.threads == 1:
            return self.free_s(now_s) + work_s + delay_s
        frees_s = sorted(_free_s(taken, now_s) for taken in self._taken)
        total_s = work_s
        for count, next_s in enumerate(frees_s[1:], 1):
            total_s += frees_s[count - 1]
            if total_s / count <= next_s:
                return total_s / count + delay_s
        return (total_s + frees_s[-1]) / self.threads + delay_s

    def free_s(self, now_s: float) -> float:
        """Predict when the first device thread will have run all its batches."""
        return min([_free_s(taken, now_s) for taken in self._taken])

    def _learn(self, delay_s: float) -> None:
        off_s = delay_s - self._delay_s
        if off_s > _LEAST_BOUND_S and off_s * off_s > _MOST_SPREADS * _MOST_SPREADS * self._variance:
            off_s = max(_MOST_SPREADS * self.spread_s, _LEAST_BOUND_S)
        self._delay_s += _WEIGHT * off_s
        self._variance = (1 - _WEIGHT) * (self._variance + _WEIGHT * off_s * off_s)

    # Batches that hang.

    def mark_hung(self, now_s: float, limit_s: float) -> tuple[list[TakenBatch], list[Task]]:
        """Mark the batches that have run for `limit_s`. Return the new ones, and the tasks of the batches behind."""
        hung: list[TakenBatch] = []
        behind: list[Task] = []
        for taken in self._taken:
            if taken and not taken[0].is_hung and now_s - taken[0].begun_s >= limit_s:
                first, *others = taken
                first.is_hung = True
                hung.append(first)
                behind += [task for one in others for task in one.tasks]
        return hung, behind

    def next_hung_s(self, now_s: float, limit_s: float) -> float:
        """Return the earliest time at which another batch may count as hung."""
        return min((one.begun_s for one in self._oldest(is_hung=False)), default=now_s) + limit_s

    def hung_since_s(self) -> float | None:
        """Return when the longest hung batch began, or None if none hangs."""
        return min((one.begun_s for one in self._oldest(is_hung=True)), default=None)

    def hung_threads(self) -> list[int]:
        """Return the threads whose batch hangs."""
        return [thread for thread, taken in enumerate(self._taken) if taken and taken[0].is_hung]

    def _oldest(self, *, is_hung: bool) -> list[TakenBatch]:
        return [taken[0] for taken in self._taken if taken and taken[0].is_hung is is_hung]


def _free_s(taken: deque[TakenBatch], now_s: float) -> float:
    """Return when a thread will have run its batches. The oldest ends now if it takes longer than expected."""
    if not taken:
        return now_s
    free_s = max(taken[0].begun_s + taken[0].run_s, now_s)
    for batch in itertools.islice(taken, 1, None):
        free_s += batch.run_s
    return free_s
