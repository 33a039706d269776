"""What the server measures, and where: the front-end's edge, a batch's end, a version's change of state."""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from tpuserve_server.core.cost_model import CostModel
from tpuserve_server.core.errors import Code
from tpuserve_server.core.priority import Priority
from tpuserve_server.core.types import ServableId, State


class Metrics(Protocol):
    """Where measurements go. Every method is cheap, never blocks and may be called from any thread."""

    def request_finished(
        self,
        *,
        model: str,
        version: int | None,
        signature: str,
        method: str,
        protocol: str,
        code: Code,
        latency_s: float,
    ) -> None:
        """A front-end answered.

        `model` is empty when the request named none that exists; `version` is None and `signature` empty where none was
        found.
        """
        ...

    def examples_received(self, *, model: str, count: int) -> None:
        """A request carried `count` tf.Examples."""
        ...

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
        """A batch ran for `run_s`, padded to `bucket` rows; real rows and queue wait are each request's in it.

        `api` is what the signature is for in TensorFlow Serving's metrics: `Predict`, `Classify` or `Regress`. The cost
        model had expected `expected_s`, or nothing: 0. Without `has_buckets` a batch can have any number of rows.
        """
        ...

    def finish_predicted(
        self, *, servable: ServableId, signature: str, errors_s: Sequence[float], host_s: float
    ) -> None:
        """Requests were answered whose finish had been predicted: each one's actual time less the predicted.

        `host_s` of the objective are kept for what happens outside the batcher.
        """
        ...

    def shape_first_run(self, *, servable: ServableId, signature: str) -> None:
        """A version ran inputs of shapes, or outputs, that its warm-up had not: a compiled device had to compile."""
        ...

    def version_loaded(self, *, servable: ServableId, costs: CostModel) -> None:
        """A version is about to serve; `costs` goes on learning what its batches cost."""
        ...

    def task_dropped(self, *, servable: ServableId, reason: str, priority: Priority = Priority.HIGH) -> None:
        """A request left before it ran, `expired` or `cancelled`, or was refused: `queue_full`, `too_late`."""
        ...

    def version_changed(self, *, servable: ServableId, state: State) -> None:
        """A version entered `state`."""
        ...

    def version_warmed(self, *, servable: ServableId, path: Path, records: int, duration_s: float) -> None:
        """The version in `path` was warmed up, with `records` recorded requests among what it ran."""
        ...
