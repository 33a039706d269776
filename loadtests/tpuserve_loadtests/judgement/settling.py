"""Figures over repeated runs: their medians with intervals, whether they settled, and gates."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from tpuserve_loadtests.judgement.threshold import GateResult, Threshold
from tpuserve_loadtests.measurement.measured import Measured
from tpuserve_loadtests.statistics.median_interval import MedianInterval, median_interval

# Latencies in milliseconds, and successful responses per second.
_VALUES: Final[dict[str, Callable[[Measured], float | None]]] = {
    "p50": lambda measured: measured.total.percentile_ms(50),
    "p90": lambda measured: measured.total.percentile_ms(90),
    "p99": lambda measured: measured.total.percentile_ms(99),
    "rate": lambda measured: measured.rate_per_s,
}
FIGURES: Final = tuple(_VALUES)


@dataclass(frozen=True, slots=True)
class Settling:
    """The figure that settles, and the largest distance of its interval from its median; 0.05 is 5 %."""

    figure: str
    within: float

    def is_settled(self, runs: Sequence[Measured]) -> bool:
        """Return whether the interval of the figure is narrow enough. See median_interval for the rule."""
        interval = interval_of(self.figure, runs)
        return interval is not None and interval.distance <= self.within


def value_of(figure: str, measured: Measured) -> float | None:
    """Return a figure of a run, or None if the server answered no request."""
    return _VALUES[figure](measured)


def interval_of(figure: str, runs: Sequence[Measured]) -> MedianInterval | None:
    """Return the median and interval of a figure. Return None for too few runs, or if a run has no value."""
    values = [value for measured in runs if (value := value_of(figure, measured)) is not None]
    return median_interval(values) if len(values) == len(runs) else None


def gates_over(gates: Sequence[Threshold], runs: Sequence[Measured]) -> tuple[GateResult, ...]:
    """Judge gates on repeated runs. A gate fails if it is true of its figure, or if a run has no figure for it.

    The figure of a percentile, `mean` or `rate` is the median of the runs, which a single bad run does not move. The
    other figures are those of all requests together, so that no failure is lost.
    """
    figures = [(gate, _figure_over(gate, runs)) for gate in gates]
    return tuple(GateResult(gate, figure, figure is None or gate.is_true_of(figure)) for gate, figure in figures)


def _figure_over(gate: Threshold, runs: Sequence[Measured]) -> float | None:
    found = [gate.figure(measured) for measured in runs]
    values = [value for value in found if value is not None]
    if not values or len(values) < len(found):
        return None
    match gate.metric:
        case "max":
            return max(values)
        case "wrong":
            return sum(values)
        case "error_rate":
            return _weighted(values, [measured.total.requests for measured in runs])
        case "wrong_rate":
            return _weighted(values, [measured.total.checked for measured in runs])
    return statistics.median(values)


def _weighted(values: Sequence[float], weights: Sequence[int]) -> float:
    return sum(value * weight for value, weight in zip(values, weights, strict=True)) / sum(weights)
