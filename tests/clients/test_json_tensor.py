"""Tests for REST values: round trips and rejected values."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tpuserve_client.dtypes import Array, DType
from tpuserve_client.errors import InvalidArgument
from tpuserve_client.json_tensor import from_json, to_json
from tpuserve_client.model import TensorSpec
from tpuserve_formats.dtypes import BY_DTYPE

_NUMBERS = [np.float32, np.float64, np.float16, np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64]
_NUMBER = st.sampled_from([*map(np.dtype, _NUMBERS), np.dtype(np.uint64), np.dtype(np.bool_)])


def through_json(array: Array) -> Array:
    spec = TensorSpec("x", array.dtype, array.shape)
    return from_json(json.loads(json.dumps(to_json(array))), spec)


@given(st.data(), _NUMBER)
def test_numbers_make_the_round_trip(data: st.DataObject, dtype: DType) -> None:
    array = data.draw(hnp.arrays(dtype, hnp.array_shapes(min_dims=0, min_side=0)))
    received = through_json(array)
    assert received.dtype == dtype
    np.testing.assert_array_equal(received, array)


@pytest.mark.parametrize(
    "dtype", [kind.dtype for kind in BY_DTYPE.values() if kind.name.startswith(("bfloat16", "float8"))], ids=str
)
def test_narrow_floats_make_the_round_trip(dtype: DType) -> None:
    every_value = np.arange(256, dtype=np.uint8).view(dtype)
    finite = every_value[np.isfinite(every_value.astype(np.float32))]
    assert through_json(finite).tobytes() == finite.tobytes()


@given(hnp.arrays(np.dtype(object), hnp.array_shapes(min_dims=0, min_side=0), elements=st.binary(max_size=8)))
def test_strings_make_the_round_trip(array: Array) -> None:
    np.testing.assert_array_equal(through_json(array), array)


def test_complex_numbers_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="complex64"):
        to_json(np.array([1j], np.complex64))


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        ([[1], [1, 2]], np.float32),
        (["a"], np.float32),
        ([300], np.uint8),
        ([None], np.int32),
        ([1], object),
        ([["a"], ["b", "c"]], object),
        ([{"b64": "?"}], object),
        ([{"b64": 1}], object),
    ],
)
def test_value_that_does_not_fit_is_refused(value: object, dtype: type) -> None:
    with pytest.raises(ValueError, match=r".+"):
        from_json(value, TensorSpec("x", np.dtype(dtype), None))


def test_type_that_numpy_does_not_know_is_refused() -> None:
    with pytest.raises(ValueError, match="output x"):
        from_json([1], TensorSpec("x", None, None))


def test_unknown_inner_dimension_of_an_empty_list_is_zero() -> None:
    spec = TensorSpec("x", np.dtype(np.float32), (None, 3, None))
    assert from_json([], spec).shape == (0, 3, 0)
