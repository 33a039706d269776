"""BatchQueue: requests that wait for the device, high priority first. Its owner provides the threads and the clock."""

import math
import threading
from collections.abc import Mapping, Sequence

from tpuserve_server.core.batching.arrays import choose_bucket
from tpuserve_server.core.batching.backlog import Backlog, ready_s
from tpuserve_server.core.batching.batch import Batch, BatchPolicy, SignatureRules
from tpuserve_server.core.batching.batch_metrics import BatchMetrics
from tpuserve_server.core.batching.cost_model import CostModel
from tpuserve_server.core.batching.demand import Demand
from tpuserve_server.core.batching.device_queue import DeadlineCheck
from tpuserve_server.core.batching.parameters import BatchingOptions
from tpuserve_server.core.batching.policies import POLICIES
from tpuserve_server.core.batching.task import QueueDepth, Task, complete, share_run
from tpuserve_server.core.terms.deadline import Clock, Deadline
from tpuserve_server.core.terms.errors import TooLate
from tpuserve_server.core.terms.priority import Priority
from tpuserve_server.core.terms.types import Signature

# After a refusal, requests are checked before they are decoded for this long.
_REFUSES_FOR_S = 1.0


class BatchQueue:
    """A backlog for each priority.

    A batch of low priority leaves when no batch of high priority is ready. Before that, its tasks replace padding in
    batches of high priority. Not thread-safe.
    """

    def __init__(
        self,
        signatures: Mapping[str, Signature],
        options: Mapping[str, BatchingOptions],
        max_enqueued_batches: int,
        costs: CostModel,
        deadlines: DeadlineCheck,
        *,
        low_priority_max_enqueued_batches: int | None = None,
    ) -> None:
        """Limit the waiting batches of each signature. The low-priority limit defaults to the other one.

        The costs of runs come from `costs`, which may change at any time. The mode of the options chooses the policy of
        a signature. `deadlines` refuses and drops tasks that cannot be in time.
        """
        low_limit = low_priority_max_enqueued_batches
        if low_limit is None:
            low_limit = max_enqueued_batches
        policies = {
            name: POLICIES[options[name].mode](name, options[name], costs, deadlines)
            if name in options
            else BatchPolicy(deadlines)
            for name in signatures
        }
        low_policies = {name: policy.for_low_priority() for name, policy in policies.items()}
        self._costs = costs
        # Tasks that `take` has dropped because they cannot be in time. The owner answers them and clears the list.
        self.hopeless: list[Task] = []
        self._high = Backlog(signatures, options, policies, max_enqueued_batches, costs, deadlines, self.hopeless)
        self._low = Backlog(signatures, options, low_policies, low_limit, costs, deadlines, self.hopeless)

    def __bool__(self) -> bool:
        """Return whether any task waits."""
        return bool(self._high.batches or self._low.batches)

    def add(self, task: Task) -> bool:
        """Queue a task whose `enqueued_s` is set.

        Return False if this changes nothing for the threads that wait for a batch.
        Raises:
            InvalidArgument: the task has more rows than a request may have, or sequences that cannot be padded.
            Unavailable: the queue of its priority is full.
            TooLate: the task would be answered later than its objective or its deadline.
        """
        return self._low.add(task, self._high.waiting.work_s) if task.priority else self._high.add(task)

    def check_deadline(self, signature_name: str, deadline: Deadline, priority: Priority, now_s: float) -> None:
        """Check whether a request that has not been decoded would be in time.

        Raises:
            TooLate: even a request of one row would be answered after its deadline.
        """
        if priority is Priority.HIGH:
            self._high.check_deadline(signature_name, deadline, now_s)
        else:
            self._low.check_deadline(signature_name, deadline, now_s, self._high.waiting.work_s)

    def lateness_s(self, deadline: Deadline, now_s: float) -> float:
        """Return by how many seconds a request of high priority would miss its deadline. See `Backlog.lateness_s`."""
        return self._high.lateness_s(deadline, now_s)

    def discard(self, task: Task) -> bool:
        """Remove a task, or its waiting parts, from its batch. Return False if it has already left the queue."""
        return (self._low if task.priority else self._high).discard(task)

    def drain(self) -> list[Task]:
        """Remove and return all tasks."""
        return [*self._high.drain(), *self._low.drain()]

    def queued(self) -> dict[str, QueueDepth]:
        """Return the waiting requests of both priorities, by signature."""
        depths = self._high.queued()
        for name, depth in self._low.queued().items():
            depths[name] = depths.get(name, QueueDepth()).plus(depth)
        return depths

    def take(self, now_s: float, *, closed: bool = False) -> list[Task]:
        """Remove and return the tasks of the next batch, or none if no batch is ready.

        With `closed`, return a batch only if a waiting batch gains no rows by waiting longer. A batch of low priority
        then also requires that no task of high priority waits.
        """
        high, low = self._high, self._low
        while high.batches and (batch := high.ready(now_s, closed=closed)) is not None:
            # None are left if none of them can be in time.
            if tasks := high.take(batch, now_s):
                return self._filled(batch, tasks) if low.batches else tasks
        if closed and high.batches:
            return []
        while low.batches and (batch := low.ready(now_s, closed=closed)) is not None:
            if tasks := low.take(batch, now_s):
                return tasks
        return []

    @property
    def has_closed(self) -> bool:
        """Whether `take` with `closed` may return a batch."""
        return self._high.has_closed if self._high.batches else self._low.has_closed

    def single(self) -> Batch | None:
        """Return the only waiting batch, ready or not, or None if none or several wait."""
        high, low = self._high.batches, self._low.batches
        if len(high) + len(low) != 1:
            return None
        [batches] = (high or low).values()
        return batches[0] if len(batches) == 1 else None

    def policy(self, signature_name: str, priority: Priority = Priority.HIGH) -> BatchPolicy:
        """Return the policy of a signature."""
        return self._rules(signature_name, priority).policy

    def price_s(self, task: Task) -> float:
        """Return the seconds of the device that a task needs under full load. See `SignatureRules.price_s`."""
        return self._rules(task.signature_name, task.priority).price_s(task)

    def is_possible(self, signature_name: str, deadline: Deadline, now_s: float) -> bool:
        """Return whether an idle server might answer a request that arrives now, by the fastest run of the signature.

        A request that no server can answer is no demand. The mean would not do: an overload raises it, and the demand
        would then fall while the server refuses most requests.
        """
        rules = self._high.rules.get(signature_name)
        if rules is None:
            return True
        return self._costs.fastest_s((signature_name,)) < min(deadline.remaining_s(now_s), rules.policy.objective_s)

    def run_s(self, tasks: Sequence[Task]) -> float:
        """Return the expected seconds on the device of a batch of these tasks, or 0 if they are unknown."""
        rows = tasks[0].rows if len(tasks) == 1 else sum(task.rows for task in tasks)
        return self._rules(tasks[0].signature_name, tasks[0].priority).run_s(rows, tasks[0].lengths)

    def next_s(self) -> float:
        """Return when a batch will be ready if no request arrives, or `inf` if none waits."""
        waiting = [*self._high.batches.values(), *self._low.batches.values()]
        return min(map(ready_s, waiting)) if waiting else math.inf

    def hurry(self) -> None:
        """Stop all waiting for more rows, from now on."""
        for backlog in (self._high, self._low):
            for rules in backlog.rules.values():
                rules.policy.hurry()

    def _rules(self, signature_name: str, priority: Priority) -> SignatureRules:
        """Return the rules of a signature. Those of a priority look up costs again as batches of it leave."""
        return (self._low if priority else self._high).rules[signature_name]

    def _filled(self, batch: Batch, tasks: list[Task]) -> list[Task]:
        """Return `tasks` and those of low priority that take the place of padding, where they cost nothing.

        Rows that are padded to the shape of others get none, because a long row would lengthen all rows of the batch.
        """
        first, rules = tasks[0], batch.rules
        if not first.shareable or (rules.pads and rules.free_rows):
            return tasks
        rows = sum(task.rows for task in tasks)
        room = min(choose_bucket(rows, rules.buckets), rules.max_rows) - rows
        fillers = self._low.take_up_to(room, batch.key)
        if fillers and first.run is not None:
            share_run(fillers, first.run)
        return [*tasks, *fillers]


class Refusals:
    """Counts requests that are late, and checks others before they are decoded for a second after each of them.

    Without late requests the check costs nothing. Thread-safe: it takes the batcher's lock for the queue. A lost update
    of its time is harmless.
    """

    def __init__(
        self,
        queue: BatchQueue,
        deadlines: DeadlineCheck,
        lock: threading.RLock,
        clock: Clock,
        metrics: BatchMetrics,
        demand: Demand,
    ) -> None:
        """Check the requests of `queue`, which `lock` guards, and count those that it refuses unread in `demand`."""
        self._id = deadlines.servable_id
        self._queue = queue
        self._deadlines = deadlines
        self._lock = lock
        self._clock = clock
        self._metrics = metrics
        self._demand = demand
        # Requests are checked before they are decoded until then. 0 if none has been refused for a while.
        self.until_s = 0.0

    def check(self, signature_name: str, deadline: Deadline, priority: Priority = Priority.HIGH) -> None:
        """Check whether a request would be in time, before it is decoded. Cheap.

        Raises:
            TooLate: even a request of one row would be answered after its deadline.
        """
        if not self.until_s:
            return
        now_s = self._clock.monotonic_s()
        with self._lock:
            try:
                self._queue.check_deadline(signature_name, deadline, priority, now_s)
            except TooLate:
                if self._queue.is_possible(signature_name, deadline, now_s):
                    self._demand.refused_unread(priority)
                self.refused(priority, now_s)
                raise
            if now_s > self.until_s:
                self.until_s = 0.0

    def lateness_s(self, deadline: Deadline, now_s: float) -> float:
        """Return by how many seconds a request of high priority for any signature would miss its deadline, or 0.

        It is 0, too, for a signature with a latency objective, and if no request has been refused lately.
        """
        if not self.until_s:
            return 0.0
        with self._lock:
            lateness_s = self._queue.lateness_s(deadline, now_s)
        if lateness_s:
            self.begin(now_s)
        return lateness_s

    def begin(self, now_s: float) -> None:
        """Check requests before they are decoded from now on, because one is late."""
        self.until_s = now_s + _REFUSES_FOR_S

    def refused(self, priority: Priority, now_s: float) -> None:
        """Count a request that was refused because it would be late."""
        self.begin(now_s)
        self._metrics.task_dropped(servable=self._id, reason="too_late", priority=priority)

    def answer(self, tasks: Sequence[Task], now_s: float) -> None:
        """Answer waiting tasks that cannot be in time any more."""
        self.begin(now_s)
        for task in tasks:
            if task.split_request is not None and task.split_request.failed:
                continue
            reason = "expired" if task.deadline.expired(now_s) else "too_late"
            self._metrics.task_dropped(servable=self._id, reason=reason, priority=task.priority)
            complete([(task, self._deadlines.hopeless_error(task.deadline, now_s))])
