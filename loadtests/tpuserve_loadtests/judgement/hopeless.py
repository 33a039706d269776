"""Whether a run that is not over can still pass its gates. Only what cannot be made good any more counts."""

from collections.abc import Callable
from dataclasses import dataclass

from tpuserve_loadtests.arrivals.load import Load
from tpuserve_loadtests.judgement.threshold import Threshold
from tpuserve_loadtests.measurement.recorder import Counts

# How many requests a closed load will have sent is guessed from those so far, and may turn out so many times higher.
_CLOSED_MARGIN = 2.0
# An open load's number is random: a thousand requests on average are 1,100 but once in a thousand runs.
_OPEN_MARGIN = 1.1
# Guesses from less of the run than this are worth nothing.
_LEAST_SHARE = 0.2


@dataclass(frozen=True, slots=True)
class Hopeless:
    """Watches one load. Its `limits_us` are those of `latency_gates`, in that order."""

    gates: tuple[Threshold, ...]
    load: Load

    def why(self, elapsed_s: float, counts: Counts) -> str:
        """What the run can no longer pass, however it goes on; empty while it can."""
        most = self._most_requests(elapsed_s, counts)
        if most is None:
            return ""
        late = dict(zip(latency_gates(self.gates), counts.late, strict=True))
        for gate in self.gates:
            if gate.metric == "error_rate" and gate.upper and counts.failures > gate.value * most:
                return f"stopped early: {gate} whatever comes, after {counts.failures:,} failures"
            if gate.metric == "wrong" and gate.upper and counts.wrong > gate.value:
                return f"stopped early: {gate} whatever comes"
            if gate in late and late[gate] > _late_share(gate) * most:
                return f"stopped early: {gate} whatever comes, after {late[gate]:,} late answers"
        return ""

    def further(self, began_s: float, before: Counts) -> Callable[[float, Counts], str]:
        """As `why`, for a part of the load that began after so long, its warm-up in it, when so much was counted."""
        return lambda elapsed_s, counts: self.why(began_s + elapsed_s, before + counts)

    def _most_requests(self, elapsed_s: float, counts: Counts) -> float | None:
        """More requests than there will be in all."""
        offered = self.load.offered_per_s
        if offered is not None:
            return offered * self.load.seconds * (1.0 if self.load.trace else _OPEN_MARGIN)
        share = (elapsed_s - self.load.warm_up_s) / self.load.seconds
        return _CLOSED_MARGIN * counts.requests / share if share >= _LEAST_SHARE else None


def latency_gates(gates: tuple[Threshold, ...]) -> tuple[Threshold, ...]:
    """Gates on how many answers may be late: percentiles, and the largest latency."""
    return tuple(gate for gate in gates if gate.upper and (gate.percentile is not None or gate.metric == "max"))


def limits_us(gates: tuple[Threshold, ...]) -> tuple[float, ...]:
    """What a load must count for `Hopeless`. A thousandth above the gates: histograms round so much."""
    return tuple(gate.value * 1000 * 1.001 for gate in latency_gates(gates))


def _late_share(gate: Threshold) -> float:
    return 0.0 if gate.percentile is None else 1 - gate.percentile / 100
