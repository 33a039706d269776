"""The highest rate that holds: widen until one does not, then bisect, then make sure of what was found.

What a rate is asked for comes in from outside; nothing here sends a request or knows the time.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

# Where nothing holds at a rate, the next is half of it, down to this share of the first.
_LOWEST: Final = 1 / 64
_WIDEN: Final = 2.0
# How often what one try said is taken back by another before the search ends all the same.
_CORRECTIONS: Final = 4


class Outcome(StrEnum):
    """Of a rate: it was shown to hold, or was not."""

    HOLDS = "holds"
    FAILS = "fails"


@dataclass(frozen=True, slots=True)
class Probe:
    """One rate that was tried, and why it is judged so."""

    rate_per_s: float
    outcome: Outcome
    reason: str

    @property
    def holds(self) -> bool:
        """Whether it was shown to hold."""
        return self.outcome is Outcome.HOLDS


@dataclass(frozen=True, slots=True)
class Found:
    """`best` is the highest rate that held, `ceiling` the one above that did not.

    No best: not even the lowest rate holds. No ceiling: the highest allowed one does.
    """

    best: Probe | None
    ceiling: Probe | None


Try = Callable[[float], Probe]


def search(attempt: Try, start_per_s: float, highest_per_s: float, precision: float) -> Found:
    """Try rates until what holds and what does not are within `precision` (0.02: 2 %) of each other, both tried twice.

    A rate near the limit holds with some arrivals and not with others: one try would end the search too soon.
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
    """The next rate below that holds, in growing steps; None if there is none."""
    step = precision
    while ceiling.rate_per_s / (1 + step) >= lowest_per_s:
        probe = attempt(ceiling.rate_per_s / (1 + step))
        if probe.holds:
            return probe
        ceiling, step = probe, 2 * step
    return None


def _above(attempt: Try, best: Probe, highest_per_s: float, precision: float) -> tuple[Probe, Probe | None]:
    """The highest rate that holds and the one above it that does not, in growing steps."""
    step = precision
    while best.rate_per_s < highest_per_s:
        probe = attempt(min(best.rate_per_s * (1 + step), highest_per_s))
        if not probe.holds:
            return best, probe
        best, step = probe, 2 * step
    return best, None


def _widen(attempt: Try, start_per_s: float, highest_per_s: float) -> tuple[Probe | None, Probe | None]:
    """A rate that holds and one that does not; either may be missing."""
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
