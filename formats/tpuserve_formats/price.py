"""Prices of a machine per hour, in the format of the command line: `1.20`, `1.20EUR`, `1.20 EUR`; and costs of work."""

import re
from dataclasses import dataclass
from typing import Final, Self

from tpuserve_formats.errors import FormatError

DEFAULT_CURRENCY: Final = "USD"
# Limits that keep every derived figure finite.
LEAST: Final = 1e-6
MOST: Final = 1e6
_HOUR_S: Final = 3600
_MILLION: Final = 1_000_000
_FORM: Final = re.compile(r"(\d{1,9}(?:\.\d{1,9})?|\.\d{1,9}) ?([A-Za-z]{3})?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Price:
    """The price of a machine for an hour. `currency` is a label of three letters. Nothing converts currencies."""

    per_hour: float
    currency: str = DEFAULT_CURRENCY

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a number with an optional currency. Raises FormatError."""
        found = _FORM.fullmatch(text.strip())
        if found is None or not LEAST <= float(found[1]) <= MOST:
            raise FormatError(
                f"{text!r} is not a price per hour. Write a number from {LEAST:.6f} to {MOST:,.0f}, and a currency of "
                f"three letters if it is not {DEFAULT_CURRENCY}: 1.20 or '1.20 EUR'."
            )
        return cls(float(found[1]), (found[2] or DEFAULT_CURRENCY).upper())

    def __str__(self) -> str:
        return f"{self.per_hour:.10g} {self.currency}/h"


def per_million(cost_per_hour: float, rate_per_s: float) -> float:
    """Return the cost of a million predictions or requests at a rate above 0.

    cost = cost per hour / (3,600 s * rate per second) * 1,000,000
    """
    return cost_per_hour / (_HOUR_S * rate_per_s) * _MILLION
