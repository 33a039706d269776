"""BatchQueue: what waits for the device, high priority before low. Threads and clock are its owner's."""

from collections.abc import Mapping, Sequence

from tpuserve_server.core.batching.admission import Admission
from tpuserve_server.core.batching.backlog import Backlog
from tpuserve_server.core.batching.batch import Batch
from tpuserve_server.core.batching.options import BatchingOptions
from tpuserve_server.core.batching.task import Task
from tpuserve_server.core.cost_model import CostModel
from tpuserve_server.core.padding import choose_bucket
from tpuserve_server.core.priority import Priority
from tpuserve_server.core.types import Signature


class BatchQueue:
    """A backlog of each priority. A batch of low priority leaves when none of high is ready; before that, its tasks
    stand in for padding in those of high. Not safe for threads.
    """

    def __init__(
        self,
        signatures: Mapping[str, Signature],
        options: Mapping[str, BatchingOptions],
        max_enqueued_batches: int,
        costs: CostModel,
        *,
        low_priority_max_enqueued_batches: int | None = None,
        admission: Admission | None = None,
    ) -> None:
        """The limits bound the batches that wait, for each signature; of low priority as many as of high by default.

        What runs cost is looked up in `costs`, which others may change meanwhile. `admission` is there where a
        signature has an objective.
        """
        low_limit = low_priority_max_enqueued_batches
        if low_limit is None:
            low_limit = max_enqueued_batches
        self._options = options
        self._high = Backlog(signatures, options, max_enqueued_batches, costs, admission)
        self._low = Backlog(signatures, options, low_limit, costs, admission)

    def __bool__(self) -> bool:
        """Whether anything waits."""
        return bool(self._high) or bool(self._low)

    def add(self, task: Task) -> bool:
        """Queue a task whose `enqueued_s` is set. False if nothing has changed for those who wait for a batch.

        Raises:
            InvalidArgument: it has more rows than a request may have, or longer ones.
            Unavailable: there is no room for its priority.
            TooLate: it would be answered later than its objective or its deadline.
        """
        return (self._low if task.priority else self._high).add(task)

    def discard(self, task: Task) -> bool:
        """Take a task, or what waits of its parts, out of its batch. False if it has left the queue already."""
        return (self._low if task.priority else self._high).discard(task)

    def take(self, now_s: float, *, closed: bool = False) -> list[Task]:
        """The tasks of the next batch, out of the queue; none if none is ready.

        `closed`: only if a batch waits that gains no rows by waiting longer, and none of higher priority beside it.
        """
        batch = self._high.ready(now_s, closed=closed)
        if batch is not None:
            tasks = self._high.take(batch, now_s)
            return [*tasks, *self._take_for_padding(batch, tasks)] if self._low else tasks
        if closed and self._high:
            return []
        batch = self._low.ready(now_s, closed=closed)
        return [] if batch is None else self._low.take(batch, now_s)

    def answered(self, tasks: Sequence[Task], run_s: float, now_s: float) -> None:
        """A batch that was taken has been answered, after `run_s` on the device: callers may be back in a moment."""
        if tasks[0].priority is Priority.HIGH:
            self._high.answered(tasks, run_s, now_s)

    def next_s(self) -> float:
        """When a batch will be ready, if nothing comes; `inf` if nothing waits."""
        return min(self._high.next_s(), self._low.next_s())

    def hurry(self) -> None:
        """Let no batch wait for more rows from now on."""
        self._high.hurry()
        self._low.hurry()

    def _take_for_padding(self, batch: Batch, tasks: list[Task]) -> list[Task]:
        """Tasks of low priority for the rows that would be padding: these cost nothing more.

        Not where rows are padded to each other's shape: a long one would make all the others as long.
        """
        first = tasks[0]
        if not first.shareable or (batch.lane.pads and batch.lane.free_rows):
            return []
        rows = sum(task.rows for task in tasks)
        bucket = choose_bucket(rows, self._options[first.signature_name].buckets)
        return self._low.take_up_to(min(bucket, batch.lane.max_rows) - rows, batch.key)
