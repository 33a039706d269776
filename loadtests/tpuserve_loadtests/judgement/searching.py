"""Search for the highest rate that holds: widen the range until a rate fails, bisect it, then verify the result.

The caller supplies the function that tries a rate. This module sends no requests and reads no clock.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

# The search halves a failing rate, down to this share of the first rate.
_LOWEST: Final = 1 / 64
_WIDEN: Final = 2.0
# Limit for results that a repeated trial reverses, after which the search ends.
_CORRECTIONS: Final = 4


class Outcome(StrEnum):
    """The result of a trial: the rate was shown to hold, or not."""

    HOLDS = "holds"
    FAILS = "fails"


@dataclass(frozen=True, slots=True)
class Probe:
    """A trial of one rate, with the reason for its result."""

    rate_per_s: float
    outcome: Outcome
    reason: str

    @property
    def holds(self) -> bool:
        """Whether the rate was shown to hold."""
        return self.outcome is Outcome.HOLDS


@dataclass(frozen=True, slots=True)
class Found:
    """The result of a search: `best` is the highest rate that held, `ceiling` the next rate, which failed.

    If `best` is None, even the lowest rate fails. If `ceiling` is None, the highest permitted rate holds.
    """

    best: Probe | None
    ceiling: Probe | None


Try = Callable[[float], Probe]


def search(attempt: Try, start_per_s: float, highest_per_s: float, precision: float) -> Found:
    """Search until a passing and a failing rate are within `precision` (0.02: 2 %), each confirmed by a second trial.

    A rate near the limit holds only with some arrivals, so a single trial could end the search too early.
    """
    best, ceiling = _widen(attempt, start_per_s, highest_per_s)
    if best is None or ceiling is None:
        return Found(best, ceiling)
    for _ in range(_CORRECTIONS):
        best, ceiling = _bisect(attempt, best, ceiling, precision)
        again = attempt(best.rate_per_s)
        if not again.holds:
            ceiling, below = again, _below(attempt, again, start_per_s * _LOWEST, precision)
            if below is None:
                return Found(None, ceiling)
            best = below
            continue
        best = again
        above = attempt(ceiling.rate_per_s)
        if not above.holds:
            return Found(best, above)
        best, ceiling = _above(attempt, above, highest_per_s, precision)
        if ceiling is None:
            return Found(best, None)
    return Found(best, ceiling)


def _below(attempt: Try, ceiling: Probe, lowest_per_s: float, precision: float) -> Probe | None:
    """Return the next lower rate that holds, or None. The steps grow."""
    step = precision
    while ceiling.rate_per_s / (1 + step) >= lowest_per_s:
        probe = attempt(ceiling.rate_per_s / (1 + step))
        if probe.holds:
            return probe
        ceiling, step = probe, 2 * step
    return None


def _above(attempt: Try, best: Probe, highest_per_s: float, precision: float) -> tuple[Probe, Probe | None]:
    """Return the highest rate that holds and the next one that fails. The steps grow."""
    step = precision
    while best.rate_per_s < highest_per_s:
        probe = attempt(min(best.rate_per_s * (1 + step), highest_per_s))
        if not probe.holds:
            return best, probe
        best, step = probe, 2 * step
    return best, None


def _widen(attempt: Try, start_per_s: float, highest_per_s: float) -> tuple[Probe | None, Probe | None]:
    """Return a rate that holds and one that fails, or None for either."""
    probe = attempt(min(start_per_s, highest_per_s))
    if probe.holds:
        while probe.rate_per_s < highest_per_s:
            above = attempt(min(probe.rate_per_s * _WIDEN, highest_per_s))
            if not above.holds:
                return probe, above
            probe = above
        return probe, None
    while probe.rate_per_s / _WIDEN >= start_per_s * _LOWEST:
        below = attempt(probe.rate_per_s / _WIDEN)
        if below.holds:
            return below, probe
        probe = below
    return None, probe


def _bisect(attempt: Try, best: Probe, ceiling: Probe, precision: float) -> tuple[Probe, Probe]:
    while ceiling.rate_per_s > best.rate_per_s * (1 + precision):
        middle = attempt((best.rate_per_s * ceiling.rate_per_s) ** 0.5)
        if middle.holds:
            best = middle
        else:
            ceiling = middle
    return best, ceiling
