"""Durations in the format of the command line: `10s`, `2m`, `1h30m`, `0.5`."""

import re

import click

_UNIT_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)")
_WHOLE = re.compile(rf"(?:{_PART.pattern})+")


def parse_duration(text: str, *, zero: bool = False) -> float:
    """Parse a number of seconds, or numbers with units, to seconds.

    Raises ValueError for an invalid text, and for 0 unless `zero`.
    """
    cleaned = text.strip().lower()
    if re.fullmatch(r"\d+(\.\d+)?", cleaned):
        seconds = float(cleaned)
    elif _WHOLE.fullmatch(cleaned):
        seconds = sum(float(number) * _UNIT_S[unit] for number, unit in _PART.findall(cleaned))
    else:
        raise ValueError(f"{text!r} is not a duration. Write 10s, 2m, 1h30m or a number of seconds.")
    if seconds <= 0 and not zero:
        raise ValueError(f"{text!r} is not greater than 0 seconds.")
    return seconds


class Duration(click.ParamType[float]):
    """Click parameter type of a duration in seconds, which can be 0 if `zero`."""

    name = "duration"

    def __init__(self, *, zero: bool = False) -> None:
        self._zero = zero

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Convert to seconds. Raise a usage error for an invalid duration."""
        if isinstance(value, int | float):
            return float(value)
        try:
            return parse_duration(str(value), zero=self._zero)
        except ValueError as error:
            self.fail(str(error), param, ctx)
