"""Pixel values after a model's leading arithmetic, and the range of pixel values that the arithmetic expects."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from tpuserve_exporter.terms.signature import Array

# Sample values for the arithmetic: the ends of 0..1 and of 0..255.
_POINTS = np.array([[0.0], [1.0], [255.0]])
# Largest magnitude of normalized values: (0 - 0.485) / 0.229 is -2.1, and some models divide by less.
_NORMALISED = 16.0
# Largest magnitude of values minus their mean: 0 - 123.68 to 255 - 103.94.
_CENTRED = 300.0
# A smaller range means that the values are divided twice.
_LEAST_RANGE = 0.05

Operation = Callable[[Array, Array], Array]


@dataclass(frozen=True, slots=True)
class PixelValues:
    """The values 0, 1 and 255, in rows, after the arithmetic so far. Each column is one combination of constants.

    `operations` describe the arithmetic for reports, in the order of the graph.
    """

    values: Array = field(default_factory=lambda: _POINTS)
    operations: tuple[str, ...] = ()

    def apply(self, operation: Operation, constant: Array, described: str) -> "PixelValues":
        """Compute `operation(values, constant)` for the smallest and largest element of the constant.

        An operation that changes no value, such as `+ 0`, adds no description.
        """
        extremes = np.unique([np.min(constant), np.max(constant)]).astype(np.float64)
        with np.errstate(all="ignore"):
            columns = [operation(self.values, one) for one in extremes]
        if all(np.array_equal(one, self.values) for one in columns):
            return self
        return PixelValues(np.concatenate(columns, axis=1), (*self.operations, described))

    @property
    def are_of_bytes(self) -> bool:
        """Whether the arithmetic normalizes or centers values of 0 to 255."""
        return bool(self.operations) and _are_prepared(self.values[[0, 2]])

    @property
    def are_of_units(self) -> bool:
        """Whether the arithmetic normalizes or centers values of 0 to 1, and not those of 0 to 255."""
        moved = np.abs(self.values - _POINTS)[:2].max() >= _LEAST_RANGE
        return bool(moved) and not self.are_of_bytes and _are_prepared(self.values[[0, 1]])


def _are_prepared(ends: Array) -> bool:
    if not np.isfinite(ends).all():
        return False
    largest, ranges = np.abs(ends).max(), np.abs(ends[1] - ends[0])
    is_centred = bool((ends.min(axis=0) <= -_NORMALISED).all()) and largest <= _CENTRED
    return bool((ranges >= _LEAST_RANGE).all()) and (largest <= _NORMALISED or is_centred)
