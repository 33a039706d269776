"""BatchRunner: runs batches on the device and answers each of their tasks. Each worker has one."""

import asyncio
import logging
import math
import threading
from collections import deque
from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING

from tpuserve_server.core.batching.arrays import BatchBuffers, choose_bucket, detached, join_batch, split_outputs
from tpuserve_server.core.batching.batch_metrics import BatchMetrics
from tpuserve_server.core.batching.device_queue import DeviceQueue, HostDelay
from tpuserve_server.core.batching.parameters import BatchingOptions
from tpuserve_server.core.batching.services import BatchedVersion, DeviceServices
from tpuserve_server.core.batching.task import Outcome, Task, complete, complete_batch, share_run
from tpuserve_server.core.terms.batch_run import BatchRun
from tpuserve_server.core.terms.errors import (
    Cancelled,
    DataLoss,
    DeadlineExceeded,
    DeviceLost,
    FailedPrecondition,
    Internal,
    InvalidArgument,
    OutOfMemory,
    OutOfRange,
    ResourceExhausted,
    ServingError,
    counted,
)
from tpuserve_server.core.terms.tracer import SpanRecorder
from tpuserve_server.core.terms.validation import count_plain_rows

if TYPE_CHECKING:
    from tpuserve_server.core.terms.servable import InFlight
    from tpuserve_server.core.terms.types import Tensors

logger = logging.getLogger(__name__)

# Errors by which a model blames its inputs: in a batch of several requests only one may be invalid, or too large.
_BLAMES_INPUT = (InvalidArgument, FailedPrecondition, OutOfRange, DataLoss, OutOfMemory)


class _Run:
    """A batch on the device, or the error that kept it from starting. It owns `buffers` until it has ended.

    `facts` are the part that its requests see.
    """

    __slots__ = ("bucket", "buffers", "facts", "flight", "inputs", "is_timed", "options", "reusable", "tasks")

    def __init__(
        self, tasks: list[Task], facts: BatchRun, options: BatchingOptions | None, bucket: int, buffers: BatchBuffers
    ) -> None:
        self.tasks = tasks
        self.facts = facts
        self.options = options
        self.bucket = bucket
        self.buffers = buffers
        # Set when it is dispatched.
        self.inputs: Tensors = {}
        self.reusable = False
        self.flight: InFlight | ServingError
        # False for a half that was dispatched behind another batch: its duration is not its cost.
        self.is_timed = True


class BatchRunner:
    """Runs batches of one servable, as many at a time as it has buffers.

    One thread at a time calls `start`, and one `finish`: two threads of its worker, or an event loop instead. A batch
    is in `runs` from its dispatch until it is answered, so `finish` owns the first one. `_dispatching` is held during
    each dispatch, so that `runs` has the order in which the device gets the batches.
    """

    def __init__(
        self,
        thread: int,
        version: BatchedVersion,
        services: DeviceServices[BatchMetrics],
        buffers: Sequence[BatchBuffers],
        device: DeviceQueue,
        host: HostDelay,
    ) -> None:
        """`thread` is the number of its worker.

        `buffers` holds one entry for each batch in flight. No other runner uses them. `device` has the batches of this
        worker.
        """
        self.thread = thread
        self._id = version.servable_id
        self._servable = version.servable
        self._options = version.options
        self._costs = version.costs
        self._apis = {name: one.api for name, one in version.servable.signatures.items()}
        self._batchable = {name: one for name, one in version.servable.signatures.items() if one.is_batchable}
        # Another batch can be started while some are left.
        self.free_buffers = list(buffers)
        self._clock = services.clock
        self._metrics = services.metrics
        self._watchdog = services.watchdog
        self._spans = services.spans
        self._host = host
        self._device = device
        # The batches that have been started and not answered.
        self.runs: deque[_Run] = deque()
        self._dispatching = threading.Lock()
        self._ended_s = 0.0
        # Batches that were dispatched before this time may have run behind halves of another.
        self._disturbed_s = -math.inf

    def start(self, tasks: list[Task]) -> bool:
        """Drop the tasks that have ended, and start the rest on the device as one batch.

        Return False if none is left. Never raises.
        """
        live = self._drop_dead(tasks)
        if live:
            with self._dispatching:
                self.runs.append(self._start(live, self.free_buffers.pop()))
        return bool(live)

    def finish(self, loop: asyncio.AbstractEventLoop | None = None) -> float:
        """Wait for the oldest batch in flight and answer all its tasks.

        If the model rejects the inputs of several requests, run them again in halves. Halving isolates the request with
        the invalid data, and costs the others a few runs instead of one each. Return the seconds that the device was
        busy. Blocks; never raises. `loop` is the running event loop if one calls this.
        """
        run = self.runs[0]
        begun_s = max(run.facts.started_s, self._ended_s)
        if self._spans is not None and self._spans.is_recording:
            with self._span(self._spans, "results", run.tasks[0], run.facts):
                self._finish(run, loop)
        else:
            self._finish(run, loop)
        self.runs.popleft()
        self.free_buffers.append(run.buffers)
        return self._ended_s - begun_s

    def _finish(self, run: _Run, loop: asyncio.AbstractEventLoop | None) -> None:
        outcomes = self._outcomes(run)
        tasks = run.tasks
        if len(tasks) > 1 and isinstance(outcomes[0], _BLAMES_INPUT):
            middle = len(tasks) // 2
            for half in (tasks[:middle], tasks[middle:]):
                # The halves run one after the other in the same buffers. The other batches in flight keep theirs.
                if live := self._drop_dead(half):
                    self._device.run_again(self.thread, self._clock.monotonic_s())
                    share_run(live, run.facts.again())
                    with self._dispatching:
                        part = self._start(live, run.buffers)
                        part.is_timed = len(self.runs) == 1
                    self._finish(part, loop)
            # Batches in flight may have run before a half that was answered first, so that their ends are unknown.
            self._disturbed_s = self._clock.monotonic_s()
            return
        complete_batch(tasks, outcomes, partial(self._host.sent, self._clock, self._clock.monotonic_s()), loop)

    def _drop_dead(self, tasks: list[Task]) -> list[Task]:
        """Drop expired and cancelled tasks, and parts of failed requests, before they cost device time."""
        now_s = self._clock.monotonic_s()
        # Nearly always, all callers wait.
        for task in tasks:
            if task.split_request is not None or task.deadline.at_s <= now_s or task.future.done():
                break
        else:
            return tasks
        live = []
        for task in tasks:
            if task.split_request is not None and task.split_request.failed:
                continue
            if task.future.cancelled():
                self._drop(task, "cancelled", Cancelled(f"Request for {self._id} was cancelled"))
            elif task.deadline.expired(now_s):
                error = DeadlineExceeded(f"Deadline exceeded while request for {self._id} was queued")
                self._drop(task, "expired", error)
            elif task.future.done():
                # The watchdog has answered it, because the batch hung before it failed.
                continue
            else:
                live.append(task)
        return live

    def _drop(self, task: Task, reason: str, error: ServingError) -> None:
        self._metrics.task_dropped(servable=self._id, reason=reason, priority=task.priority)
        complete([(task, error)])

    def _start(self, tasks: list[Task], buffers: BatchBuffers) -> _Run:
        first = tasks[0]
        facts = first.run
        assert facts is not None, "the queue sets it"
        # The join may fail: the device then has the batch for no time.
        facts.started_s = facts.begun_s = self._clock.monotonic_s()
        rows = 0
        for task in tasks:
            rows += task.rows
            if task.split_request is not None:
                task.split_request.runs.append(facts)
        options = self._options.get(first.signature_name)
        bucket = choose_bucket(rows, options.buckets if options and first.shareable else ())
        facts.requests, facts.rows, facts.bucket = len(tasks), rows, bucket
        run = _Run(tasks, facts, options, bucket, buffers)
        if self._spans is not None and self._spans.is_recording:
            with self._span(self._spans, "batch", first, facts):
                self._dispatch(run)
        else:
            self._dispatch(run)
        return run

    def _dispatch(self, run: _Run) -> None:
        """Join the rows and give them to the device. Never raises."""
        first = run.tasks[0]
        try:
            run.inputs, run.reusable = join_batch(run.tasks, run.facts.rows, run.bucket, run.options, run.buffers)
            run.facts.begun_s = self._clock.monotonic_s()
            run.flight = self._servable.dispatch(first.signature_name, run.inputs, first.output_names)
        except Exception as error:
            run.flight = self._failure(error, run.facts)

    def _span(self, spans: SpanRecorder, what: str, first: Task, facts: BatchRun) -> AbstractContextManager[object]:
        """Return the span of a step of a batch. A number connects the steps."""
        return spans.span(
            f"{what} {self._id.name}:{self._id.version}",
            batch=facts.number,
            signature=first.signature_name,
            requests=facts.requests,
            rows=facts.rows,
            bucket=facts.bucket,
            departure=facts.departure.name.lower(),
        )

    def _outcomes(self, run: _Run) -> Sequence[Outcome]:
        """Return an outcome for each task: the same error for all if the run failed."""
        flight, tasks, facts = run.flight, run.tasks, run.facts
        # A batch that was dispatched while another ran began when that one ended.
        begun_s = max(facts.started_s, self._ended_s)
        facts.begun_s = max(facts.begun_s, self._ended_s)
        if isinstance(flight, ServingError):
            self._end(facts, failed=True)
            return [flight] * len(tasks)
        try:
            outputs = flight.result()
            self._end(facts)
            self._measure(run, self._ended_s - begun_s)
            if run.reusable:
                outputs = detached(outputs, run.inputs)
            return split_outputs(outputs, tasks, run.bucket, run.options)
        except Exception as error:
            self._end(facts, failed=True)
            return [self._failure(error, facts)] * len(tasks)

    def _end(self, facts: BatchRun, *, failed: bool = False) -> None:
        self._ended_s = facts.ended_s = self._clock.monotonic_s()
        facts.failed = failed

    def _failure(self, error: Exception, facts: BatchRun) -> ServingError:
        """Return the error for callers, without the frames that it has passed."""
        if type(error) is ResourceExhausted:
            return OutOfMemory(f"{self._id} ran out of memory: {error.message}")
        if isinstance(error, MemoryError):
            return OutOfMemory(f"{self._id} ran out of memory")
        if isinstance(error, DeviceLost) and self._watchdog is not None:
            self._watchdog.lose(f"the device of {self._id} is lost: {error.message}")
        if isinstance(error, ServingError):
            return error.copy()
        # The top of the worker loop: the runner answers the callers and runs the next batch, whatever the model raises.
        logger.error(
            "Batch %d of %s for %s failed", facts.number, counted(facts.requests, "request"), self._id, exc_info=error
        )
        return Internal(f"Running {self._id} failed in batch {facts.number}; the server's log has the reason")

    def _measure(self, run: _Run, run_s: float) -> None:
        first, options = run.tasks[0], run.options
        bucket = run.bucket if options is not None else self._count_rows(first)
        rows = [task.rows for task in run.tasks] if options is not None else [bucket]
        expected_s = 0.0
        is_timed = run.is_timed and run.facts.started_s >= self._disturbed_s
        if is_timed and (first.shareable or options is None):
            expected_s = self._costs.learn(first.signature_name, run.bucket, run_s, first.lengths)
        self._metrics.batch_finished(
            servable=self._id,
            signature=first.signature_name,
            api=self._apis[first.signature_name],
            task_rows=rows,
            bucket=bucket,
            queue_waits_s=[run.facts.started_s - task.enqueued_s for task in run.tasks],
            run_s=run_s,
            expected_s=expected_s,
            has_buckets=options is not None and bool(options.buckets),
        )

    def _count_rows(self, task: Task) -> int:
        """Return the rows of a task without batching: 1 if its signature or its inputs have no batch dimension."""
        signature = self._batchable.get(task.signature_name)
        return 1 if signature is None else count_plain_rows(signature, task.inputs) or 1
