"""Batcher: a bounded queue for each loaded version, and the threads that run its batches on the device."""

import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING

from tpuserve_server.core.batching.admission import Admission
from tpuserve_server.core.batching.arrays import MAX_BUFFER_BYTES, BatchBuffers
from tpuserve_server.core.batching.batch_metrics import BatchMetrics
from tpuserve_server.core.batching.cost_model import CostModel
from tpuserve_server.core.batching.device_queue import DeadlineCheck, DeviceQueue, HostDelay
from tpuserve_server.core.batching.device_share import DeviceShare, Turn
from tpuserve_server.core.batching.lane import LEAST_RUN_S
from tpuserve_server.core.batching.loop_runner import LoopRunner, LoopRuns
from tpuserve_server.core.batching.parameters import BatchingOptions, BatchingParameters
from tpuserve_server.core.batching.queue import BatchQueue, Refusals
from tpuserve_server.core.batching.runner import BatchRunner
from tpuserve_server.core.batching.task import QueueDepth, Task
from tpuserve_server.core.batching.watchdog import HungRuns, Watchdog
from tpuserve_server.core.system.threads import name_thread
from tpuserve_server.core.terms.deadline import WaitingClock
from tpuserve_server.core.terms.errors import ResourceExhausted, TooLate, Unavailable
from tpuserve_server.core.terms.servable import Servable
from tpuserve_server.core.terms.tracer import SpanRecorder
from tpuserve_server.core.terms.types import ServableId

if TYPE_CHECKING:
    import asyncio


class Batcher:
    """Collects requests into batches and runs them.

    A batch is ready when it is full or has waited its timeout, which is 0 by default. It leaves when a device thread is
    free and has its turn on the device. Rows gather until then. The event loop runs some batches itself (`LoopRunner`).

    Any number of event loops may submit tasks, and none of them waits for the device. `_changed` guards all state of
    the queue.
    """

    def __init__(
        self,
        servable_id: ServableId,
        servable: Servable,
        options: Mapping[str, BatchingOptions],
        *,
        parameters: BatchingParameters,
        clock: WaitingClock,
        metrics: BatchMetrics,
        costs: CostModel | None = None,
        device: DeviceShare | None = None,
        watchdog: Watchdog | None = None,
        spans: SpanRecorder | None = None,
    ) -> None:
        """Start the device threads of `parameters`, each of which runs a batch at a time.

        They take turns with the threads of other models on `device`, by the model's weight. Without `device` the
        batcher has a separate one. `watchdog` finds runs that hang. `spans` gets the batches.

        Requests for a signature that is not in `options` run one by one. The batcher adds the measured costs of runs to
        `costs`, which may already hold some.

        Raises:
            ResourceExhausted: the system cannot start all threads. Those that were started are stopped.
        """
        self._id = servable_id
        self._options = options
        self._default_rows = parameters.options().max_batch_size
        self._clock = clock
        self._metrics = metrics
        self._costs = CostModel() if costs is None else costs
        # The lock of `_changed` itself: a condition's `with` takes two more calls, for every request.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._taken = DeviceQueue(parameters.threads)
        self._admission: Admission | None = None
        if any(sizes.objective is not None for sizes in options.values()):
            self._admission = Admission(servable_id, options, self._costs, self._taken)
        self._host = HostDelay()
        self._deadlines = DeadlineCheck(servable_id, self._taken, self._host)
        self._queue = BatchQueue(
            servable.signatures,
            options,
            parameters.queue_length,
            self._costs,
            low_priority_max_enqueued_batches=parameters.low_priority_queue_length,
            admission=self._admission,
            deadlines=self._deadlines,
        )
        # Checks requests before they are decoded.
        self.refusals = Refusals(servable_id, self._queue, self._deadlines, self._lock, clock, metrics)
        # Regrouping needs one batch at a time: then the callers that come back are those of the batch that has just
        # ended.
        self._regroups = parameters.threads == 1 and servable.max_in_flight == 1
        self._stopping = False
        self._device = DeviceShare(parameters.threads) if device is None else device
        self._device.join(servable_id, parameters.weight)
        self._turns = [self._device.turn(servable_id) for _ in range(parameters.threads)]
        self._threads: list[threading.Thread] = []
        self._runners: list[BatchRunner] = []
        # A runner belongs to one thread at a time, so the event loop needs an idle one.
        may_run = servable.never_blocks and parameters.threads == 1 and servable.max_in_flight == 1
        self._loop_runner = LoopRunner(
            self._changed,
            self._queue,
            LoopRuns(may_run),
            self._device.loops,
            clock,
            self._take_for_loop,
            self._run_for_loop,
        )
        self._hung = HungRuns(
            servable_id,
            self._taken,
            self._changed,
            clock,
            metrics,
            drain=self._queue.drain,
            give_back=self._give_back,
            watchdog=watchdog,
        )
        self._start(servable, watchdog, spans)
        self._hung.watch()

    def _start(self, servable: Servable, watchdog: Watchdog | None, spans: SpanRecorder | None) -> None:
        count = len(self._turns)
        # Each thread gets an equal share of the in-flight limit, and buffers for it.
        in_flight = max(1, servable.max_in_flight // count)
        size_bytes = MAX_BUFFER_BYTES // (count * in_flight)
        for index, turn in enumerate(self._turns):
            buffers = [BatchBuffers(size_bytes) for _ in range(in_flight)]
            runner = BatchRunner(
                index,
                self._id,
                servable,
                self._options,
                buffers,
                self._clock,
                self._metrics,
                self._costs,
                self._host,
                self._taken,
                watchdog,
                spans,
            )
            self._runners.append(runner)
            name = f"device-{self._id.name}-{self._id.version}{f'-{index}' if index else ''}"
            thread = threading.Thread(target=self._run, args=[runner, turn], name=name)
            try:
                thread.start()
            except RuntimeError as error:
                self.stop()
                raise ResourceExhausted(f"Not {count} batch threads can be started: {error}") from error
            self._threads.append(thread)

    def batches(self, signature_name: str) -> bool:
        """Return whether requests for this signature may share batches."""
        return signature_name in self._options

    def options(self, signature_name: str) -> BatchingOptions | None:
        """Return how requests for this signature share batches, or None if they run one by one."""
        return self._options.get(signature_name)

    @property
    def default_rows(self) -> int:
        """Maximum number of rows in a batch of a signature whose exporter has checked no sizes."""
        return self._default_rows

    def has_objective(self, signature_name: str) -> bool:
        """Return whether this signature has a latency objective."""
        return self._admission is not None and self._admission.has_objective(signature_name)

    def record_latency(self, signature_name: str, latency_s: float) -> None:
        """Record a response of high priority that went out `latency_s` after its request arrived.

        The batcher adjusts the part of the objective that it reserves for the host.
        """
        if self._admission is not None:
            with self._changed:
                self._admission.record_latency(signature_name, latency_s)

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
            wakes = self._admit(task) and self._loop_runner.must_wake(loop)
        if wakes:
            self._loop_runner.wake_soon(loop)

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
        """Run the queued tasks, refuse new ones, and join the device threads."""
        with self._changed:
            self._stopping = True
            self._queue.hurry()
            self._close_turns()
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()
        self._hung.forget()
        if self._turns:
            self._turns.clear()
            self._device.leave(self._id)

    def hung_s(self) -> float:
        """Return for how long the longest hung run has taken, or 0 if none hangs."""
        return self._hung.hung_s()

    def _give_back(self, thread: int) -> None:
        """End the turn of a device thread on the device."""
        if self._turns:
            self._turns[thread].give_back()

    # The queue.

    def _admit(self, task: Task) -> bool:
        """Queue the task, and return whether a waiting thread should look at the queue."""
        if self._stopping:
            raise Unavailable(f"Servable {self._id} is unloading")
        if self._hung.error is not None:
            raise self._hung.error.copy()
        try:
            return self._queue.add(task)
        except Unavailable:
            self._metrics.task_dropped(servable=self._id, reason="queue_full", priority=task.priority)
            raise
        except TooLate:
            self.refusals.refused(task.priority, task.enqueued_s)
            raise

    def _close_turns(self) -> None:
        """Release the threads that wait for a turn if the queue is empty. Other models' batches must not delay them."""
        if not self._queue:
            for turn in self._turns:
                turn.close()

    def _next_batch(self, thread: int, turn: Turn) -> list[Task]:
        """Wait for a ready batch and a turn on the device. Return no tasks once stopped and drained."""
        while (tasks := self._wait_for_batch(thread, turn)) is None:
            if turn.line_up():
                turn.wait()
        return tasks

    def _wait_for_batch(self, thread: int, turn: Turn) -> list[Task] | None:
        """Wait for a ready batch. Return its tasks, or None if a batch is ready but another thread has the turn."""
        with self._changed:
            while True:
                if self._loop_runner.is_running:
                    self._loop_runner.wait_for_loop()
                    continue
                now_s = self._clock.monotonic_s()
                if turn.take():
                    if tasks := self._take(thread, now_s):
                        if self._loop_runner.idle and self._queue:
                            # One wake-up serves all tasks that were submitted together, so another thread must look for
                            # the rest.
                            self._changed.notify()
                        return tasks
                elif self._queue.next_s() <= now_s:
                    return None
                turn.give_back()
                if self._stopping:
                    return []
                self._loop_runner.wait_for_batch()

    def _following_batch(self, thread: int, turn: Turn) -> list[Task]:
        """Return a batch to run behind those in flight, or no tasks while every waiting batch may still gain rows."""
        with self._changed:
            return self._take(thread, self._clock.monotonic_s(), closed=True) if turn.take() else []

    def _take(self, thread: int, now_s: float, *, closed: bool = False) -> list[Task]:
        tasks = self._queue.take(now_s, closed=closed)
        if hopeless := self._queue.hopeless():
            self.refusals.answer(hopeless, now_s)
            if self._stopping:
                self._close_turns()
        if tasks:
            run = tasks[0].run
            assert run is not None, "the queue sets it"
            self._taken.take(thread, tasks, run.ready_s, now_s, self._queue.run_s(tasks))
            if self._admission is not None:
                self._admission.taken(tasks)
        return tasks

    def _end(self, thread: int) -> None:
        """Record that a thread has answered its oldest batch. Called with the lock held."""
        now_s = self._clock.monotonic_s()
        batch = self._taken.end(thread, now_s)
        if batch.is_hung:
            self._hung.ended()
        if self._admission is not None and (errors_s := self._admission.answered(batch.tasks, now_s)):
            name = batch.tasks[0].signature_name
            host_s = self._admission.host_s(name)
            self._metrics.finish_predicted(servable=self._id, signature=name, errors_s=errors_s, host_s=host_s)

    # The device threads.

    def _run(self, runner: BatchRunner, turn: Turn) -> None:
        name_thread()
        while self._run_next(runner, turn):
            pass

    def _run_next(self, runner: BatchRunner, turn: Turn) -> bool:
        """Start or finish one batch and return whether to continue.

        A separate frame frees everything of the last batch while the thread waits for the next.
        """
        thread = runner.thread
        tasks = self._following_batch(thread, turn) if runner.in_flight else self._next_batch(thread, turn)
        if tasks:
            if not runner.start(tasks):
                # All its requests had ended.
                with self._changed:
                    self._taken.drop(thread)
            if runner.has_room:
                # Another batch may follow at once.
                return True
        elif not runner.in_flight:
            return False
        run_s = runner.finish()
        with self._changed:
            self._end(thread)
            self._loop_runner.choice.ran_on_thread(tasks)
        turn.used_s += run_s
        if self._regroups and run_s >= LEAST_RUN_S:
            with self._changed:
                self._queue.completed(tasks, run_s, self._clock.monotonic_s())
        return True

    # The event loop instead of the device thread.

    def _take_for_loop(self, now_s: float) -> list[Task]:
        """Return the tasks of the next batch, or none without the turn of the device. Called with the lock held."""
        return self._take(0, now_s) if not self._stopping and self._turns[0].take() else []

    def _run_for_loop(self, tasks: list[Task], loop: "asyncio.AbstractEventLoop") -> float | None:
        """Run a batch. Return the seconds that the device was busy, or None if all requests had ended."""
        runner, turn = self._runners[0], self._turns[0]
        run_s = runner.finish(loop) if runner.start(tasks) else None
        with self._lock:
            if run_s is None:
                self._taken.drop(0)
            else:
                self._end(0)
                turn.used_s += run_s
            turn.give_back()
        return run_s
