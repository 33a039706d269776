"""Tests for the results that a worker thread encodes."""

import numpy as np
import pytest

from tpuserve_server.core.types import Array
from tpuserve_server.frontends.large_result import is_large_result


@pytest.mark.parametrize(
    ("array", "expected"),
    [
        (np.zeros(1000, np.float32), False),
        (np.zeros(100_000, np.float32), True),
        (np.array([b"a"] * 100, np.object_), False),
        (np.array([b"a"] * 10_000, np.object_), True),
        (np.array([b"a" * 300_000], np.object_), True),
    ],
)
def test_numbers_count_by_size_and_strings_by_number_or_length(array: Array, expected: bool) -> None:
    assert is_large_result({"y": array}) is expected
    assert is_large_result({"x": np.zeros(1), "y": array}) is expected
