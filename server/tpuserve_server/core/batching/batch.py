"""Batch: tasks of one signature that will run together."""

import itertools
from collections.abc import Hashable
from dataclasses import dataclass

from tpuserve_server.core.batching.lane import Lane
from tpuserve_server.core.batching.task import Task


@dataclass(slots=True, eq=False)
class Batch:
    """Tasks that will run together. The last batch of a key accepts more tasks; the others are closed."""

    lane: Lane
    key: Hashable
    tasks: list[Task]
    rows: int
    # Expected seconds on the device, 0 if unknown. It is part of `lane.work` until the batch leaves.
    work_s: float = 0.0

    def __post_init__(self) -> None:
        self._weigh()

    @property
    def oldest_s(self) -> float:
        """Arrival time of the first task."""
        return self.tasks[0].enqueued_s

    @property
    def is_full(self) -> bool:
        """Whether no task can join."""
        return self.rows >= self.lane.max_rows or not (self.tasks == [] or self.tasks[0].shareable)

    def rows_to_run(self) -> int:
        """Return how many rows the padding policy runs now: whole tasks, unless the first task may be cut."""
        lane, tasks = self.lane, self.tasks
        if lane.plan is None:
            return self.rows
        if len(tasks) == self.rows or lane.may_cut(tasks[0]):
            return lane.plan.choose(self.rows, None, tasks[0].lengths)
        return lane.plan.choose(self.rows, list(itertools.accumulate(task.rows for task in tasks)), tasks[0].lengths)

    def append(self, task: Task) -> None:
        """Add a task. The caller checks that there is room for it."""
        task.batch = self
        self.tasks.append(task)
        self.rows += task.rows
        self._weigh()

    def remove(self, task: Task) -> None:
        """Remove a task whose caller no longer waits."""
        task.batch = None
        self.tasks.remove(task)
        self.rows -= task.rows
        self._weigh()

    def pop(self, rows: int) -> list[Task]:
        """Remove and return the first tasks, of at most `rows` rows in total.

        These are whole tasks, and the beginning of the next one if it may be cut. The rest of that task stays first.
        """
        left, count = rows, 0
        for task in self.tasks:
            if task.rows > left:
                break
            left -= task.rows
            count += 1
        popped = self.tasks[:count]
        del self.tasks[:count]
        if left and self.tasks and self.lane.may_cut(self.tasks[0]):
            popped.append(self._cut(left))
        for task in popped:
            task.batch = None
        self.rows -= sum(task.rows for task in popped)
        self._weigh()
        return popped

    def leave(self) -> None:
        """Take the batch out of the waiting work."""
        self.lane.work.seconds -= self.work_s
        self.work_s = 0.0

    def _weigh(self) -> None:
        work_s = self.lane.run_s(self.rows, self.tasks[0].lengths) if self.tasks else 0.0
        self.lane.work.seconds += work_s - self.work_s
        self.work_s = work_s

    def _cut(self, rows: int) -> Task:
        task = self.tasks[0]
        head, tail = task.split([rows, task.rows - rows])
        task.batch, tail.batch = None, self
        self.tasks[0] = tail
        return head
