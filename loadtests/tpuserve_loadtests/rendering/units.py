"""Numbers as readable text, with three significant digits and thousands separators."""

import math
from typing import Final

MIB: Final = 2**20
_MOST_DECIMALS: Final = 15


def three_digits(value: float) -> str:
    """Format a number, as `0.412`, `3.50`, `47.1` or `1,234`."""
    if value == 0:
        return "0"
    decimals = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2 if abs(value) >= 1 else 3
    return f"{value:,.{decimals}f}"


def milliseconds(value: float | None) -> str:
    """Format a latency. None means that there was no successful response."""
    return "no responses" if value is None else f"{three_digits(value)} ms"


def per_second(value: float) -> str:
    """Format a rate."""
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
