"""BatchMetrics: measurements of a batcher."""

from collections.abc import Sequence
from typing import Protocol

from tpuserve_server.core.terms.priority import Priority
from tpuserve_server.core.terms.types import ServableId


class BatchMetrics(Protocol):
    """The receiver of a batcher's measurements. Every method is cheap, never blocks and may be called by any thread."""

    def batch_finished(
        self,
        *,
        servable: ServableId,
        signature: str,
        api: str,
        task_rows: Sequence[int],
        bucket: int,
        queue_waits_s: Sequence[float],
        run_s: float,
        expected_s: float = 0.0,
        has_buckets: bool = True,
    ) -> None:
        """Record a batch that ran for `run_s`, padded to `bucket` rows, with each request's rows and wait in the queue.

        `api` is the signature's purpose in TensorFlow Serving's metrics: `Predict`, `Classify` or `Regress`. The cost
        model had expected `expected_s`, or 0 if unknown. Without `has_buckets` a batch can have any number of rows.
        """
        ...

    def finish_predicted(
        self, *, servable: ServableId, signature: str, errors_s: Sequence[float], host_s: float
    ) -> None:
        """Record responses whose finish was predicted, each with the actual time minus the predicted time.

        `host_s` of the objective are reserved for work outside the batcher.
        """
        ...

    def runs_hung(self, *, servable: ServableId, count: int) -> None:
        """Record runs that have taken so long that their requests were answered with errors."""
        ...

    def task_dropped(self, *, servable: ServableId, reason: str, priority: Priority = Priority.HIGH) -> None:
        """Record a request that did not run. `reason` is `expired`, `cancelled`, `queue_full`, `too_late` or `hung`."""
        ...
