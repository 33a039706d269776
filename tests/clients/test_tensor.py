"""Tests that TensorProto conversion raises the client's errors; tests/formats tests the codec itself."""

import numpy as np
import pytest

from tpuserve_client import tensor
from tpuserve_client.arrays import as_array
from tpuserve_client.dtypes import Array
from tpuserve_client.errors import Internal, InvalidArgument
from tpuserve_formats.messages.official import TensorProto

FLOAT, DOUBLE, INT32, STRING, RESOURCE = 1, 2, 3, 7, 20


def proto(dtype: int, shape: list[int], **fields: object) -> TensorProto:
    made = TensorProto(dtype=dtype, **fields)
    made.tensor_shape.SetInParent()
    for size in shape:
        made.tensor_shape.dim.add().size = size
    return made


def test_numbers_are_a_view_of_the_message() -> None:
    content = np.arange(6, dtype="<f4").tobytes()
    array = tensor.from_proto(proto(FLOAT, [2, 3], tensor_content=content))
    assert not array.flags.owndata
    assert not array.flags.writeable
    assert array.tolist() == [[0, 1, 2], [3, 4, 5]]


def test_packed_field_in_pieces_is_one_array() -> None:
    # Field 5 is packed and occurs twice: with two values, then with one.
    pieces = [np.array(values, "<f4").tobytes() for values in ([1, 2], [3])]
    packed = b"".join(b"\x2a" + bytes([len(piece)]) + piece for piece in pieces)
    made = TensorProto.FromString(proto(FLOAT, [3]).SerializeToString() + packed)
    assert tensor.from_proto(made).tolist() == [1, 2, 3]


def test_last_value_is_repeated() -> None:
    assert tensor.from_proto(proto(DOUBLE, [4], double_val=[1, 2])).tolist() == [1, 2, 2, 2]


@pytest.mark.parametrize(("dtype", "value"), [(INT32, 0), (STRING, b"")])
def test_no_value_at_all_is_zero(dtype: int, value: object) -> None:
    assert tensor.from_proto(proto(dtype, [2])).tolist() == [value, value]


def test_strings_in_tensor_content_are_read() -> None:
    content = b"\x02\x00\x03" + b"ab" + b"xyz"
    array = tensor.from_proto(proto(STRING, [3], tensor_content=content))
    assert array.tolist() == [b"ab", b"", b"xyz"]


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (proto(FLOAT, [2], tensor_content=b"1234"), r"float32\[2\].*expected 2 values, got 1"),
        (proto(FLOAT, [2], tensor_content=b"12345"), "is invalid"),
        (proto(FLOAT, [1], float_val=[1, 2]), "expected 1 values, got 2"),
        (proto(STRING, [2], tensor_content=b"\x01\x01a"), "is invalid"),
        (proto(FLOAT, [-1]), "without a full shape"),
        (proto(RESOURCE, [1]), "which numpy does not have"),
        (proto(1000, [1]), "which numpy does not have"),
    ],
)
def test_broken_message_is_internal(broken: TensorProto, message: str) -> None:
    with pytest.raises(Internal, match=message):
        tensor.from_proto(broken)


def test_values_written_one_by_one_are_read() -> None:
    unpacked = b"\x2d" + np.float32(1.5).tobytes()  # field 5, fixed32
    made = TensorProto.FromString(proto(FLOAT, [1]).SerializeToString() + unpacked)
    assert tensor.from_proto(made).tolist() == [1.5]


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6, dtype=np.float32).reshape(2, 3).T,  # not in C order
        np.arange(4, dtype=">i4"),  # not little-endian
        np.arange(8, dtype=np.int64)[::2],  # not contiguous
    ],
)
def test_any_memory_layout_is_sent_row_by_row_little_endian(array: Array) -> None:
    sent = tensor.to_proto(as_array(array))
    assert sent.tensor_content == array.astype(array.dtype.newbyteorder("<")).tobytes(order="C")
    np.testing.assert_array_equal(tensor.from_proto(sent), array)


@pytest.mark.parametrize(
    "value", ["größe", np.array(["größe"]), np.array("größe", np.dtypes.StringDType()), [["größe"]], "größe".encode()]
)
def test_text_of_any_kind_becomes_utf8_bytes(value: object) -> None:
    array = as_array(value)
    assert array.dtype == object
    assert array.reshape(-1)[0] == "größe".encode()


@pytest.mark.parametrize("value", [np.zeros(1, "M8[s]"), np.array([1], object), np.zeros(1, [("a", "i4")])])
def test_what_no_tensor_holds_is_refused(value: object) -> None:
    with pytest.raises(InvalidArgument):
        as_array(value)
