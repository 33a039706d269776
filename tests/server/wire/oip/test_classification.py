"""Tests for the classification extension."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tpuserve_server.core.terms.errors import InvalidArgument
from tpuserve_server.core.terms.types import TensorSpec
from tpuserve_server.wire.oip.classification import classify

BATCHED = TensorSpec("y", np.dtype(np.float32), (None, 3))


def test_each_row_has_its_largest_values_first_with_index_and_label() -> None:
    array = np.array([[0.25, 3, 1e-9], [7, 7, -1]], np.float32)
    strings = classify(array, BATCHED, 2, ("cat", "", "dog"))
    assert strings.tolist() == [[b"3.000000:1", b"0.250000:0:cat"], [b"7.000000:0:cat", b"7.000000:1"]]
    assert classify(array, BATCHED, 9, ("a", "b", "c"))[0].tolist()[2] == b"0.000000:2:c"


def test_inner_dimensions_are_one_list_of_classes() -> None:
    array = np.arange(4, dtype=np.uint8).reshape(1, 2, 2)
    assert classify(array, TensorSpec("y", array.dtype, (None, 2, 2)), 2, ()).tolist() == [[b"3:3", b"2:2"]]


def test_an_output_without_batch_is_one_item() -> None:
    array = np.array([[1, -2], [-3, 4]], np.int64)
    assert classify(array, TensorSpec("y", array.dtype, (2, 2)), 2, ()).tolist() == [b"4:3", b"1:0"]


def test_labels_of_another_output_are_not_used() -> None:
    assert classify(np.ones((1, 3), "f"), BATCHED, 1, ("cat", "dog")).tolist() == [[b"1.000000:0"]]


def test_zero_rows_have_zero_rows_of_classes() -> None:
    assert classify(np.zeros((0, 3), "f"), BATCHED, 2, ()).shape == (0, 2)


def test_numbers_that_are_not_finite_have_cpp_names() -> None:
    strings = classify(np.array([[np.inf, -np.inf]], "f"), BATCHED, 2, ())
    assert strings.tolist() == [[b"inf:0", b"-inf:1"]]


@pytest.mark.parametrize(
    ("dtype", "name"),
    [(np.object_, "BYTES"), (np.bool_, "BOOL"), (np.float16, "FP16"), (ml_dtypes.bfloat16, "BF16")],
)
def test_other_dtypes_are_refused(dtype: type, name: str) -> None:
    with pytest.raises(
        InvalidArgument, match=f"class result not available for output due to unsupported type '{name}'"
    ):
        classify(np.zeros((1, 3), dtype), BATCHED, 1, ())


def test_a_huge_output_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="classification output tensor too large"):
        classify(np.zeros((1, 1_000_001), np.int8), BATCHED, 1, ())


@given(hnp.arrays(np.uint64, st.tuples(st.integers(0, 3), st.integers(1, 5))), st.integers(1, 6))
def test_values_descend_and_equal_values_keep_their_order(array: np.ndarray, count: int) -> None:
    for row, strings in zip(array, classify(array, BATCHED, count, ()), strict=True):
        pairs = [tuple(map(int, string.split(b":"))) for string in strings]
        assert pairs == sorted(((int(value), i) for i, value in enumerate(row)), key=lambda p: (-p[0], p[1]))[:count]
