"""Comparison of arrays that two parsers read from the same input."""

from collections.abc import Mapping

import numpy as np

from tests.fuzz.target import expect
from tpuserve_formats.dtypes import STRING, Array


def expect_same(name: str, got: Array, wanted: Array) -> None:
    """Check that dtype, shape and every bit agree. All NaNs count as one value."""
    expect(got.dtype == wanted.dtype, f"{name}: dtype {got.dtype} and {wanted.dtype}")
    expect(got.shape == wanted.shape, f"{name}: shape {got.shape} and {wanted.shape}")
    if got.dtype == STRING:
        # Flat: nested lists of an empty array with large sizes would fill the memory.
        left, right = got.ravel().tolist(), wanted.ravel().tolist()
        expect(left == right, f"{name}: {left} and {right}")
    elif got.tobytes() != wanted.tobytes():
        expect(got.dtype.kind not in "biu", f"{name}: {got} and {wanted}")
        numbers = np.complex128 if got.dtype.kind == "c" else np.float64
        are_equal = np.array_equal(got.astype(numbers), wanted.astype(numbers), equal_nan=True)
        expect(are_equal, f"{name}: {got} and {wanted}")


def expect_all_same(got: Mapping[str, Array], wanted: Mapping[str, Array]) -> None:
    """Check that both have the same arrays by name."""
    expect(got.keys() == wanted.keys(), f"{sorted(got)} and {sorted(wanted)}")
    for name, array in got.items():
        expect_same(name, array, wanted[name])
