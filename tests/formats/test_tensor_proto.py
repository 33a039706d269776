"""Tests for the TensorProto codec against tf.make_tensor_proto and tf.make_ndarray."""

import sys
import tracemalloc
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from tensorflow.core.framework.tensor_pb2 import TensorProto
from tensorflow.core.framework.tensor_shape_pb2 import TensorShapeProto

from tpuserve_formats.dtypes import BY_DTYPE, BY_NUMBER, Array
from tpuserve_formats.errors import FormatError
from tpuserve_formats.tensor_proto import (
    MAX_REPEATED_BYTES,
    UNLIMITED,
    RepeatBudget,
    TooManyRows,
    WrongCount,
    decode_tensor,
    encode_tensor,
)
from tpuserve_formats.varint import varint

SHAPES = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5)
NUMERIC = [dtype for dtype in BY_DTYPE if dtype != np.object_]
# TensorFlow's Python functions reject some float8 types.
TENSORFLOWS = [dtype for dtype in NUMERIC if "float8" not in str(dtype)]
DT_FLOAT, DT_UINT8, DT_INT8, DT_STRING, DT_COMPLEX64, DT_BOOL, DT_HALF = 1, 4, 6, 7, 8, 10, 19
DT_QUINT8, DT_QINT32 = 12, 13


@st.composite
def arrays(draw: st.DrawFn, dtypes: Sequence[np.dtype[Any]] = NUMERIC) -> Array:
    """Draw any bit pattern of any dtype, including NaNs with payloads, negative zeros and subnormals."""
    dtype = draw(st.sampled_from(dtypes))
    shape = draw(SHAPES)
    if dtype == np.bool_:
        return draw(hnp.arrays(np.bool_, shape))
    raw = draw(hnp.arrays(np.uint8, (*shape, dtype.itemsize)))
    return np.frombuffer(raw.tobytes(), dtype).reshape(shape)


@st.composite
def strings(draw: st.DrawFn) -> Array:
    shape = draw(SHAPES)
    array = np.empty(shape, np.object_)
    for index in np.ndindex(shape):
        array[index] = draw(st.binary(max_size=8))
    return array


def same_bits(left: Array, right: Array) -> bool:
    return left.dtype == right.dtype and left.shape == right.shape and left.tobytes() == right.tobytes()


def check_same_numbers(read: Array, array: Array) -> None:
    """Check equality except for the payloads of NaNs, which TensorFlow loses in Python floats."""
    assert read.dtype == array.dtype
    if array.dtype == ml_dtypes.bfloat16:
        # numpy's comparison does not recognize bfloat16 NaNs.
        read, array = read.astype(np.float32), array.astype(np.float32)
    np.testing.assert_array_equal(read, array, strict=True)


def proto(dtype: int, dims: list[int], **fields: object) -> TensorProto:
    return TensorProto(
        dtype=dtype, tensor_shape=TensorShapeProto(dim=[TensorShapeProto.Dim(size=size) for size in dims]), **fields
    )


@given(arrays(), st.booleans())
@settings(max_examples=300, deadline=None)
def test_every_dtype_and_shape_comes_back_bit_for_bit(array: Array, as_content: bool) -> None:
    message = TensorProto.FromString(encode_tensor(array, as_content=as_content))
    assert same_bits(decode_tensor(message), array)
    assert bool(message.tensor_content) == (as_content and array.size > 0)


@given(arrays(TENSORFLOWS))
@settings(max_examples=200, deadline=None)
def test_tensorflow_reads_what_is_written(array: Array) -> None:
    read = tf.make_ndarray(TensorProto.FromString(encode_tensor(array)))
    check_same_numbers(read, array)


@given(arrays(TENSORFLOWS))
@settings(max_examples=200, deadline=None)
def test_what_tensorflow_writes_is_read(array: Array) -> None:
    check_same_numbers(decode_tensor(tf.make_tensor_proto(array)), array)


@given(strings() | st.lists(st.binary(max_size=3), min_size=5, max_size=12).map(lambda items: np.array(items, object)))
@settings(deadline=None)
def test_strings_come_back_and_are_tensorflows(array: Array) -> None:
    for as_content in (False, True):
        message = TensorProto.FromString(encode_tensor(array, as_content=as_content))
        decoded = decode_tensor(message)
        assert decoded.dtype == np.object_
        assert decoded.shape == array.shape
        assert decoded.tolist() == array.tolist()
    assert tf.make_ndarray(message).tolist() == array.tolist()


@given(arrays())
@settings(deadline=None)
def test_message_is_byte_for_byte_protobufs_own(array: Array) -> None:
    encoded = encode_tensor(array)
    assert TensorProto.FromString(encoded).SerializeToString(deterministic=True) == encoded


@pytest.mark.parametrize("dtype", NUMERIC, ids=str)
def test_rows_cut_from_a_batch_and_transposed_arrays_are_written_in_order(dtype: np.dtype[Any]) -> None:
    array = np.arange(12).reshape(3, 4).astype(dtype).T[1:3]
    decoded = decode_tensor(TensorProto.FromString(encode_tensor(array)))
    assert same_bits(decoded, np.ascontiguousarray(array))


def test_tensor_content_is_read_without_a_copy() -> None:
    message = proto(DT_FLOAT, [2], tensor_content=np.array([1, 2], np.float32).tobytes())
    assert not decode_tensor(message).flags.writeable


def test_typed_values_are_independent_of_the_message() -> None:
    message = proto(DT_FLOAT, [2], float_val=[1, 2])
    array = decode_tensor(message)
    message.float_val[0] = 9
    assert array.tolist() == [1, 2]


@pytest.mark.parametrize(
    ("message", "values"),
    [
        (proto(DT_FLOAT, [4], float_val=[1, 2]), [1, 2, 2, 2]),
        (proto(DT_FLOAT, [2, 2], float_val=[7]), [[7, 7], [7, 7]]),
        (proto(DT_FLOAT, [2]), [0, 0]),
        (proto(DT_FLOAT, []), 0),
        (proto(DT_BOOL, [3], bool_val=[True]), [True, True, True]),
        (proto(DT_STRING, [3], string_val=[b"a", b"b"]), [b"a", b"b", b"b"]),
        (proto(DT_COMPLEX64, [2], scomplex_val=[1, 2]), [1 + 2j, 1 + 2j]),
        (proto(DT_HALF, [2], half_val=[0x3C00]), [1, 1]),
    ],
)
def test_last_value_repeats_as_in_tensorflow(message: TensorProto, values: object) -> None:
    assert decode_tensor(message).tolist() == values
    assert tf.make_ndarray(message).tolist() == values


def _repeating(size_bytes: int) -> str:
    return f"repeating the last one takes {size_bytes} bytes, and {MAX_REPEATED_BYTES} bytes are left"


def test_repeated_strings_keep_their_nuls_and_share_one_object() -> None:
    decoded = decode_tensor(proto(DT_STRING, [3], string_val=[b"a\0\0"]))
    assert decoded.tolist() == [b"a\0\0"] * 3
    assert decoded[1] is decoded[2]


def test_repeated_strings_are_charged_at_their_size_before_memory_is_taken() -> None:
    message = proto(DT_STRING, [8_000_000], string_val=[b"s" * 1000])
    tracemalloc.start()
    with pytest.raises(FormatError, match=r"for 1 values: repeating the last one takes 8256000000 bytes"):
        decode_tensor(message, RepeatBudget(1 << 26))
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()


def test_values_do_not_repeat_for_more_rows_than_allowed() -> None:
    message = proto(DT_FLOAT, [3, 2], float_val=[1])
    assert decode_tensor(message, RepeatBudget(1000, max_rows=3)).shape == (3, 2)
    with pytest.raises(TooManyRows, match="its values would repeat for 3 rows"):
        decode_tensor(message, RepeatBudget(1000, max_rows=2))


def test_strings_that_are_not_there_are_empty() -> None:
    assert decode_tensor(proto(DT_STRING, [2])).tolist() == [b"", b""]


def test_tensor_contents_string_list_is_read() -> None:
    content = varint(2) + varint(0) + varint(200) + b"ab" + b"c" * 200
    decoded = decode_tensor(proto(DT_STRING, [3], tensor_content=content))
    assert decoded.tolist() == [b"ab", b"", b"c" * 200]


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (proto(0, [1], float_val=[1]), "dtype 0 is not supported"),
        (proto(20, [1]), "dtype 20 is not supported"),
        (proto(101, [1], float_val=[1]), "dtype 101 is not supported"),
        (TensorProto(dtype=1, tensor_shape={"unknown_rank": True}), "the shape has unknown rank"),
        (proto(DT_FLOAT, [-1], float_val=[1]), "shape [-1] has a negative dimension"),
        (proto(DT_FLOAT, [2, -3]), "shape [2, -3] has a negative dimension"),
        (proto(DT_FLOAT, [1] * 65, float_val=[1]), "the shape has 65 dimensions, at most 64 are supported"),
        (proto(DT_FLOAT, [2**62, 2**62], float_val=[1]), f"shape [{2**62}, {2**62}] is too large"),
        (proto(DT_FLOAT, [2**62, 0, 2**62]), f"shape [{2**62}, 0, {2**62}] is too large"),
        (proto(DT_FLOAT, [2**40], float_val=[1]), f"shape [{2**40}] is too large for 1 values: {_repeating(2**42)}"),
        (proto(DT_FLOAT, [2**40]), f"shape [{2**40}] is too large for 0 values: {_repeating(2**42)}"),
        (proto(DT_STRING, [2**40]), f"shape [{2**40}] is too large for 0 values: {_repeating(2**45)}"),
        (proto(DT_FLOAT, [2], float_val=[1, 2, 3]), "3 values do not fit shape [2]"),
        (proto(DT_FLOAT, [0], float_val=[1]), "1 values do not fit shape [0]"),
        (
            proto(DT_FLOAT, [2], tensor_content=b"1234567"),
            "tensor_content has 7 bytes, but shape [2] of float requires 8",
        ),
        (
            proto(DT_FLOAT, [2**40], tensor_content=b"1234"),
            f"tensor_content has 4 bytes, but shape [{2**40}] of float requires {2**42}",
        ),
        (proto(DT_UINT8, [1], int_val=[256]), "int_val contains a value outside the range of uint8"),
        (proto(DT_INT8, [1], int_val=[-129]), "int_val contains a value outside the range of int8"),
        (proto(DT_HALF, [1], half_val=[65536]), "half_val contains a value outside the range of half"),
        (proto(DT_BOOL, [3], tensor_content=b"\x00\x02\x01"), "tensor_content contains a byte that is not a bool"),
        (proto(DT_COMPLEX64, [1], scomplex_val=[1]), "scomplex_val has an odd number of values"),
        (proto(DT_STRING, [3], tensor_content=b"\x00"), "tensor_content has 1 bytes for 3 strings"),
        (proto(DT_STRING, [2], tensor_content=b"\x01\x80"), "tensor_content is not a list of strings"),
        (proto(DT_STRING, [1], tensor_content=b"\x03ab"), "tensor_content is not a list of strings"),
        (proto(DT_STRING, [1], tensor_content=b"\x01abc"), "tensor_content is not a list of strings"),
    ],
)
def test_what_does_not_fit_together_is_refused(message: TensorProto, reason: str) -> None:
    with pytest.raises(FormatError) as caught:
        decode_tensor(message)
    assert str(caught.value) == reason


@pytest.mark.parametrize(
    ("message", "counts"),
    [
        (proto(DT_FLOAT, [2], float_val=[1, 2, 3]), (2, 3)),
        (proto(DT_FLOAT, [2], tensor_content=b"1234"), (2, 1)),
        (proto(DT_FLOAT, [2], tensor_content=b"1234567"), (2, None)),
    ],
)
def test_counts_that_differ_are_in_the_error(message: TensorProto, counts: tuple[int, int | None]) -> None:
    with pytest.raises(WrongCount) as caught:
        decode_tensor(message)
    assert (caught.value.expected, caught.value.received) == counts


@pytest.mark.parametrize(
    ("message", "values"),
    [
        (proto(DT_UINT8, [1], int_val=[257]), [1]),
        (proto(DT_INT8, [1], int_val=[-129]), [127]),
        (proto(DT_HALF, [1], half_val=[0x13C00]), [1]),
        (proto(DT_QUINT8, [2], int_val=[255]), [255, 255]),
        (proto(DT_QINT32, [1], tensor_content=b"\xff\xff\xff\xff"), [-1]),
        (proto(DT_BOOL, [1], tensor_content=b"\x02"), [True]),
    ],
)
def test_lenient_reading_is_tensorflows(message: TensorProto, values: list[object]) -> None:
    with pytest.raises(FormatError):
        decode_tensor(message)
    assert decode_tensor(message, lenient=True).tolist() == values


def test_unlimited_budget_is_never_spent() -> None:
    for _ in range(2):
        assert UNLIMITED.spend(2**63)


def test_the_largest_repetition_is_still_answered() -> None:
    count = MAX_REPEATED_BYTES // 4
    array = decode_tensor(proto(DT_FLOAT, [count], float_val=[3]))
    assert array.shape == (count,)
    assert array[-1] == 3


@given(
    dtype=st.sampled_from([0, 21, 31, *BY_NUMBER]),
    dims=st.lists(st.integers(-1, 4) | st.sampled_from([2**31, 2**62, 2**63 - 1]), max_size=5),
    content=st.binary(max_size=16),
    floats=st.lists(st.floats(width=32), max_size=5),
    ints=st.lists(st.integers(-(2**31), 2**31 - 1), max_size=5),
)
@settings(max_examples=300, deadline=None)
def test_any_message_gives_an_array_that_fits_or_an_error(
    dtype: int, dims: list[int], content: bytes, floats: list[float], ints: list[int]
) -> None:
    message = proto(
        dtype, dims, tensor_content=content, float_val=floats, scomplex_val=floats, int_val=ints, half_val=ints
    )
    try:
        array = decode_tensor(message)
    except FormatError:
        return
    assert list(array.shape) == dims
    assert array.dtype == BY_NUMBER[dtype].dtype
    assert array.nbytes < sys.maxsize


def test_dtype_without_a_wire_form_is_an_error() -> None:
    with pytest.raises(FormatError, match="datetime64"):
        encode_tensor(np.zeros(1, "datetime64[s]"))


def test_float8_values_are_bytes_in_their_own_field() -> None:
    array = np.array([1.5, -2], ml_dtypes.float8_e5m2)
    message = TensorProto.FromString(encode_tensor(array))
    assert message.float8_val == array.tobytes()
