"""Tests for lists of rows of unequal length."""

import numpy as np
import pytest

from tpuserve_client.casting import named_arrays
from tpuserve_client.errors import InvalidArgument
from tpuserve_client.model import ModelSpec, Signature, TensorSpec

MODEL = ModelSpec("m")


def signature(**inputs: type) -> Signature:
    return Signature("s", {name: TensorSpec(name, np.dtype(dtype), (None,)) for name, dtype in inputs.items()}, {})


@pytest.mark.parametrize(
    ("rows", "ids", "splits"),
    [
        ([[1, 2], [3]], [1, 2, 3], [0, 2, 3]),
        ([[1, 2], [3, 4]], [1, 2, 3, 4], [0, 2, 4]),
        ([[], [1]], [1], [0, 0, 1]),
        ([[], []], [], [0, 0, 0]),
        ((np.array([1, 2]), np.array([3])), [1, 2, 3], [0, 2, 3]),
    ],
)
def test_rows_become_values_and_row_splits(rows: object, ids: list[int], splits: list[int]) -> None:
    of_ids = signature(ids=np.int32, ids_1=np.int64)
    for inputs in (rows, {"ids": rows}):
        arrays = named_arrays(inputs, MODEL, of_ids)
        assert (arrays["ids"].tolist(), arrays["ids_1"].tolist()) == (ids, splits)
        assert (arrays["ids"].dtype.name, arrays["ids_1"].dtype.name) == ("int32", "int64")


def test_rows_of_rows_of_text() -> None:
    arrays = named_arrays([[["a", "b"], []], [["c"]]], MODEL, signature(x=object, x_1=np.int32, x_2=np.int32))
    assert {name: array.tolist() for name, array in arrays.items()} == {
        "x": [b"a", b"b", b"c"], "x_1": [0, 2, 3], "x_2": [0, 2, 2, 3],
    }  # fmt: skip
    assert arrays["x_1"].dtype == np.int32


def test_values_and_row_splits_stay_as_they_are() -> None:
    arrays = named_arrays({"ids": [1, 2], "ids_1": [0, 2]}, MODEL, signature(ids=np.int32, ids_1=np.int64))
    assert {name: array.tolist() for name, array in arrays.items()} == {"ids": [1, 2], "ids_1": [0, 2]}


@pytest.mark.parametrize("values", [[1, 2], [np.array(1), np.array(2)]])
def test_a_plain_list_is_left_to_the_server_to_judge(values: list[object]) -> None:
    assert list(named_arrays({"ids": values}, MODEL, signature(ids=np.int32, ids_1=np.int64))) == ["ids"]


def test_a_bare_list_needs_one_input_besides_row_splits() -> None:
    with pytest.raises(InvalidArgument, match=r"has 2 inputs \['ids', 'scale'\]"):
        named_arrays([[1]], MODEL, signature(ids=np.int32, ids_1=np.int64, scale=np.float32))
