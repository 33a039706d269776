"""The batcher: one bounded queue for each loaded version, and the threads that take its batches to the device."""

import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING

from tpuserve_server.core.batching.admission import Admission
from tpuserve_server.core.batching.buffers import MAX_BUFFER_BYTES, BatchBuffers
from tpuserve_server.core.batching.options import BatchingOptions
from tpuserve_server.core.batching.parameters import BatchingParameters
from tpuserve_server.core.batching.queue import BatchQueue
from tpuserve_server.core.batching.regroup import LEAST_RUN_S
from tpuserve_server.core.batching.runner import BatchRunner
from tpuserve_server.core.batching.task import Outcome, Task
from tpuserve_server.core.cost_model import CostModel
from tpuserve_server.core.deadline import WaitingClock
from tpuserve_server.core.device_share import DeviceShare, Turn
from tpuserve_server.core.errors import ResourceExhausted, TooLate, Unavailable
from tpuserve_server.core.metrics import Metrics
from tpuserve_server.core.servable import Servable
from tpuserve_server.core.types import ServableId

if TYPE_CHECKING:
    import asyncio

__all__ = ["Batcher", "Outcome", "Task"]


class Batcher:
    """Collects requests into batches and runs them. A batch leaves when a device thread is free and has its turn on the
    device, and the batch is full or has waited its timeout, which by default is 0. Rows gather until then.

    Any number of event loops may submit, none of them ever waits for the device. Everything about the queue is guarded
    by `_changed`; `_idle` counts the device threads that wait there, `_waking` is the loop that is about to wake one.
    """

    def __init__(
        self,
        servable_id: ServableId,
        servable: Servable,
        options: Mapping[str, BatchingOptions],
        *,
        parameters: BatchingParameters,
        clock: WaitingClock,
        metrics: Metrics,
        costs: CostModel | None = None,
        device: DeviceShare | None = None,
    ) -> None:
        """Start the device threads of `parameters`, each of which runs a batch at a time.

        They take turns with those of others on `device`, by the model's weight; without one it is this batcher's own.

        A signature not in `options` is never batched: its requests run one by one. What runs cost is learned into
        `costs`, which may know something already.

        Raises:
            ResourceExhausted: the system gives no more threads; none is left behind.
        """
        self._id = servable_id
        self._options = options
        self._clock = clock
        self._metrics = metrics
        self._costs = CostModel() if costs is None else costs
        self._changed = threading.Condition()
        self._admission: Admission | None = None
        if any(sizes.objective is not None for sizes in options.values()):
            self._admission = Admission(servable_id, options, self._costs, parameters.threads)
        self._queue = BatchQueue(
            servable.signatures,
            options,
            parameters.queue_length,
            self._costs,
            low_priority_max_enqueued_batches=parameters.low_priority_queue_length,
            admission=self._admission,
        )
        # With one batch at a time, whose callers are the ones that come back when it has ended.
        self._regroups = parameters.threads == 1 and servable.max_in_flight == 1
        self._stopping = False
        self._idle = 0
        self._waking: asyncio.AbstractEventLoop | None = None
        self._device = DeviceShare(parameters.threads) if device is None else device
        self._device.join(servable_id, parameters.weight)
        self._turns = [self._device.turn(servable_id) for _ in range(parameters.threads)]
        self._threads: list[threading.Thread] = []
        self._start(servable)

    def _start(self, servable: Servable) -> None:
        count = len(self._turns)
        # Of what may be in flight each thread has its part, and buffers for it.
        in_flight = max(1, servable.max_in_flight // count)
        size_bytes = MAX_BUFFER_BYTES // (count * in_flight)
        for index, turn in enumerate(self._turns):
            buffers = [BatchBuffers(size_bytes) for _ in range(in_flight)]
            runner = BatchRunner(self._id, servable, self._options, buffers, self._clock, self._metrics, self._costs)
            name = f"device-{self._id.name}-{self._id.version}{f'-{index}' if index else ''}"
            thread = threading.Thread(target=self._run, args=[runner, turn], name=name)
            try:
                thread.start()
            except RuntimeError as error:
                self.stop()
                raise ResourceExhausted(f"Not {count} batch threads can be started: {error}") from error
            self._threads.append(thread)

    def batches(self, signature_name: str) -> bool:
        """Whether requests for this signature may share batches."""
        return signature_name in self._options

    def promises(self, signature_name: str) -> bool:
        """Whether answers of this signature are to go out within a latency objective."""
        return self._admission is not None and self._admission.promises(signature_name)

    def answered(self, signature_name: str, latency_s: float) -> None:
        """An answer of high priority went out `latency_s` after its request had come: what of that the host took is
        kept free from now on.
        """
        if self._admission is not None:
            with self._changed:
                self._admission.answered(signature_name, latency_s)

    def submit(self, task: Task) -> None:
        """Queue a task or refuse it at once. Called on the task's event loop.

        Raises:
            InvalidArgument: it has more rows than a request may have, or longer ones.
            Unavailable: the queue is full, or the batcher is stopping.
            TooLate: it would be answered later than its objective or its deadline.
        """
        task.enqueued_s = self._clock.monotonic_s()
        loop = task.future.get_loop()
        with self._changed:
            wakes = self._admit(task) and self._idle > 0 and self._waking is not loop
            if wakes:
                self._waking = loop
        if wakes:
            # Not at once: the loop has more requests in its hands, which would find the interpreter's lock with the
            # device thread and the device with a batch of one. When it has handed them in, one wake-up serves all.
            loop.call_soon(self._wake)

    def discard(self, task: Task, reason: str) -> bool:
        """Take a task that nobody waits for out of the queue, so that its place is free at once.

        False if it has left the queue already. `reason` is `expired` or `cancelled`, for the metrics.
        """
        with self._changed:
            if not self._queue.discard(task):
                return False
            if self._stopping:
                self._close_turns()
        self._metrics.task_dropped(servable=self._id, reason=reason, priority=task.priority)
        return True

    def stop(self) -> None:
        """Run what is queued, refuse what comes, and join the device threads."""
        with self._changed:
            self._stopping = True
            self._queue.hurry()
            self._close_turns()
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()
        if self._turns:
            self._turns.clear()
            self._device.leave(self._id)

    # The queue.

    def _admit(self, task: Task) -> bool:
        """Whether a waiting thread has something to look at."""
        if self._stopping:
            raise Unavailable(f"Servable {self._id} is unloading")
        try:
            return self._queue.add(task)
        except Unavailable:
            self._metrics.task_dropped(servable=self._id, reason="queue_full", priority=task.priority)
            raise
        except TooLate:
            self._metrics.task_dropped(servable=self._id, reason="too_late", priority=task.priority)
            raise

    def _wake(self) -> None:
        with self._changed:
            self._waking = None
            self._changed.notify()

    def _close_turns(self) -> None:
        """When there is nothing left to run, no thread waits for its turn until another model's batch has ended."""
        if not self._queue:
            for turn in self._turns:
                turn.close()

    def _next_batch(self, turn: Turn) -> list[Task]:
        """Wait for a batch that is ready, and a turn on the device; nothing when stopped and drained."""
        while (tasks := self._wait_for_batch(turn)) is None:
            if turn.line_up():
                turn.wait()
        return tasks

    def _wait_for_batch(self, turn: Turn) -> list[Task] | None:
        """As `_next_batch`; None when a batch is ready, but it is another's turn."""
        with self._changed:
            while True:
                now_s = self._clock.monotonic_s()
                if turn.take():
                    if tasks := self._take(now_s):
                        if self._idle and self._queue:
                            # One wake-up serves all that came with it: another thread looks for what is left.
                            self._changed.notify()
                        return tasks
                elif self._queue.next_s() <= now_s:
                    return None
                turn.give_back()
                if self._stopping:
                    return []
                self._idle += 1
                self._clock.wait_until(self._changed, self._queue.next_s())
                self._idle -= 1

    def _following_batch(self, turn: Turn) -> list[Task]:
        """A batch to run after those in flight, if there is one that gains no rows by waiting for them, or is older."""
        with self._changed:
            return self._take(self._clock.monotonic_s(), closed=True) if turn.take() else []

    def _take(self, now_s: float, *, closed: bool = False) -> list[Task]:
        tasks = self._queue.take(now_s, closed=closed)
        if tasks and self._admission is not None:
            self._admission.started(threading.get_ident(), tasks, now_s)
        return tasks

    # The device threads.

    def _run(self, runner: BatchRunner, turn: Turn) -> None:
        while self._run_next(runner, turn):
            pass

    def _run_next(self, runner: BatchRunner, turn: Turn) -> bool:
        """One batch, in a frame of its own: while the thread waits for the next, nothing of the last stays alive."""
        in_flight = runner.in_flight
        tasks = self._following_batch(turn) if in_flight else self._next_batch(turn)
        if tasks:
            has_room = runner.start(tasks)
            if self._admission is not None and runner.in_flight == in_flight:
                # Nobody waited for it any more.
                with self._changed:
                    self._admission.dropped(threading.get_ident())
            if has_room:
                # Another may follow at once.
                return True
        elif not runner.in_flight:
            return False
        run_s = runner.finish()
        turn.used_s += run_s
        if self._regroups and run_s >= LEAST_RUN_S:
            with self._changed:
                self._queue.answered(tasks, run_s, self._clock.monotonic_s())
        if self._admission is not None:
            self._compare(self._admission, runner.in_flight)
        return True

    def _compare(self, admission: Admission, in_flight: int) -> None:
        """What was predicted of the batch that has just been answered with what came."""
        with self._changed:
            signature_name, errors_s = admission.finished(threading.get_ident(), in_flight, self._clock.monotonic_s())
            host_s = admission.host_s(signature_name)
        if errors_s:
            self._metrics.finish_predicted(
                servable=self._id, signature=signature_name, errors_s=errors_s, host_s=host_s
            )
