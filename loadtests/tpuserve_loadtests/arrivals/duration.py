"""Durations as the command line writes them (`10s`, `2m`, `1h30m`, `0.5`), and think times of a closed load's users."""

import re
from dataclasses import dataclass
from random import Random
from typing import Final, Self

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


FORMS: Final = "200ms or 'exponential(200ms)'"
_FORM: Final = re.compile(r"(?:(exponential)\(\s*([^()]+?)\s*\)|([^()]+))")


@dataclass(frozen=True, slots=True)
class ThinkTime:
    """A constant pause, or exponentially distributed pauses with this mean, in seconds."""

    mean_s: float
    is_exponential: bool = False

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse `200ms` or `exponential(200ms)`. Raises ValueError."""
        found = _FORM.fullmatch(text.strip().lower())
        try:
            if found is not None:
                return cls(parse_duration(found[2] or found[3]), is_exponential=bool(found[1]))
        except ValueError:
            pass
        raise ValueError(f"{text!r} is not a think time. Write {FORMS}.")

    def draw_s(self, random: Random) -> float:
        """Return the next pause in seconds."""
        return random.expovariate(1 / self.mean_s) if self.is_exponential else self.mean_s

    def __str__(self) -> str:
        mean = f"{1000 * self.mean_s:.4g} ms" if self.mean_s < 1 else f"{self.mean_s:.4g} s"
        return f"{'exponential ' if self.is_exponential else ''}think time {mean}"
