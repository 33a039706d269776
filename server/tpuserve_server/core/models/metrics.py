"""Metrics: measurements at the front-end's edge, of batches, and at a version's change of state."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Protocol

from tpuserve_server.core.batching.batch_metrics import BatchMetrics
from tpuserve_server.core.batching.cost_model import CostModel
from tpuserve_server.core.models.response_cache import VersionResponses
from tpuserve_server.core.terms.errors import Code, Fault
from tpuserve_server.core.terms.types import ServableId, State


class Metrics(BatchMetrics, Protocol):
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

    def request_failed(self, *, model: str, version: int | None, method: str, code: Code, fault: Fault) -> None:
        """Record a request that a front-end has answered with an error, beside `request_finished`."""
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

    def shape_first_run(self, *, servable: ServableId, signature: str, is_tried: bool) -> None:
        """Record a run of shapes or outputs that the warm-up did not cover, so that a device had to compile.

        Not `is_tried`: a size is outside of the range that the exporter has checked.
        """
        ...

    def run_refused(self, *, servable: ServableId, signature: str) -> None:
        """Record a run that did not start, because runs with such input shapes ended or hung the process."""
        ...

    def version_loaded(
        self, *, servable: ServableId, path: str, costs: CostModel, load_s: float, restore_s: float
    ) -> None:
        """Record a version that is about to serve. `costs` continues to learn the costs of its batches.

        The load from `path`, a directory or an address in a store, took `load_s` without the warm-up. The executor took
        `restore_s` of them.
        """
        ...

    def load_failed(self, *, servable: ServableId, path: str, load_s: float) -> None:
        """Record an attempt to load a version from `path` that has failed after `load_s`."""
        ...

    def cache_opened(self, *, servable: ServableId, responses: VersionResponses) -> None:
        """Record a version with a response cache. `responses` continues to count."""
        ...

    def version_changed(self, *, servable: ServableId, state: State) -> None:
        """Record that a version entered `state`."""
        ...

    def version_warmed(self, *, servable: ServableId, path: Path, records: int, duration_s: float) -> None:
        """Record the warm-up of the version in `path`, which included `records` recorded requests."""
        ...
