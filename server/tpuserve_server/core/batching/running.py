"""RunningBatches: the batches that the device threads of one batcher have taken, and for how long the device runs."""

from collections import deque
from collections.abc import Sequence

from tpuserve_server.core.batching.task import Task


class _Running:
    """A batch that a device thread has taken. The device has it since `begun_s` if it is the thread's oldest."""

    __slots__ = ("begun_s", "is_hung", "tasks")

    def __init__(self, tasks: Sequence[Task], begun_s: float) -> None:
        self.tasks = tasks
        self.begun_s = begun_s
        self.is_hung = False


class RunningBatches:
    """The batches of all device threads. The batcher's lock guards it, except `run_again`.

    A thread's batches run in the order in which it took them.
    """

    def __init__(self, threads: int) -> None:
        """Record the batches of `threads` device threads."""
        self._count = threads
        self._by_thread: dict[int, deque[_Running]] = {}

    def started(self, thread: int, tasks: Sequence[Task], now_s: float) -> None:
        """Record that a thread has taken a batch."""
        running = self._by_thread.get(thread)
        if running is None:
            running = self._by_thread[thread] = deque()
        running.append(_Running(tasks, now_s))

    def dropped(self, thread: int) -> None:
        """Forget the batch that a thread took last, because none of its tasks was alive."""
        self._by_thread[thread].pop()

    def ended(self, thread: int, now_s: float) -> bool:
        """Forget a thread's oldest batch. The next begins now. Return whether the batch had counted as hung."""
        running = self._by_thread[thread]
        was_hung = running.popleft().is_hung
        if running:
            running[0].begun_s = now_s
        return was_hung

    def run_again(self, thread: int, now_s: float) -> None:
        """Record that a thread runs a part of its oldest batch again. Only that thread calls this, without the lock."""
        self._by_thread[thread][0].begun_s = now_s

    def mark_hung(self, now_s: float, limit_s: float) -> tuple[list[Task], list[Task]]:
        """Mark the batches that have run for `limit_s`. Return the tasks of new ones, and those of batches behind."""
        hung: list[Task] = []
        behind: list[Task] = []
        for running in self._by_thread.values():
            if running and not running[0].is_hung and now_s - running[0].begun_s >= limit_s:
                first, *others = running
                first.is_hung = True
                hung += first.tasks
                behind += [task for one in others for task in one.tasks]
        return hung, behind

    def next_s(self, now_s: float, limit_s: float) -> float:
        """Return the earliest time at which another batch may count as hung."""
        oldest = [running[0].begun_s for running in self._by_thread.values() if running and not running[0].is_hung]
        return min(oldest, default=now_s) + limit_s

    def hung_since_s(self) -> float | None:
        """Return when the longest hung batch began, or None if none hangs."""
        hung = [running[0].begun_s for running in self._by_thread.values() if running and running[0].is_hung]
        return min(hung, default=None)

    def all_hang(self) -> bool:
        """Return whether no device thread is left that could run another batch."""
        return sum(bool(running) and running[0].is_hung for running in self._by_thread.values()) == self._count

    def hung_threads(self) -> list[int]:
        """Return the threads whose batch hangs."""
        return [thread for thread, running in self._by_thread.items() if running and running[0].is_hung]
