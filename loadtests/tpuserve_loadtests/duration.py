"""Durations as people write them on a command line: `10s`, `2m`, `1h30m`, `0.5`."""

import re

import click

_UNIT_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)")
_WHOLE = re.compile(rf"(?:{_PART.pattern})+")


def parse_duration(text: str, *, zero: bool = False) -> float:
    """Seconds in `text`: a number of seconds, or numbers with units. ValueError for anything else; 0 only if `zero`."""
    cleaned = text.strip().lower()
    if re.fullmatch(r"\d+(\.\d+)?", cleaned):
        seconds = float(cleaned)
    elif _WHOLE.fullmatch(cleaned):
        seconds = sum(float(number) * _UNIT_S[unit] for number, unit in _PART.findall(cleaned))
    else:
        raise ValueError(f"{text!r} is not a duration; write 10s, 2m, 1h30m or a number of seconds")
    if seconds <= 0 and not zero:
        raise ValueError(f"{text!r} is not longer than nothing")
    return seconds


class Duration(click.ParamType[float]):
    """A click parameter in seconds; 0 is one if `zero`."""

    name = "duration"

    def __init__(self, *, zero: bool = False) -> None:
        self._zero = zero

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Seconds; a value that is no duration is a usage error."""
        if isinstance(value, int | float):
            return float(value)
        try:
            return parse_duration(str(value), zero=self._zero)
        except ValueError as error:
            self.fail(str(error), param, ctx)
