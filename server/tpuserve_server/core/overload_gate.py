"""OverloadGate: refuses requests by their deadline alone, while every model would refuse them."""

from collections.abc import Callable, Sequence

from tpuserve_server.core.deadline import Clock, Deadline
from tpuserve_server.core.loader import Loaded, LoadedVersion
from tpuserve_server.core.metrics import Metrics


class OverloadGate:
    """Decides about a request before its message is read, so without its model, signature and priority.

    It refuses a deadline only while each version that serves would refuse a request of high priority. Ensembles,
    versions with a response cache and signatures with a latency objective refuse nothing here. A refusal costs much
    less than one that knows the model. Any thread may call all methods.
    """

    def __init__(self, serving: Callable[[], Sequence[Loaded]], metrics: Metrics, clock: Clock) -> None:
        """Ask `serving` for the versions that answer requests."""
        self._serving = serving
        self._metrics = metrics
        self._clock = clock
        self._on_refused: Callable[[], object] | None = None
        # Requests that were checked, and those that were refused. Without a lock: they only steer a share.
        self.checked = self.refused = 0

    def subscribe(self, on_refused: Callable[[], object]) -> None:
        """Call `on_refused` after each refusal."""
        self._on_refused = on_refused

    def count_refused(self, by: str, count: int) -> None:
        """Count requests that another part has refused for this gate. `by` is the part's label in the metric."""
        self._metrics.requests_refused(by=by, count=count)

    @property
    def may_refuse(self) -> bool:
        """Whether every version has refused requests lately. Most requests end the check here."""
        serving = self._serving()
        for loaded in serving:
            if not isinstance(loaded, LoadedVersion) or loaded.responses is not None:
                return False
            if not loaded.batcher.refusals.is_active:
                return False
        return bool(serving)

    def lateness_s(self, deadline: Deadline, *, again: bool = False) -> float:
        """Return by how many seconds any request would miss `deadline`, 0 for a request to accept.

        Count a request that would be late as refused. Set `again` for a request that was already checked.
        """
        if not deadline.is_finite or not self.may_refuse:
            return 0.0
        lateness_s = self._least_lateness_s(deadline)
        self.checked += not again
        if lateness_s:
            self.refused += 1
            self._metrics.requests_refused(by="server", count=1)
            if self._on_refused is not None:
                self._on_refused()
        return lateness_s

    def _least_lateness_s(self, deadline: Deadline) -> float:
        now_s, least_s = self._clock.monotonic_s(), float("inf")
        for loaded in self._serving():
            if not isinstance(loaded, LoadedVersion):
                return 0.0
            lateness_s = loaded.batcher.refusals.lateness_s(deadline, now_s)
            if not lateness_s:
                return 0.0
            least_s = min(least_s, lateness_s)
        # Infinite if the last version was unloaded meanwhile.
        return least_s if least_s < float("inf") else 0.0
