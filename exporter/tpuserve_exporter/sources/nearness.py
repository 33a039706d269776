"""Evidence that stored values are an average of the weights: such an average is near the weights.

An average of gradients has the same names and shapes, but points elsewhere and is far shorter. An average that started
at zero points as the weights do, but is shorter until training has filled it.
"""

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from tpuserve_exporter.errors import CheckpointMismatch
from tpuserve_exporter.terms.signature import Array

_Key = TypeVar("_Key", bound=Hashable)

# Averages of weights between early and late training are within these limits.
_LEAST_COSINE = 0.5
_SHORTEST, _LONGEST = 0.5, 2.0
# Above this cosine, a short average is one of the weights that still has a bias towards zero.
_PARALLEL = 0.9
# Shorter lengths are shown with two digits.
_LEAST_SHOWN = 0.1
# The most elements to compare, which bounds the memory.
_MOST_ELEMENTS = 2**23


@dataclass(frozen=True, slots=True)
class Nearness:
    """The cosine between an average and the weights, and the length of the average relative to theirs."""

    cosine: float
    length: float

    @property
    def is_alike(self) -> bool:
        """Whether the lengths are alike."""
        return _SHORTEST <= self.length <= _LONGEST

    @property
    def is_aligned(self) -> bool:
        """Whether both point to the same side, whatever their lengths."""
        return self.cosine >= _LEAST_COSINE

    @property
    def is_biased(self) -> bool:
        return self.cosine >= _PARALLEL and self.length < _SHORTEST

    def __str__(self) -> str:
        length = f"{self.length:.2f}" if self.length >= _LEAST_SHOWN else f"{self.length:.2g}"
        return f"{length} times their length, cosine {self.cosine:.2f}"


def choose_compared(sizes: Mapping[_Key, int]) -> list[_Key]:
    """Choose the values to compare by their numbers of elements: the smallest ones, within a limit of memory."""
    chosen, total = list[_Key](), 0
    for key in sorted(sizes, key=lambda one: sizes[one]):
        total += sizes[key]
        if total > _MOST_ELEMENTS:
            break
        chosen.append(key)
    return chosen


def measure(pairs: Iterable[tuple[Array, Array]]) -> Nearness | None:
    """Compare averages with the weights, in pairs. Return None if either side is zero or has no values."""
    product = average = weights = 0.0
    for one, other in pairs:
        a, b = np.ravel(one).astype(np.float64), np.ravel(other).astype(np.float64)
        product, average, weights = product + float(a @ b), average + float(a @ a), weights + float(b @ b)
    if not average or not weights:
        return None if not weights else Nearness(0.0, 0.0)
    return Nearness(product / np.sqrt(average * weights), float(np.sqrt(average / weights)))


def check_near(nearness: Nearness | None, average: str, weights: str, strictly: bool = False) -> str:
    """Return a description of the comparison for the provenance, or an empty string without one.

    Raises CheckpointMismatch if the lengths differ, and `strictly` also if the average points elsewhere. The exporter
    is strict unless the user has required this average: one that training has not filled may have the first weights.
    """
    if nearness is None:
        return ""
    if nearness.is_biased:
        raise CheckpointMismatch(
            f"{average} is biased towards zero: it points as {weights} do, but is {nearness}. Training has not filled "
            "it, or corrects the bias by a decay that the checkpoint does not have. Use --weights raw"
        )
    if not nearness.is_alike or (strictly and not nearness.is_aligned):
        raise too_far(nearness, average, weights)
    return f"compared with {weights}: {nearness}"


def too_far(nearness: Nearness, average: str, weights: str) -> CheckpointMismatch:
    """Return the error for an average that is not one of weights."""
    return CheckpointMismatch(
        f"{average} is far from {weights}: {nearness}. An average of weights is near them, an average of gradients is "
        "not. Use --weights raw"
    )
