"""Tests for the conversion of callers' values to the model's dtypes."""

import ml_dtypes
import numpy as np
import pytest

from tpuserve_client.casting import named_arrays, needs_signature
from tpuserve_client.dtypes import DType
from tpuserve_client.errors import InvalidArgument
from tpuserve_client.model import ModelSpec, Signature, TensorSpec

MODEL = ModelSpec("m")


def signature(dtype: DType) -> Signature:
    return Signature("serving_default", {"x": TensorSpec("x", dtype, (None,))}, {})


@pytest.mark.parametrize(
    ("inputs", "needed"),
    [
        ({"x": np.ones(1), "y": np.float32(1)}, False),
        ({"x": np.ones(1), "y": [1]}, True),
        ([1, 2], True),
        (np.ones(1), True),
        ({}, False),
    ],
)
def test_signature_is_needed_for_names_and_for_dtypes(inputs: object, needed: bool) -> None:
    assert needs_signature(inputs) is needed


@pytest.mark.parametrize(
    ("value", "dtype", "expected"),
    [
        ([1, 2], np.float32, [1.0, 2.0]),
        ([1.5, 2], ml_dtypes.bfloat16, [1.5, 2.0]),
        ([1e300], np.float32, [np.inf]),
        ([1, 255], np.uint8, [1, 255]),
        ([2**64 - 1], np.uint64, [2**64 - 1]),
        ([True], np.bool_, [True]),
        ([1.5], np.complex64, [1.5 + 0j]),
        (["a", b"b\x00"], object, [b"a", b"b\x00"]),
        ([], np.int32, []),
        ([], object, []),
    ],
)
def test_list_takes_the_inputs_dtype(value: object, dtype: type, expected: list[object]) -> None:
    array = named_arrays(value, MODEL, signature(np.dtype(dtype)))["x"]
    assert array.dtype == np.dtype(dtype)
    assert array.tolist() == expected


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        ([1.0], np.int32),
        ([256], np.uint8),
        ([-1], np.uint64),
        ([1], np.bool_),
        ([True], np.float32),
        (["1"], np.float32),
        ([1], object),
        ([1j], np.float32),
    ],
)
def test_value_that_does_not_fit_is_refused(value: object, dtype: type) -> None:
    with pytest.raises(InvalidArgument, match="Input x"):
        named_arrays(value, MODEL, signature(np.dtype(dtype)))


def test_array_keeps_its_dtype() -> None:
    array = np.ones(2, np.float64)
    assert named_arrays({"x": array}, MODEL, signature(np.dtype(np.float32)))["x"] is array


def test_name_that_the_signature_lacks_is_left_to_the_server() -> None:
    assert named_arrays({"z": [1]}, MODEL, signature(np.dtype(np.float32)))["z"].tolist() == [1]


@pytest.mark.parametrize("value", [object(), [{"a": 1}], np.array(["2026-01-01"], "M8[D]"), [None], [2**70]])
def test_what_is_no_tensor_is_refused(value: object) -> None:
    with pytest.raises(InvalidArgument):
        named_arrays({"x": value}, MODEL, None)
