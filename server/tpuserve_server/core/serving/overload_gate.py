"""OverloadGate: refuses requests by their deadline alone, while every model would refuse them."""

from collections.abc import Callable, Sequence

from tpuserve_server.core.models.loader import Loaded, LoadedVersion
from tpuserve_server.core.terms.deadline import Clock, Deadline
from tpuserve_server.core.terms.server_state import Traffic


class OverloadGate:
    """Decides about a request before its message is read, so without its model, signature and priority.

    It refuses a deadline only while each version that serves would refuse a request of high priority. Ensembles,
    versions with a response cache and signatures with a latency objective refuse nothing here. A refusal costs much
    less than one that knows the model. The thread of the host's event loop owns it.
    """

    def __init__(self, serving: Callable[[], Sequence[Loaded]], traffic: Traffic, clock: Clock) -> None:
        """Ask `serving` for the versions that answer requests, and count refusals in `traffic`."""
        self._serving = serving
        self._traffic = traffic
        self._clock = clock

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

    def lateness_s(self, deadline: Deadline) -> float:
        """Return by how many seconds any request would miss `deadline`, 0 for a request to accept.

        Count a request that would be late as refused.
        """
        if not deadline.is_finite or not self.may_refuse:
            return 0.0
        lateness_s = self._least_lateness_s(deadline)
        if lateness_s:
            self._traffic.refused["too_late"] += 1
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
