"""Tests for raw tensors of the Open Inference Protocol: round trips of every datatype, and malformed data."""

import struct
from collections.abc import Sequence

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tpuserve_formats.dtypes import Array
from tpuserve_formats.errors import FormatError
from tpuserve_formats.oip.datatypes import DATATYPES, datatype_of, dtype_of
from tpuserve_formats.oip.raw_tensor import decode_raw, encode_raw

SHAPES = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)
HUGE = 2**62


@st.composite
def tensors(draw: st.DrawFn) -> Array:
    """Draw any bit pattern of any datatype except BYTES."""
    dtype = dtype_of(draw(st.sampled_from([name for name in DATATYPES if name != "BYTES"])))
    shape = draw(SHAPES)
    if dtype == np.bool_:
        return draw(hnp.arrays(np.bool_, shape))
    raw = draw(hnp.arrays(np.uint8, (*shape, dtype.itemsize)))
    return np.frombuffer(raw.tobytes(), dtype).reshape(shape)


def strings(*values: bytes, shape: Sequence[int] | None = None) -> Array:
    array = np.empty(len(values), np.object_)
    array[:] = values
    return array if shape is None else array.reshape(shape)


@given(tensors())
def test_a_tensor_survives_the_round_trip(array: Array) -> None:
    decoded = decode_raw(datatype_of(array.dtype), array.shape, bytes(encode_raw(array)))
    assert decoded.dtype == array.dtype
    assert decoded.shape == array.shape
    assert decoded.tobytes() == array.tobytes()


@given(st.lists(st.binary(max_size=9), max_size=6))
def test_strings_survive_the_round_trip(values: list[bytes]) -> None:
    decoded = decode_raw("BYTES", [len(values)], encode_raw(strings(*values)))
    assert decoded.tolist() == values


def test_numbers_are_views_of_the_bytes() -> None:
    data = np.arange(6, dtype=np.float32).tobytes()
    assert not decode_raw("FP32", [2, 3], data).flags.owndata


def test_values_are_written_in_row_major_order() -> None:
    transposed = np.arange(6, dtype=np.int16).reshape(2, 3).T
    assert bytes(encode_raw(transposed)) == struct.pack("<6h", 0, 3, 1, 4, 2, 5)


def test_bytes_other_than_zero_are_true() -> None:
    assert decode_raw("BOOL", [4], b"\x00\x01\x02\xff").tolist() == [False, True, True, True]
    assert decode_raw("BOOL", [4], b"\x00\x01\x02\xff").view(np.uint8).tolist() == [0, 1, 1, 1]


@pytest.mark.parametrize(
    ("datatype", "shape", "data", "message"),
    [
        ("FP32", [2], b"1234567", r"FP32 of shape \[2\] needs 8 bytes, but the data has 7"),
        ("FP32", [], b"", "needs 4 bytes, but the data has 0"),
        ("FP32", [-1], b"1234", "negative dimension"),
        ("FP32", [HUGE, HUGE], b"1234", "bytes, but the data has 4"),
        ("FP32", [0, HUGE, HUGE], b"", "is too large"),
        ("FP32", [1] * 65, b"1234", "has 65 dimensions, at most 64"),
        ("BYTES", [HUGE], b"1234", "need at least"),
        ("BYTES", [2], struct.pack("<I4s", 4, b"abcd"), "element 1 of 2 has no length: the data ends at byte 8"),
        ("BYTES", [1], struct.pack("<I", 5) + b"abcd", "element 0 of 1 has 5 bytes, but only 4 bytes remain"),
        ("BYTES", [1], struct.pack("<I4s", 2, b"abcd"), "2 bytes remain after 1 BYTES elements"),
        ("BYTES", [0], b"\0", "1 bytes remain after 0 BYTES elements"),
        ("FLOAT", [1], b"1234", "datatype 'FLOAT' is unknown, expected one of BOOL, UINT8"),
    ],
)
def test_malformed_data_is_refused(datatype: str, shape: list[int], data: bytes, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        decode_raw(datatype, shape, data)


@given(st.sampled_from(DATATYPES), st.lists(st.integers(-2, HUGE), max_size=4), st.binary(max_size=40))
def test_any_bytes_are_decoded_or_refused(datatype: str, shape: list[int], data: bytes) -> None:
    try:
        decoded = decode_raw(datatype, shape, data)
    except FormatError:
        return
    assert decoded.shape == tuple(shape)


def test_a_dtype_without_datatype_is_refused() -> None:
    with pytest.raises(FormatError, match="complex64 has no datatype"):
        datatype_of(np.dtype(np.complex64))
    with pytest.raises(FormatError, match="float8_e5m2 has no datatype"):
        datatype_of(np.dtype(ml_dtypes.float8_e5m2))
