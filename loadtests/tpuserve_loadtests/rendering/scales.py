"""Scales of axes, which map values to positions and choose the ticks, and numbers as readable text."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, Self, TypeAlias

MIB: Final = 2**20
_MOST_DECIMALS: Final = 15


def three_digits(value: float) -> str:
    """Format a number, as `0.412`, `3.50`, `47.1` or `1,234`."""
    if value == 0:
        return "0"
    decimals = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2 if abs(value) >= 1 else 3
    return f"{value:,.{decimals}f}"


def milliseconds(value: float | None) -> str:
    """Format a latency. None means that there was no response, or that it falls among failed requests."""
    return "no responses" if value is None else f"{three_digits(value)} ms"


def per_second(value: float) -> str:
    return f"{three_digits(value)}/s"


def percent(part: float) -> str:
    """Format a share from 0 to 1, as `0 %`, `0.1 %` or `99.9 %`."""
    return f"{100 * part:.3g} %"


def three_significant(value: float) -> str:
    """Format an amount of any size with three significant digits, as `0.0000347`, `0.412` or `1,234`."""
    if value <= 0 or value >= 1:
        return three_digits(value)
    return f"{value:.{min(2 - math.floor(math.log10(value)), _MOST_DECIMALS)}f}"


def seconds(value: float) -> str:
    """Format a duration, as `10 s`, `2 min` or `1.5 h`."""
    for size, unit in ((3600, "h"), (60, "min")):
        if value >= 2 * size:
            return f"{value / size:.3g} {unit}"
    return f"{value:.3g} s"


# Values with their labels.
Ticks: TypeAlias = Sequence[tuple[float, str]]

_MOST_TICKS: Final = 6
_MOST_NAMES: Final = 8
# Beyond this ratio between the largest and smallest value, only a logarithmic axis shows differences.
_WIDE: Final = 20.0


class Scale(Protocol):
    def place(self, value: float) -> float:
        """Return the position from 0, the start of the axis, to 1, its end. Values outside the axis lie beyond."""

    def ticks(self) -> Ticks: ...


@dataclass(frozen=True, slots=True)
class Linear:
    low: float
    high: float

    @classmethod
    def around(cls, values: Iterable[float], *, zero: bool = True) -> Self:
        """Return a scale for all values, extended to the next tick. It includes 0 unless `zero` is False."""
        found = list(values)
        low, high = min(found, default=0.0), max(found, default=1.0)
        low = 0.0 if zero else low
        high = high if high > low else low + (abs(low) or 1.0)
        step = _step(high - low)
        return cls(math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step)

    def place(self, value: float) -> float:
        return (value - self.low) / (self.high - self.low)

    def ticks(self) -> Ticks:
        step = _step(self.high - self.low)
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        decimals = max(-math.floor(math.log10(step) + 1e-9), 0)
        return [(number * step, f"{number * step:,.{decimals}f}") for number in range(first, last + 1)]


@dataclass(frozen=True, slots=True)
class Logarithmic:
    """A logarithmic scale from `low` to `high`, both above 0."""

    low: float
    high: float

    @classmethod
    def around(cls, values: Iterable[float]) -> Self:
        found = [value for value in values if value > 0] or [1.0]
        low, high = min(found), max(found)
        return cls(low / 1.1, max(high * 1.1, low * 2))

    def place(self, value: float) -> float:
        return math.log(max(value, 1e-9) / self.low) / math.log(self.high / self.low)

    def ticks(self) -> Ticks:
        first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
        for digits in ((1, 2, 3, 5, 7), (1, 2, 5), (1, 3), (1,)):
            values = [digit * 10.0**power for power in range(first, last + 1) for digit in digits]
            within = [value for value in values if self.low <= value <= self.high]
            if len(within) <= _MOST_TICKS:
                return [(value, _plain(value)) for value in within]
        every = math.ceil(len(within) / _MOST_TICKS)
        return [(value, _plain(value)) for value in within[::every]]


@dataclass(frozen=True, slots=True)
class Named:
    """A scale of names at equal distances, with the first at 1."""

    names: Sequence[str]

    def place(self, value: float) -> float:
        return (value - 0.5) / len(self.names)

    def ticks(self) -> Ticks:
        every = math.ceil(len(self.names) / _MOST_NAMES)
        return [(float(number), name) for number, name in enumerate(self.names, start=1)][::every]


@dataclass(frozen=True, slots=True)
class Nines:
    """A scale of shares from 0 to 1 with the same width for each further nine.

    It reaches 1 - 1 / `count`, and shows 1 at its end.
    """

    count: int

    def place(self, value: float) -> float:
        decades = math.log10(max(self.count, 10))
        return min(-math.log10(max(1 - value, 1e-12)) / decades, 1.0)

    def ticks(self) -> Ticks:
        decades = math.log10(max(self.count, 10))
        nines = [(1 - 10.0**-power, f"{100 - 10.0 ** (2 - power):g} %") for power in range(1, math.floor(decades) + 1)]
        every = math.ceil(len(nines) / _MOST_TICKS)
        return [(0.0, "0 %"), *([(0.5, "50 %")] if decades < 3 else []), *nines[::every]]


def latency_scale(values: Iterable[float]) -> Linear | Logarithmic:
    """Return a logarithmic scale if the values differ widely, else a linear one."""
    found = [value for value in values if value > 0]
    return Logarithmic.around(found) if found and max(found) > _WIDE * min(found) else Linear.around(found)


def _step(span: float) -> float:
    rough = span / (_MOST_TICKS - 1)
    power = 10.0 ** math.floor(math.log10(rough))
    return next(digit * power for digit in (1, 2, 5, 10) if digit * power >= rough * (1 - 1e-9))


def _plain(value: float) -> str:
    return f"{value:,.0f}" if value >= 1 else f"{value:g}"
