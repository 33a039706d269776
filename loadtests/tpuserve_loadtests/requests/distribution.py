"""Distributions of positive integers, parsed from text: the number of rows in a request, the length of a text."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import NormalDist
from typing import Final, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

Integers: TypeAlias = NDArray[np.int64]

FORMS: Final = "8, 1:0.7,8:0.3, 1..16, poisson(4) or lognormal(64,0.5)"
# Larger values are implausible as numbers of rows or tokens, and their tables would need much memory.
LARGEST: Final = 1_000_000
_NUMBER: Final = r"(\d+(?:\.\d+)?)"
_FIXED: Final = re.compile(r"\d+")
_CHOICE: Final = re.compile(rf"(\d+):{_NUMBER}")
_UNIFORM: Final = re.compile(r"(\d+)\.\.(\d+)")
_POISSON: Final = re.compile(rf"poisson\({_NUMBER}\)")
_LOGNORMAL: Final = re.compile(rf"lognormal\({_NUMBER},{_NUMBER}\)")
# Distributions omit values beyond this many standard deviations.
_TAIL: Final = 4.0


@dataclass(frozen=True, slots=True)
class Distribution:
    """A distribution with `weights` of ascending `values`, in any unit, and its original `text`."""

    text: str
    values: tuple[int, ...]
    weights: tuple[float, ...]

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a number, weighted numbers (`1:0.7,8:0.3`), a uniform range (`1..16`) or a named distribution.

        `poisson(4)` has the mean 4 before its zeros are removed. `lognormal(64,0.5)` has the median 64 and the standard
        deviation 0.5 of logarithms. Raises ValueError.
        """
        written = text.replace(" ", "")
        if _FIXED.fullmatch(written):
            return cls._of(text, {int(written): 1.0})
        if all(_CHOICE.fullmatch(part) for part in written.split(",")):
            return cls.choice({int(number): float(weight) for number, weight in _CHOICE.findall(written)}, text)
        if found := _UNIFORM.fullmatch(written):
            low, high = int(found[1]), int(found[2])
            return cls._of(text, dict.fromkeys(range(low, min(high, LARGEST + 1) + 1), 1.0))
        if found := _POISSON.fullmatch(written):
            return cls._of(text, _poisson(float(found[1])))
        if found := _LOGNORMAL.fullmatch(written):
            return cls._of(text, _lognormal(float(found[1]), float(found[2])))
        raise ValueError(f"{text!r} is not a number or a distribution. Write {FORMS}.")

    @classmethod
    def choice(cls, weights: Mapping[int, float], text: str = "") -> Self:
        """Return a distribution of weighted numbers. Raises ValueError."""
        return cls._of(text or ",".join(f"{value}:{weight:g}" for value, weight in weights.items()), weights)

    @classmethod
    def _of(cls, text: str, weights: Mapping[int, float]) -> Self:
        kept = {value: weight for value, weight in sorted(weights.items()) if weight > 0}
        if not kept:
            raise ValueError(f"{text!r} has no valid values. Write {FORMS}.")
        if min(kept) < 1 or max(kept) > LARGEST:
            raise ValueError(
                f"{text!r} ranges from {min(kept)} to {max(kept):,}. Values must be from 1 to {LARGEST:,}."
            )
        return cls(text, tuple(kept), tuple(kept.values()))

    @property
    def is_fixed(self) -> bool:
        return len(self.values) == 1

    @property
    def mean(self) -> float:
        return float(np.average(self.values, weights=self.weights))

    def draw(self, count: int, random: np.random.Generator) -> Integers:
        """Return `count` values in random order, whose shares match the distribution's as closely as possible."""
        heights = np.cumsum(self.weights)
        places = np.searchsorted(heights, (np.arange(count) + 0.5) / count * heights[-1])
        return np.asarray(random.permutation(np.asarray(self.values, np.int64)[places]))

    def __str__(self) -> str:
        return self.text


def _poisson(mean: float) -> dict[int, float]:
    if not 0 < mean <= LARGEST / 2:
        return {}
    most = int(mean + _TAIL * math.sqrt(mean)) + 1
    return {value: math.exp(value * math.log(mean) - mean - math.lgamma(value + 1)) for value in range(1, most + 1)}


def _lognormal(median: float, sigma: float) -> dict[int, float]:
    if not 1 <= median <= LARGEST or not 0 < _TAIL * sigma <= math.log(LARGEST):
        return {}
    normal = NormalDist(math.log(median), sigma)
    most = int(median * math.exp(_TAIL * sigma)) + 1
    if most > LARGEST:
        return {most: 1.0}  # the caller rejects it as too large
    edges = [0.0, *(normal.cdf(math.log(value + 0.5)) for value in range(1, most + 1))]
    return {value: edges[value] - edges[value - 1] for value in range(1, most + 1)}
