"""Whether the load generator itself can be trusted, or was what limited the run."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tpuserve_loadtests.judgement.threshold import Threshold
from tpuserve_loadtests.measurement.measured import Measured

# From here on a process of the generator, which has one core, is likely what limits the rate.
BUSY_CORES: Final = 0.9
# A schedule is kept if 99 % of requests leave no later than this after they are due, or than this share of p99 or of
# what latencies are held against.
LATE_MS: Final = 1.0
LATE_SHARE: Final = 0.1


@dataclass(frozen=True, slots=True)
class GeneratorVerdict:
    """`lag_p99_ms`: how late requests were sent, of an open load. `limits`: why the run is not to be trusted.

    `lost`: workers without whose share the load was not what was asked for.
    """

    cores: tuple[float, ...]
    lag_p99_ms: float | None
    dropped: int
    limits: tuple[str, ...]
    lost: tuple[str, ...] = ()

    @property
    def trusted(self) -> bool:
        """Whether the generator did what the load asks for."""
        return not self.limits

    @property
    def was_disturbed(self) -> bool:
        """Whether it was late though it had time: something else had the machine, and another run may go better."""
        return bool(self.limits) and not self.lost and not self.dropped and max(self.cores) < BUSY_CORES

    def fails(self, *, strict: bool) -> bool:
        """Whether the run fails of it. `strict`: at its limit, too; a load that was not sent as a whole always does."""
        return bool(self.lost) or (strict and not self.trusted)


def judge_generator(measured: Measured, limits: Sequence[Threshold] = ()) -> GeneratorVerdict:
    """Look at CPU, at how late requests were sent, and at arrivals that were dropped.

    Where latencies are held against `limits`, late is what matters to the least of them.
    """
    lag_us = measured.recorder.lag.percentile_us(99)
    lag_ms = None if lag_us is None else lag_us / 1000
    dropped = measured.recorder.dropped
    reasons = [f"its worker on {name} is gone, and what it sent is in no figure" for name in measured.lost]
    if max(measured.cores) >= BUSY_CORES:
        several = "one of its processes" if len(measured.cores) > 1 else "it"
        reasons.append(
            f"{several} used {max(measured.cores):.2f} cores of the one that it can use: --processes takes more"
        )
    if dropped:
        reasons.append(f"{dropped:,} arrivals were dropped")
    least_ms = min((limit.value for limit in limits if limit.is_latency), default=0.0)
    tolerance_ms = max(LATE_MS, LATE_SHARE * max(measured.total.percentile_ms(99) or 0.0, least_ms))
    if lag_ms is not None and lag_ms > tolerance_ms:
        idle = f", though it used only {max(measured.cores):.2f} cores: something else may have had its machine"
        why = "" if reasons else idle
        reasons.append(f"1 % of requests were sent more than {lag_ms:.1f} ms late{why}")
    return GeneratorVerdict(measured.cores, lag_ms, dropped, tuple(reasons), measured.lost)
