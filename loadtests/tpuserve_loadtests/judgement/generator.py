"""Verdict on the load generator, which may itself have limited the run."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tpuserve_loadtests.judgement.threshold import Threshold
from tpuserve_loadtests.measurement.measured import Measured

# A generator process can use one core. Above this use, the process probably limits the rate.
BUSY_CORES: Final = 0.9
# The generator keeps the schedule if 99 % of requests leave within this time after they are due. Alternatively, the
# delay may reach this share of p99 or of the latency limit.
LATE_MS: Final = 1.0
LATE_SHARE: Final = 0.1


@dataclass(frozen=True, slots=True)
class GeneratorVerdict:
    """Verdict on the load generator.

    `lag_p99_ms` is the p99 delay of sent requests in an open load. `limits` are the reasons to distrust the run. `lost`
    names workers that left, whose share the load therefore lacks.
    """

    cores: tuple[float, ...]
    lag_p99_ms: float | None
    dropped: int
    limits: tuple[str, ...]
    lost: tuple[str, ...] = ()

    @property
    def trusted(self) -> bool:
        """Whether the generator sent the load as configured."""
        return not self.limits

    @property
    def was_disturbed(self) -> bool:
        """Whether requests were late although the CPU was idle, perhaps because of another process."""
        return bool(self.limits) and not self.lost and not self.dropped and max(self.cores) < BUSY_CORES

    def fails(self, *, strict: bool) -> bool:
        """Return whether the generator fails the run.

        A lost worker always fails it. With `strict`, a generator at its limit fails it, too.
        """
        return bool(self.lost) or (strict and not self.trusted)


def judge_generator(measured: Measured, limits: Sequence[Threshold] = ()) -> GeneratorVerdict:
    """Judge CPU use, delays of sent requests, and dropped arrivals.

    If the run has latency `limits`, the lowest one sets the permitted delay.
    """
    lag_us = measured.recorder.lag.percentile_us(99)
    lag_ms = None if lag_us is None else lag_us / 1000
    dropped = measured.recorder.dropped
    reasons = [f"it lost the worker on {name}, so the figures omit that worker's requests" for name in measured.lost]
    if max(measured.cores) >= BUSY_CORES:
        several = "one of its processes" if len(measured.cores) > 1 else "it"
        reasons.append(f"{several} used {max(measured.cores):.2f} of one core; increase --processes")
    if dropped:
        reasons.append(f"{dropped:,} arrivals were dropped")
    least_ms = min((limit.value for limit in limits if limit.is_latency), default=0.0)
    tolerance_ms = max(LATE_MS, LATE_SHARE * max(measured.total.percentile_ms(99) or 0.0, least_ms))
    if lag_ms is not None and lag_ms > tolerance_ms:
        idle = f", although it used only {max(measured.cores):.2f} cores; another process may have used its CPU"
        why = "" if reasons else idle
        reasons.append(f"1 % of requests were sent more than {lag_ms:.1f} ms late{why}")
    return GeneratorVerdict(measured.cores, lag_ms, dropped, tuple(reasons), measured.lost)
