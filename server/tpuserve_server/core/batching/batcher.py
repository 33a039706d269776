"""Batcher: a bounded queue for each loaded version, and the workers that run its batches on the device."""

import math
import threading
from functools import partial
from typing import TYPE_CHECKING

from tpuserve_server.core.batching.arrays import MAX_BUFFER_BYTES, BatchBuffers
from tpuserve_server.core.batching.batch_metrics import BatchMetrics
from tpuserve_server.core.batching.demand import Demand
from tpuserve_server.core.batching.device_queue import DeadlineCheck, DeviceQueue, HostDelay
from tpuserve_server.core.batching.device_share import DeviceShare
from tpuserve_server.core.batching.loop_runner import LoopRunner, LoopRuns
from tpuserve_server.core.batching.parameters import BatchingParameters
from tpuserve_server.core.batching.queue import BatchQueue, Refusals
from tpuserve_server.core.batching.run_threads import RunThreads
from tpuserve_server.core.batching.runner import BatchRunner
from tpuserve_server.core.batching.services import BatchedVersion, DeviceServices
from tpuserve_server.core.batching.task import QueueDepth, Task
from tpuserve_server.core.batching.watchdog import HungRuns
from tpuserve_server.core.terms.errors import TooLate, Unavailable

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from tpuserve_server.core.terms.types import ServableId


class _Worker:
    """Runs batches of a version one by one. It keeps a thread only while it runs.

    `turn` is its turn on the device. The batcher's lock guards `is_running`, `is_waiting` and `is_hung`. A worker is
    running while a thread takes and starts its batches. One that waits for a batch, for its turn or for a thread is not
    running. One that has ended counts as running. While `is_waiting`, a thread waits for the result of its oldest
    batch. If more batches may be in flight, another thread may run the worker meanwhile, and start the next one.
    """

    __slots__ = ("_run", "is_hung", "is_running", "is_waiting", "runner", "turn")

    def __init__(
        self,
        runner: BatchRunner,
        device: DeviceShare,
        servable_id: "ServableId",
        threads: RunThreads,
        run: "Callable[[_Worker], None]",
    ) -> None:
        self.runner = runner
        self.turn = device.turn(servable_id, partial(threads.submit, self))
        self.is_running = self.is_waiting = self.is_hung = False
        self._run = run

    def __call__(self) -> None:
        """Run on the calling thread until it waits."""
        self._run(self)


class Batcher:
    """Collects requests into batches and runs them.

    A batch is ready when it is full or has waited its timeout, which is 0 by default. It leaves when a worker is free
    and has its turn on the device. Rows gather until then. The event loop runs some batches itself (`LoopRunner`).

    Any number of event loops may submit tasks, and none of them waits for the device. `_changed` guards all state of
    the queue.
    """

    def __init__(
        self, version: BatchedVersion, parameters: BatchingParameters, services: DeviceServices[BatchMetrics]
    ) -> None:
        """Create the workers of `parameters`, each of which runs a batch at a time on the threads of `services`.

        They take turns with the workers of other models on the device of `services`, by the model's weight. Requests
        for a signature without options run one by one.

        Raises:
            ResourceExhausted: the system cannot start as many threads.
        """
        self._id = version.servable_id
        # Stands for this load of the version. Who keeps it does not keep the version in memory.
        self.mark = object()
        # How requests for a signature share batches. Those for other signatures run one by one.
        self.options = version.options
        # Maximum number of rows in a batch of a signature whose exporter has checked no sizes.
        self.default_rows = parameters.options().max_batch_size
        self._clock = services.clock
        self._metrics = services.metrics
        # The lock of `_changed` itself: a condition's `with` takes two more calls, for every request.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        servable, threads = version.servable, parameters.threads
        self._taken = DeviceQueue(threads, servable.max_in_flight)
        # Whether a worker starts a batch while a thread waits for the one before.
        self._overlaps = servable.max_in_flight // threads > 1
        self._host = HostDelay()
        deadlines = DeadlineCheck(self._id, self._taken, self._host)
        self._queue = BatchQueue(
            servable.signatures,
            version.options,
            parameters.queue_length,
            version.costs,
            deadlines,
            low_priority_max_enqueued_batches=parameters.low_priority_queue_length,
        )
        signatures = servable.signatures
        self._objectives = frozenset(name for name in signatures if self._queue.policy(name).has_objective)
        # The device time that requests have needed, admitted or refused.
        self.demand = Demand(threads)
        # Checks requests before they are decoded.
        self.refusals = Refusals(self._queue, deadlines, self._lock, self._clock, self._metrics, self.demand)
        self._stopping = False
        self._threads = RunThreads(self._clock) if services.threads is None else services.threads
        self._threads.join(threads)
        self._device = DeviceShare(threads) if services.device is None else services.device
        self._device.join(self._id, parameters.weight)
        self._workers = self._create_workers(version, services, threads)
        # The workers that may take a batch, those with batches in flight first, and the number that have not ended.
        self._idle = list(self._workers)
        self._open = threads
        # A runner belongs to one thread at a time, so the event loop needs an idle worker.
        self._loop_runner = LoopRunner(
            self._lock,
            self._idle,
            self._wake,
            self._queue,
            LoopRuns(servable.never_blocks and self._taken.runs_one),
            self._device.loops,
            self._clock,
            self._take_for_loop,
            self._run_for_loop,
        )
        self._hung = HungRuns(
            self._id,
            self._taken,
            self._changed,
            self._clock,
            self._metrics,
            drain=self._queue.drain,
            give_back=self._give_back,
            watchdog=services.watchdog,
        )
        self._hung.watch()

    def _create_workers(
        self, version: BatchedVersion, services: DeviceServices[BatchMetrics], count: int
    ) -> list[_Worker]:
        # Each worker gets an equal share of the in-flight limit, and buffers for it.
        in_flight = max(1, version.servable.max_in_flight // count)
        size_bytes = MAX_BUFFER_BYTES // (count * in_flight)
        workers = []
        for index in range(count):
            buffers = [BatchBuffers(size_bytes) for _ in range(in_flight)]
            runner = BatchRunner(index, version, services, buffers, self._taken, self._host)
            workers.append(_Worker(runner, self._device, self._id, self._threads, self._run))
        return workers

    def has_objective(self, signature_name: str) -> bool:
        """Return whether this signature has a latency objective."""
        return signature_name in self._objectives

    def record_latency(self, signature_name: str, latency_s: float) -> None:
        """Record a response of high priority that went out `latency_s` after its request arrived.

        The policy adjusts the part of an objective that it reserves for the host.
        """
        if signature_name in self._objectives:
            with self._lock:
                self._queue.policy(signature_name).record_latency(latency_s)

    def submit(self, task: Task) -> None:
        """Queue a task or refuse it at once. Called on the task's event loop.

        Raises:
            InvalidArgument: the task has more rows than a request may have, or sequences that cannot be padded.
            Unavailable: the queue is full, or the batcher is stopping.
            TooLate: the task would be answered later than its objective or its deadline.
        """
        task.enqueued_s = self._clock.monotonic_s()
        loop = task.future.get_loop()
        with self._lock:
            if self._stopping:
                raise Unavailable(f"Servable {self._id} is unloading")
            if self._hung.error is not None:
                raise self._hung.error.copy()
            try:
                if self._queue.add(task):
                    self._loop_runner.wake_soon(loop)
                self.demand.arrived(self._queue.price_s(task), task.priority)
            except Unavailable:
                self.demand.arrived(self._queue.price_s(task), task.priority)
                self._metrics.task_dropped(servable=self._id, reason="queue_full", priority=task.priority)
                raise
            except TooLate:
                if self._queue.is_possible(task.signature_name, task.deadline, task.enqueued_s):
                    self.demand.arrived(self._queue.price_s(task), task.priority)
                self.refusals.refused(task.priority, task.enqueued_s)
                raise

    def queued(self) -> dict[str, QueueDepth]:
        """Return the waiting requests by signature. Signatures without waiting requests are absent."""
        with self._changed:
            return self._queue.queued()

    def discard(self, task: Task, reason: str) -> bool:
        """Remove a task that its caller has given up from the queue, so that its place is free at once.

        Return False if it has already left the queue. `reason` is `expired` or `cancelled`, for the metrics.
        """
        with self._changed:
            if not self._queue.discard(task):
                return False
            if self._stopping:
                self._close_turns()
        if reason == "expired":
            self.refusals.begin(self._clock.monotonic_s())
        self._metrics.task_dropped(servable=self._id, reason=reason, priority=task.priority)
        return True

    def stop(self) -> None:
        """Run the queued tasks, refuse new ones, and wait until the workers have ended."""
        with self._changed:
            self._stopping = True
            self._queue.hurry()
            self._close_turns()
            while self._idle:
                self._threads.submit(self._idle.pop())
            self._changed.wait_for(lambda: not self._open)
            is_first, self._workers = bool(self._workers), []
        self._hung.forget()
        if is_first:
            self._device.leave(self._id)
            self._threads.leave()

    def hung_s(self) -> float:
        """Return for how long the longest hung run has taken, or 0 if none hangs."""
        return self._hung.hung_s()

    def _give_back(self, index: int) -> None:
        """End the turn of a worker that hangs, and let another thread take the place of its thread."""
        if self._workers:
            worker = self._workers[index]
            worker.turn.give_back()
            if worker.is_waiting and worker in self._idle:
                self._idle.remove(worker)
            if not worker.is_hung:
                worker.is_hung = True
                self._threads.replace()

    # The queue.

    def _close_turns(self) -> None:
        """Release the workers that wait for a turn if the queue is empty. Other models' batches must not delay them."""
        if not self._queue:
            for worker in self._workers:
                worker.turn.close()

    def _wake(self) -> None:
        """Let an idle worker look for a batch, if there is one. Called with the lock held."""
        # One with a batch in flight takes only a batch that gains no rows by waiting.
        if self._idle and (not self._idle[-1].is_waiting or self._queue.has_closed):
            self._threads.submit(self._idle.pop())

    def _wake_for_rest(self) -> None:
        """Let another worker look for more: one wake-up serves all tasks that were submitted together."""
        if self._idle and self._queue:
            self._wake()

    def _next_batch(self, worker: _Worker) -> list[Task] | None:
        """Return the tasks of a ready batch for which the worker has the turn.

        Behind batches in flight, return one only if some waiting batch gains no rows by waiting, else no tasks. Return
        None if the worker waits, or has stopped and drained the queue. It may then run on another thread at once.
        """
        with self._changed:
            if self._loop_runner.is_running:
                # The batch in flight is the loop's.
                self._loop_runner.hold()
                self._rest(worker)
                return None
            if self._taken.has_batch(worker.runner.thread):
                return self._take_following(worker)
            return self._take_first(worker)

    def _rest(self, worker: _Worker) -> None:
        """Let the worker wait for a batch."""
        self._idle.append(worker)
        worker.is_running = False

    def _take_first(self, worker: _Worker) -> list[Task] | None:
        turn = worker.turn
        while True:
            now_s = self._clock.monotonic_s()
            if turn.take():
                if tasks := self._take(worker.runner.thread, now_s):
                    self._wake_for_rest()
                    return tasks
            elif self._queue.next_s() <= now_s:
                if turn.line_up():
                    worker.is_running = False
                    return None
                continue
            turn.give_back()
            if self._stopping:
                self._open -= 1
                self._changed.notify_all()
            else:
                self._rest(worker)
                if (at_s := self._queue.next_s()) < math.inf:
                    self._threads.submit_at(worker, at_s)
            return None

    def _take_following(self, worker: _Worker) -> list[Task] | None:
        runner = worker.runner
        if runner.free_buffers and not worker.is_hung and worker.turn.take():
            tasks = self._take(runner.thread, self._clock.monotonic_s(), closed=True)
            self._wake_for_rest()
            return tasks
        if worker.is_waiting:
            worker.is_running = False
            return None
        return []

    def _take(self, thread: int, now_s: float, *, closed: bool = False) -> list[Task]:
        tasks = self._queue.take(now_s, closed=closed)
        if hopeless := self._queue.hopeless:
            self.refusals.answer(hopeless, now_s)
            hopeless.clear()
            if self._stopping:
                self._close_turns()
        if tasks:
            run = tasks[0].run
            assert run is not None, "the queue sets it"
            self._taken.take(thread, tasks, run.ready_s, now_s, self._queue.run_s(tasks))
        return tasks

    def _end(self, thread: int, run_s: float) -> None:
        """Record that a worker has answered its oldest batch, after `run_s` on the device. The lock must be held."""
        now_s = self._clock.monotonic_s()
        batch = self._taken.end(thread, now_s)
        if batch.is_hung:
            self._hung.ended()
            self._workers[thread].is_hung = False
            self._threads.restore()
        if not batch.run_s:
            self.demand.ran(run_s)
        first = batch.tasks[0]
        policy = self._queue.policy(first.signature_name, first.priority)
        if errors_s := policy.answered(batch.tasks, run_s, now_s):
            self._metrics.finish_predicted(
                servable=self._id, signature=first.signature_name, errors_s=errors_s, host_s=policy.host_s
            )

    # The workers.

    def _run(self, worker: _Worker) -> None:
        """Run batches until the worker waits. Called on a thread of `_threads`."""
        with self._changed:
            if worker.is_running or worker.turn.waits:
                # A time came while the worker was woken, too.
                return
            worker.is_running = True
            if worker in self._idle:
                self._idle.remove(worker)
        while self._run_next(worker):
            if self._threads.is_short:
                with self._changed:
                    worker.is_running = False
                self._threads.submit(worker)
                return

    def _run_next(self, worker: _Worker) -> bool:
        """Start or finish one batch and return whether to continue.

        A separate frame frees everything of the last batch while the worker waits for the next.
        """
        runner = worker.runner
        tasks = self._next_batch(worker)
        if tasks is None:
            return False
        if tasks:
            if not runner.start(tasks):
                # All its requests had ended.
                with self._changed:
                    self._taken.drop(runner.thread)
            if runner.free_buffers:
                # Another batch may follow at once.
                return True
        if not runner.runs:
            return True
        if self._overlaps and not self._begin_wait(worker):
            return False
        run_s = runner.finish()
        with self._changed:
            self._end(runner.thread, run_s)
            self._loop_runner.choice.ran_on_thread(tasks)
            worker.turn.used_s += run_s
            return not self._overlaps or self._end_wait(worker)

    # Batches in flight. Both methods are called by a thread that runs the worker.

    def _begin_wait(self, worker: _Worker) -> bool:
        """Let another thread start the batches that follow. Return False if that is this thread, so that it ends."""
        with self._changed:
            worker.is_running = False
            if worker.runner.free_buffers and not worker.is_hung:
                self._idle.insert(0, worker)
                if self._queue.has_closed:
                    # It was closed after the worker had looked.
                    self._wake()
            is_first = not worker.is_waiting
            worker.is_waiting = True
            return is_first

    def _end_wait(self, worker: _Worker) -> bool:
        """Return whether this thread goes on with the worker: no other one runs it. The lock must be held."""
        worker.is_waiting = False
        if worker.is_running:
            return False
        worker.is_running = True
        if worker in self._idle:
            self._idle.remove(worker)
        return True

    # The event loop instead of a worker.

    def _take_for_loop(self, now_s: float) -> list[Task]:
        """Return the tasks of the next batch, or none without the turn of the device. Called with the lock held."""
        return self._take(0, now_s) if not self._stopping and self._workers[0].turn.take() else []

    def _run_for_loop(self, tasks: list[Task], loop: "asyncio.AbstractEventLoop") -> float | None:
        """Run a batch. Return the seconds that the device was busy, or None if all requests had ended."""
        runner, turn = self._workers[0].runner, self._workers[0].turn
        run_s = runner.finish(loop) if runner.start(tasks) else None
        with self._lock:
            if run_s is None:
                self._taken.drop(0)
            else:
                self._end(0, run_s)
                turn.used_s += run_s
            turn.give_back()
        return run_s
