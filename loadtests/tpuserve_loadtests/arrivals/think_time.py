"""Think time: the pause of a closed load's user between a response and its next request."""

import re
from dataclasses import dataclass
from random import Random
from typing import Final, Self

from tpuserve_loadtests.arrivals.duration import parse_duration

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
