"""BatchRunner: takes the tasks of a batch through the device, and answers each of them. One a device thread."""

import logging
from collections.abc import Mapping, Sequence

import numpy as np

from tpuserve_server.core.batching_buffers import BatchBuffers
from tpuserve_server.core.batching_options import BatchingOptions
from tpuserve_server.core.batching_task import Outcome, Task, complete
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
from tpuserve_server.core.padding import choose_bucket, empty_batch, fill_batch, fill_padded, largest_rows, split_rows
from tpuserve_server.core.sequences import Sequences
from tpuserve_server.core.servable import Servable
from tpuserve_server.core.types import Array, ServableId, Tensors

logger = logging.getLogger(__name__)

# Errors by which a model blames its inputs: of several requests in a batch one is to blame, and not the rest.
_BLAMES_INPUT = (InvalidArgument, FailedPrecondition, OutOfRange, DataLoss)


class BatchRunner:
    """Runs batches of one servable. Everything here belongs to the thread that calls `run`."""

    def __init__(
        self,
        servable_id: ServableId,
        servable: Servable,
        options: Mapping[str, BatchingOptions],
        buffers: BatchBuffers,
        clock: Clock,
        metrics: Metrics,
        costs: CostModel,
    ) -> None:
        """Join batches in `buffers`, which no other runner uses."""
        self._id = servable_id
        self._servable = servable
        self._options = options
        self._buffers = buffers
        self._clock = clock
        self._metrics = metrics
        self._costs = costs

    def run(self, tasks: list[Task]) -> None:
        """Answer every task: from one run, or, where one request's data upset the model, from runs of halves.

        Halving leaves the owner of the bad data alone with it, and costs the others a few runs, not one for each.
        Blocks; never raises.
        """
        live = self._drop_dead(tasks)
        if not live:
            return
        outcomes = self._attempt(live)
        if len(live) > 1 and isinstance(outcomes[0], _BLAMES_INPUT):
            middle = len(live) // 2
            self.run(live[:middle])
            self.run(live[middle:])
            return
        complete(list(zip(live, outcomes, strict=True)))

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
        self._metrics.task_dropped(servable=self._id, reason=reason)
        complete([(task, error)])

    def _attempt(self, tasks: list[Task]) -> Sequence[Outcome]:
        """Run the tasks as one batch; an outcome for each, the same error for all if it failed."""
        try:
            return self._run_batch(tasks)
        except ServingError as error:
            return [error.copy()] * len(tasks)
        except Exception:
            # The top of the worker loop: whatever a model does, its callers are answered and the next batch runs.
            logger.exception("Batch of %d requests for %s failed", len(tasks), self._id)
            return [Internal(f"Running {self._id} failed; the server's log has the reason")] * len(tasks)

    def _run_batch(self, tasks: list[Task]) -> Sequence[Tensors]:
        first = tasks[0]
        started_s = self._clock.monotonic_s()
        rows = sum(task.rows for task in tasks)
        options = self._options.get(first.signature_name)
        bucket = choose_bucket(rows, options.buckets if options and first.shareable else ())
        inputs, reusable = self._join(tasks, rows, bucket, options)
        outputs = self._servable.dispatch(first.signature_name, inputs, first.output_names).result()
        run_s = self._clock.monotonic_s() - started_s
        expected_s = 0.0
        if first.shareable or options is None:
            expected_s = self._costs.learn(first.signature_name, bucket, run_s, first.lengths)
        self._metrics.batch_finished(
            servable=self._id,
            signature=first.signature_name,
            api=self._servable.signatures[first.signature_name].api,
            task_rows=[task.rows for task in tasks],
            bucket=bucket,
            queue_waits_s=[started_s - task.enqueued_s for task in tasks],
            run_s=run_s,
            expected_s=expected_s,
            has_buckets=options is None or bool(options.buckets),
        )
        if reusable:
            outputs = _detached(outputs, inputs)
        if not first.shareable:
            return [outputs]
        shares = split_rows(outputs, [task.rows for task in tasks], bucket)
        if options is None or options.sequences is None:
            return shares
        return _cut(options.sequences, tasks, shares)

    def _join(self, tasks: list[Task], rows: int, bucket: int, options: BatchingOptions | None) -> tuple[Tensors, bool]:
        """The batch's inputs, and whether they are a buffer that will be written again."""
        first = tasks[0]
        sequences = options.sequences if options is not None and first.shareable else None
        fits = sequences is None or sequences.own_lengths(first.inputs) == first.lengths
        if len(tasks) == 1 and rows == bucket and fits:
            return first.inputs, False
        parts = [task.inputs for task in tasks]
        pads = options is not None and options.pad_variable_length_inputs
        shapes = largest_rows(parts) if pads else {name: array.shape[1:] for name, array in first.inputs.items()}
        if sequences is not None:
            shapes = sequences.row_shapes(shapes, first.lengths)
        batch, reusable = self._make_batch(first, shapes, bucket)
        if sequences is not None or pads:
            fill_padded(batch, parts, rows, None if sequences is None else sequences.pad_values)
        else:
            fill_batch(batch, parts, rows)
        return batch, reusable

    def _make_batch(
        self, like: Task, row_shapes: Mapping[str, tuple[int, ...]], bucket: int
    ) -> tuple[dict[str, Array], bool]:
        # Strings: a kept buffer would keep clients' data alive.
        if any(array.dtype.hasobject for array in like.inputs.values()):
            return empty_batch(like.inputs, row_shapes, bucket), False
        return self._buffers.get(like.signature_name, like.inputs, row_shapes, bucket), True


def _detached(outputs: Tensors, buffers: Tensors) -> Tensors:
    """Copy outputs that are views of a buffer: a model that hands an input through returns our own memory."""
    return {
        name: array.copy() if any(np.may_share_memory(array, buffer) for buffer in buffers.values()) else array
        for name, array in outputs.items()
    }


def _cut(sequences: Sequences, tasks: Sequence[Task], shares: Sequence[Tensors]) -> Sequence[Tensors]:
    """Each request's outputs without its own padding."""
    return [
        sequences.cut(outputs, sequences.own_lengths(task.inputs), task.lengths)
        for task, outputs in zip(tasks, shares, strict=True)
    ]
