"""Comparison of served outputs with those of the source model, for the examples and for tests of other models."""

from typing import Any

import numpy as np

from examples.example import Array, Tensors


class Differs(Exception):
    """An output differs from the source's. `largest` is the largest difference, or None if it cannot be computed."""

    def __init__(self, message: str, largest: float | None = None) -> None:
        super().__init__(message)
        self.largest = largest


def largest_difference(expected: Tensors, served: Tensors, atol: float, rtol: float, *, dtypes: bool = True) -> float:
    """Return the largest absolute difference over all outputs. Raises Differs for names, shapes, dtypes and values.

    A value may differ by `atol + rtol * |expected|`. NaN and infinity equal only themselves. Strings must be equal.
    `dtypes` is False for responses without dtypes, such as JSON.
    """
    if expected.keys() != served.keys():
        raise Differs(f"the outputs are {sorted(served)}, expected {sorted(expected)}")
    return max((_difference(name, expected[name], served[name], atol, rtol, dtypes) for name in expected), default=0.0)


def _difference(name: str, expected: Array, served: Array, atol: float, rtol: float, dtypes: bool) -> float:
    if served.shape != expected.shape:
        raise Differs(f"{name} has shape {list(served.shape)}, expected {list(expected.shape)}")
    if expected.dtype.kind in "OSU":
        if _texts(served) != _texts(expected):
            raise Differs(f"{name} is {_texts(served)[:3]}, expected {_texts(expected)[:3]}")
        return 0.0
    if dtypes and served.dtype != expected.dtype:
        raise Differs(f"{name} has dtype {served.dtype}, expected {expected.dtype}")
    wide = np.complex128 if expected.dtype.kind == "c" else np.float64
    want, got = expected.astype(wide), served.astype(wide)
    same = (want == got) | (np.isnan(want) & np.isnan(got))
    both = np.isfinite(want) & np.isfinite(got)
    gaps = np.where(same, 0.0, np.inf)
    gaps[both] = np.abs(got[both] - want[both])
    largest = float(gaps.max(initial=0.0))
    if not np.all(gaps <= atol + rtol * np.abs(np.where(both, want, 0.0))):
        raise Differs(f"{name} differs by up to {largest:.3g}", largest)
    return largest


def _texts(array: Array) -> list[bytes]:
    values: list[Any] = array.reshape(-1).tolist()
    return [one.encode() if isinstance(one, str) else bytes(one) for one in values]
