"""Prediction of gates that a running load can no longer pass. Only results that later requests cannot change count."""

from collections.abc import Callable
from dataclasses import dataclass

from tpuserve_loadtests.arrivals.load import Load
from tpuserve_loadtests.judgement.threshold import Threshold
from tpuserve_loadtests.measurement.recorder import Counts

# Factor for the estimated number of requests of a closed load, which can turn out too low.
_CLOSED_MARGIN = 2.0
# Factor for the random number of requests of an open load. A mean of 1,000 requests exceeds 1,100 once in 1,000 runs.
_OPEN_MARGIN = 1.1
# Smallest measured share of a run for an estimate.
_LEAST_SHARE = 0.2


@dataclass(frozen=True, slots=True)
class Hopeless:
    """Watcher of one load, whose `limits_us` correspond to `latency_gates` in order."""

    gates: tuple[Threshold, ...]
    load: Load

    def why(self, elapsed_s: float, counts: Counts) -> str:
        """Return the gate that the run can no longer pass, or an empty string."""
        most = self._most_requests(elapsed_s, counts)
        if most is None:
            return ""
        late = dict(zip(latency_gates(self.gates), counts.late, strict=True))
        for gate in self.gates:
            if gate.metric == "error_rate" and gate.upper and counts.failures > gate.value * most:
                return f"stopped early: {gate} is certain after {counts.failures:,} failures"
            if gate.metric == "wrong" and gate.upper and counts.wrong > gate.value:
                return f"stopped early: {gate} is certain"
            if gate in late and late[gate] > _late_share(gate) * most:
                return f"stopped early: {gate} is certain after {late[gate]:,} late responses"
        return ""

    def further(self, began_s: float, before: Counts) -> Callable[[float, Counts], str]:
        """Return `why` for a later part of the load.

        The part began `began_s` seconds after the start of the warm-up. `before` holds the counts until then.
        """
        return lambda elapsed_s, counts: self.why(began_s + elapsed_s, before + counts)

    def _most_requests(self, elapsed_s: float, counts: Counts) -> float | None:
        """Return an upper bound for the number of requests of the whole load, or None if it is too early."""
        planned = self._planned_requests(elapsed_s, counts)
        if not self.load.requests:
            return planned
        return self.load.requests if planned is None else min(planned, self.load.requests)

    def _planned_requests(self, elapsed_s: float, counts: Counts) -> float | None:
        """Return the bound that the duration sets."""
        offered = self.load.offered_per_s
        if offered is not None:
            return offered * self.load.seconds * (1.0 if self.load.trace else _OPEN_MARGIN)
        share = (elapsed_s - self.load.warm_up_s) / self.load.seconds
        return _CLOSED_MARGIN * counts.requests / share if share >= _LEAST_SHARE else None


def latency_gates(gates: tuple[Threshold, ...]) -> tuple[Threshold, ...]:
    """Return the gates that limit the number of late responses: percentiles and the largest latency."""
    return tuple(gate for gate in gates if gate.upper and (gate.percentile is not None or gate.metric == "max"))


def limits_us(gates: tuple[Threshold, ...]) -> tuple[float, ...]:
    """Return the latency limits that a load must count for `Hopeless`.

    They exceed the gates by 0.1 %, because histograms round by that much.
    """
    return tuple(gate.value * 1000 * 1.001 for gate in latency_gates(gates))


def _late_share(gate: Threshold) -> float:
    return 0.0 if gate.percentile is None else 1 - gate.percentile / 100
