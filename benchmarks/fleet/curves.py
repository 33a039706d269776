"""Load curves: requests a second over time, in multiples of what one server can do."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

Rate: TypeAlias = Callable[[float], float]

# Load before a step, for two servers at 65 %.
_BASE: Final = 1.3
_STEP_S: Final = 1800.0


@dataclass(frozen=True, slots=True)
class Curve:
    """A load in multiples of one server's capacity. `retries`: attempts of a client after a refusal.

    `step_s` is the time of a sudden increase, or None without one.
    """

    name: str
    seconds: float
    rate: Rate
    step_s: float | None = None
    retries: int = 0


def _step(at_s: float) -> float:
    return _BASE * (4 if at_s >= _STEP_S else 1)


def _spike(at_s: float) -> float:
    return _BASE * (4 if _STEP_S <= at_s < _STEP_S + 600 else 1)


def _day(at_s: float) -> float:
    # From half to four times the base, with the peak in the afternoon.
    return _BASE * (2.25 - 1.75 * math.cos(2 * math.pi * (at_s / 86400 - 0.125)))


def _storm(at_s: float) -> float:
    return _BASE * (3 if _STEP_S <= at_s < _STEP_S + 1800 else 1)


CURVES: Final = (
    Curve("step", 7200.0, _step, step_s=_STEP_S),
    Curve("spike", 14400.0, _spike, step_s=_STEP_S),
    Curve("day", 86400.0, _day),
    Curve("storm", 14400.0, _storm, step_s=_STEP_S, retries=3),
)
