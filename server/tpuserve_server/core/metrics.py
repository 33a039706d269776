"""Metrics: measurements at the front-end's edge, at the end of a batch, and at a version's change of state."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Protocol

from tpuserve_server.core.cost_model import CostModel
from tpuserve_server.core.errors import Code
from tpuserve_server.core.priority import Priority
from tpuserve_server.core.response_cache import VersionResponses
from tpuserve_server.core.types import ServableId, State


class Metrics(Protocol):
    """The receiver of measurements. Every method is cheap, never blocks and may be called from any thread."""

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
        trace_id: str = "",
    ) -> None:
        """Record a request that a front-end has answered.

        `model` is empty if the request named no existing model. `version` is None and `signature` is empty if the
        server found none. `trace_id` is empty for a request that is not traced.
        """
        ...

    def answers_of(
        self, *, model: str, version: int, signature: str, method: str, protocol: str
    ) -> Callable[[float, str], None]:
        """Return a function that records a request which succeeded, like `request_finished`, for many of them.

        The function takes `latency_s` and `trace_id`, and may be called until the version has ended.
        """
        ...

    def protocol_served(self, *, protocol: str, in_flight: Callable[[], int]) -> None:
        """Record a front-end of a protocol. `in_flight` returns the number of its requests that are not answered."""
        ...

    def stages_sampled(self, *, protocol: str, model: str, stages: Iterable[tuple[str, float]], requests: int) -> None:
        """Record the stages of one request, each with its seconds, as those of `requests` requests."""
        ...

    def examples_received(self, *, model: str, count: int) -> None:
        """Record a request with `count` tf.Examples."""
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

    def shape_first_run(self, *, servable: ServableId, signature: str, is_tried: bool) -> None:
        """Record a run of shapes or outputs that the warm-up did not cover, so that a device had to compile.

        Not `is_tried`: a size is outside of the range that the exporter has checked.
        """
        ...

    def run_refused(self, *, servable: ServableId, signature: str) -> None:
        """Record a run that did not start, because runs with such input shapes ended or hung the process."""
        ...

    def version_loaded(self, *, servable: ServableId, costs: CostModel, load_s: float) -> None:
        """Record a version that is about to serve. `costs` continues to learn the costs of its batches.

        The load took `load_s` without the warm-up.
        """
        ...

    def load_failed(self, *, servable: ServableId) -> None:
        """Record an attempt to load a version that has failed."""
        ...

    def runs_hung(self, *, servable: ServableId, count: int) -> None:
        """Record runs that have taken so long that their requests were answered with errors."""
        ...

    def cache_opened(self, *, servable: ServableId, responses: VersionResponses) -> None:
        """Record a version with a response cache. `responses` continues to count."""
        ...

    def task_dropped(self, *, servable: ServableId, reason: str, priority: Priority = Priority.HIGH) -> None:
        """Record a request that did not run. `reason` is `expired`, `cancelled`, `queue_full`, `too_late` or `hung`."""
        ...

    def version_changed(self, *, servable: ServableId, state: State) -> None:
        """Record that a version entered `state`."""
        ...

    def version_warmed(self, *, servable: ServableId, path: Path, records: int, duration_s: float) -> None:
        """Record the warm-up of the version in `path`, which included `records` recorded requests."""
        ...
