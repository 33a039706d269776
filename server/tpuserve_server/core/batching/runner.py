"""BatchRunner: takes the tasks of a batch through the device, and answers each of them. One a device thread."""

import logging
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tpuserve_server.core.batching.arrays import detached, join_batch, split_outputs
from tpuserve_server.core.batching.buffers import BatchBuffers
from tpuserve_server.core.batching.options import BatchingOptions
from tpuserve_server.core.batching.task import Outcome, Task, complete
from tpuserve_server.core.cost_model import CostModel
from tpuserve_server.core.deadline import Clock
from tpuserve_server.core.errors import (
    Cancelled,
    DataLoss,
    DeadlineExceeded,
    FailedPrecondition,
    Internal,
    InvalidArgument,
    OutOfRange,
    ServingError,
)
from tpuserve_server.core.metrics import Metrics
from tpuserve_server.core.padding import choose_bucket
from tpuserve_server.core.servable import InFlight, Servable
from tpuserve_server.core.types import ServableId, Tensors

logger = logging.getLogger(__name__)

# Errors by which a model blames its inputs: of several requests in a batch one is to blame, and not the rest.
_BLAMES_INPUT = (InvalidArgument, FailedPrecondition, OutOfRange, DataLoss)


@dataclass(slots=True, eq=False)
class _Run:
    """A batch on the device; or the error, where it did not get there. `buffers` are its own until it has ended."""

    tasks: list[Task]
    options: BatchingOptions | None
    bucket: int
    inputs: Tensors
    reusable: bool
    buffers: BatchBuffers
    started_s: float
    flight: InFlight | ServingError
    # Whether it had the device to itself from the end of the batch before it, so that its duration says what it costs.
    is_timed: bool = True


class BatchRunner:
    """Runs batches of one servable, as many at a time as it has buffers. Everything here belongs to its thread."""

    def __init__(
        self,
        servable_id: ServableId,
        servable: Servable,
        options: Mapping[str, BatchingOptions],
        buffers: Sequence[BatchBuffers],
        clock: Clock,
        metrics: Metrics,
        costs: CostModel,
    ) -> None:
        """Join batches in `buffers`, one for each batch in flight, which no other runner uses."""
        self._id = servable_id
        self._servable = servable
        self._options = options
        self._free_buffers = list(buffers)
        self._clock = clock
        self._metrics = metrics
        self._costs = costs
        self._runs: deque[_Run] = deque()
        self._ended_s = 0.0

    @property
    def in_flight(self) -> int:
        """Batches that have been started and not finished."""
        return len(self._runs)

    def start(self, tasks: list[Task]) -> bool:
        """Hand a batch to the device, less what nobody waits for any more. Whether there is room for one more after it.

        Never raises.
        """
        live = self._drop_dead(tasks)
        if live:
            self._runs.append(self._start(live, self._free_buffers.pop()))
        return bool(self._free_buffers)

    def finish(self) -> float:
        """Wait for the batch that was started first, and answer every task: from its run, or, where one request's data
        upset the model, from runs of halves.

        Halving leaves the owner of the bad data alone with it, and costs the others a few runs, not one for each.
        Returns the seconds that the device was busy with it. Blocks; never raises.
        """
        run = self._runs.popleft()
        begun_s = max(run.started_s, self._ended_s)
        self._finish(run)
        self._free_buffers.append(run.buffers)
        return self._ended_s - begun_s

    def _finish(self, run: _Run) -> None:
        outcomes = self._outcomes(run)
        tasks = run.tasks
        if len(tasks) > 1 and isinstance(outcomes[0], _BLAMES_INPUT):
            middle = len(tasks) // 2
            # The halves run behind what else is in flight, which will have ended when they have: nobody knows when.
            for other in self._runs:
                other.is_timed = False
            for half in (tasks[:middle], tasks[middle:]):
                # One after the other, in the same buffers. What else is in flight is not touched.
                if live := self._drop_dead(half):
                    part = self._start(live, run.buffers)
                    part.is_timed = not self._runs
                    self._finish(part)
            return
        complete(list(zip(tasks, outcomes, strict=True)))

    def _drop_dead(self, tasks: list[Task]) -> list[Task]:
        """Expired and cancelled tasks leave before they cost device time, as do parts of a request that has failed."""
        now_s = self._clock.monotonic_s()
        live = []
        for task in tasks:
            if task.whole is not None and task.whole.failed:
                continue
            if task.future.cancelled():
                self._drop(task, "cancelled", Cancelled(f"Request for {self._id} was cancelled"))
            elif task.deadline.expired(now_s):
                error = DeadlineExceeded(f"Deadline exceeded while request for {self._id} was queued")
                self._drop(task, "expired", error)
            else:
                live.append(task)
        return live

    def _drop(self, task: Task, reason: str, error: ServingError) -> None:
        self._metrics.task_dropped(servable=self._id, reason=reason, priority=task.priority)
        complete([(task, error)])

    def _start(self, tasks: list[Task], buffers: BatchBuffers) -> _Run:
        started_s = self._clock.monotonic_s()
        first = tasks[0]
        rows = 0
        for task in tasks:
            rows += task.rows
        options = self._options.get(first.signature_name)
        bucket = choose_bucket(rows, options.buckets if options and first.shareable else ())
        inputs: Tensors = {}
        reusable = False
        flight: InFlight | ServingError
        try:
            inputs, reusable = join_batch(tasks, rows, bucket, options, buffers)
            flight = self._servable.dispatch(first.signature_name, inputs, first.output_names)
        except Exception as error:
            flight = self._failure(error, len(tasks))
        return _Run(tasks, options, bucket, inputs, reusable, buffers, started_s, flight)

    def _outcomes(self, run: _Run) -> Sequence[Outcome]:
        """An outcome for each task; the same error for all if the run failed."""
        flight, tasks = run.flight, run.tasks
        # What was dispatched while another ran began when that had ended.
        begun_s = max(run.started_s, self._ended_s)
        if isinstance(flight, ServingError):
            self._ended_s = self._clock.monotonic_s()
            return [flight] * len(tasks)
        try:
            outputs = flight.result()
            self._ended_s = self._clock.monotonic_s()
            self._measure(run, self._ended_s - begun_s)
            if run.reusable:
                outputs = detached(outputs, run.inputs)
            return split_outputs(outputs, tasks, run.bucket, run.options)
        except Exception as error:
            self._ended_s = self._clock.monotonic_s()
            return [self._failure(error, len(tasks))] * len(tasks)

    def _failure(self, error: Exception, count: int) -> ServingError:
        """What callers are told, without the frames that the error has passed."""
        if isinstance(error, ServingError):
            return error.copy()
        # The top of the worker loop: whatever a model does, its callers are answered and the next batch runs.
        logger.error("Batch of %d requests for %s failed", count, self._id, exc_info=error)
        return Internal(f"Running {self._id} failed; the server's log has the reason")

    def _measure(self, run: _Run, run_s: float) -> None:
        first = run.tasks[0]
        options = run.options
        expected_s = 0.0
        if run.is_timed and (first.shareable or options is None):
            expected_s = self._costs.learn(first.signature_name, run.bucket, run_s, first.lengths)
        self._metrics.batch_finished(
            servable=self._id,
            signature=first.signature_name,
            api=self._servable.signatures[first.signature_name].api,
            task_rows=[task.rows for task in run.tasks],
            bucket=run.bucket,
            queue_waits_s=[run.started_s - task.enqueued_s for task in run.tasks],
            run_s=run_s,
            expected_s=expected_s,
            has_buckets=options is None or bool(options.buckets),
        )
