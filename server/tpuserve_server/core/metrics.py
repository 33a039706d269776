"""What the server measures, and where: the front-end's edge, a batch's end, a version's change of state."""

from collections.abc import Sequence
from typing import Protocol

from tpuserve_server.core.errors import Code
from tpuserve_server.core.types import ServableId, State


class Metrics(Protocol):
    """Where measurements go. Every method is cheap, never blocks and may be called from any thread."""

    def request_finished(self, *, model: str, method: str, protocol: str, code: Code, latency_s: float) -> None:
        """A front-end answered. `model` is empty when the request named none that exists."""
        ...

    def batch_finished(
        self,
        *,
        servable: ServableId,
        signature: str,
        rows: int,
        bucket: int,
        queue_waits_s: Sequence[float],
        run_s: float,
    ) -> None:
        """A batch of `rows` real rows, padded to `bucket`, ran for `run_s`; one queue wait for each request in it."""
        ...

    def task_dropped(self, *, servable: ServableId, reason: str) -> None:
        """A queued request left before it ran: `expired`, `cancelled` or `queue_full`."""
        ...

    def version_changed(self, *, servable: ServableId, state: State) -> None:
        """A version entered `state`."""
        ...
