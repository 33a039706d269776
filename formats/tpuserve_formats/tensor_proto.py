"""Conversion between TensorProto and numpy, for every dtype that both support.

Numbers never pass through a Python list: numpy reads the memory of protobuf's containers, and the encoder writes
tensors as bytes. Supports only little-endian machines, like TensorFlow.
"""

import math
import sys
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from tpuserve_formats.dtypes import BY_DTYPE, BY_NUMBER, WITH_QUANTIZED, Array, DType, WireType
from tpuserve_formats.errors import FormatError
from tpuserve_formats.messages.official import TensorProto, TensorShapeProto
from tpuserve_formats.varint import packed_varints, read_varint, varint

# Default limit on the memory of one tensor's repeated values. It applies to files, which are trusted like the model.
MAX_REPEATED_BYTES = 256 * 1024 * 1024
# Shapes that the process remembers, in bytes: eight dimensions of up to 2 million.
_LONGEST_KNOWN_SHAPE = 64
# numpy's limit on dimensions.
_MAX_RANK = 64
# Memory of a string beyond its bytes: numpy's pointer and TensorFlow's tstring (tensorflow/core/platform/ctstring.h).
_STRING_BYTES = 8 + 24
# Strings to read in one step: about 3 ms.
_PIECE = 1 << 16
# protobuf writes more strings than this faster than this module does (python -m benchmarks codecs).
_MANY_STRINGS = 8

# Field numbers of TensorProto (tensorflow/core/framework/tensor.proto), with wire type 2 (length-delimited).
_TAGS = {
    "tensor_content": varint(4 << 3 | 2),
    "float_val": varint(5 << 3 | 2),
    "double_val": varint(6 << 3 | 2),
    "int_val": varint(7 << 3 | 2),
    "string_val": varint(8 << 3 | 2),
    "scomplex_val": varint(9 << 3 | 2),
    "int64_val": varint(10 << 3 | 2),
    "bool_val": varint(11 << 3 | 2),
    "dcomplex_val": varint(12 << 3 | 2),
    "half_val": varint(13 << 3 | 2),
    "uint32_val": varint(16 << 3 | 2),
    "uint64_val": varint(17 << 3 | 2),
    "float8_val": varint(18 << 3 | 2),
}


class WrongCount(FormatError):
    """A tensor with too many values for its shape, or too few in its tensor_content.

    `received` is the number of values, or None if the bytes are not a whole number of values.
    """

    def __init__(self, reason: str, expected: int, received: int | None) -> None:
        """Create an error with `reason` as message. The counts let callers word the message differently."""
        super().__init__(reason)
        self.expected = expected
        self.received = received


class TooManyRows(FormatError):
    """A tensor that would repeat its last value for more rows than a request may have."""

    def __init__(self, rows: int) -> None:
        """Create an error for a tensor of this many rows."""
        super().__init__(f"its values would repeat for {rows} rows")
        self.rows = rows


class RepeatBudget:
    """Memory budget for repeated values of all tensors of a message together.

    A typed field shorter than its shape means "repeat the last value": a few bytes can require any amount of memory.
    """

    __slots__ = ("_left_bytes", "_max_rows", "_name")

    def __init__(self, size_bytes: float, *, max_rows: float = math.inf, name: str = "") -> None:
        """Set the budget in bytes, and the most rows of a tensor. `name` is the setting of the budget for messages."""
        self._left_bytes = size_bytes
        self._max_rows = max_rows
        self._name = name

    def spend(self, size_bytes: int) -> bool:
        """Deduct `size_bytes` and return True, or return False if less is left."""
        if size_bytes > self._left_bytes:
            return False
        self._left_bytes -= size_bytes
        return True

    def repeat(self, shape: tuple[int, ...], sent: int, item_bytes: int) -> None:
        """Deduct a tensor of `shape` that repeats the last of its `sent` values. Call it before allocating.

        Raises:
            FormatError: the rest of the budget is smaller. TooManyRows: the tensor has too many rows.
        """
        if shape and shape[0] > self._max_rows:
            raise TooManyRows(shape[0])
        needed_bytes, left_bytes = math.prod(shape) * item_bytes, self._left_bytes
        if not self.spend(needed_bytes):
            limit = f" of {self._name}" if self._name else ""
            raise FormatError(
                f"shape {list(shape)} is too large for {sent} values: repeating the last one takes {needed_bytes} "
                f"bytes, and {left_bytes} bytes{limit} are left"
            )


# For readers that trust the sender.
UNLIMITED = RepeatBudget(math.inf)


def decode_tensor(
    proto: TensorProto,
    budget: RepeatBudget | None = None,
    *,
    lenient: bool = False,
    content: bytes | memoryview | None = None,
) -> Array:
    """Return the array in `proto`, possibly a read-only view of its bytes. Strings become an object array of bytes.

    `content` replaces its tensor_content, and the array may be a view of it.

    `budget` limits the memory of arrays whose last value repeats. `lenient` accepts what TensorFlow accepts: quantized
    types as their integers, the low bits of integers out of range, and any byte of tensor_content as a bool.

    Raises:
        FormatError: dtype, shape and data do not fit together. The function allocates memory only after this check.
    """
    wire_type = (WITH_QUANTIZED if lenient else BY_NUMBER).get(proto.dtype)
    if wire_type is None:
        raise FormatError(f"dtype {proto.dtype} is not supported")
    if content is None:
        content = proto.tensor_content
    shape = _decode_shape(proto.tensor_shape, wire_type, content)
    if content:
        return _decode_content(content, wire_type, shape, lenient)
    values = _decode_values(proto, wire_type, lenient)
    count = math.prod(shape)
    if values.size != count:
        values = _repeat_last(values, shape, budget or RepeatBudget(MAX_REPEATED_BYTES))
    return values.reshape(shape)


def encode_tensor(array: Array, *, as_content: bool = False) -> bytes:
    """Return a serialized TensorProto with `array` in its typed field, or in tensor_content.

    Strings are always in string_val, because few clients can read tensor_content's string list.

    Raises:
        FormatError: TensorProto does not support the dtype.
    """
    wire_type = BY_DTYPE.get(array.dtype)
    if wire_type is None:
        raise FormatError(f"dtype {array.dtype} is not supported by TensorProto")
    header = _header(wire_type.number, array.shape)
    if array.size == 0:
        return header
    if wire_type.field == "string_val":
        return header + _string_values(array)
    field = "tensor_content" if as_content else wire_type.field
    payload = array.tobytes() if as_content else _ENCODERS[field](array)
    return b"".join((header, _TAGS[field], varint(len(payload)), payload))


def encode_tensor_head(dtype: DType, shape: tuple[int, ...], *, as_content: bool = False) -> bytes | None:
    """Return the serialized TensorProto of an array of `dtype` and `shape` without the array's bytes, which follow.

    Return None if an array of other values may have another size, as integers do outside of tensor_content, or if it
    has no elements.
    """
    wire_type, count = BY_DTYPE.get(dtype), math.prod(shape)
    if wire_type is None or wire_type.field == "string_val" or not count:
        return None
    field = "tensor_content" if as_content else wire_type.field
    if not as_content and _ENCODERS[field] is not _raw:
        return None
    return b"".join((_header(wire_type.number, shape), _TAGS[field], varint(count * dtype.itemsize)))


def _decode_shape(proto: TensorShapeProto, wire_type: WireType, content: bytes | memoryview) -> tuple[int, ...]:
    if proto.unknown_rank:
        raise FormatError("the shape has unknown rank")
    shape = declared_shape(proto)
    # The content has the size of the shape, which needs no further checks.
    size_bytes = math.prod(shape) * wire_type.dtype.itemsize
    if content and len(content) == size_bytes and min(shape, default=0) >= 0:
        return shape
    if shape and min(shape) < 0:
        raise FormatError(f"shape {list(shape)} has a negative dimension")
    # Count zeros as ones: numpy refuses such shapes too, although the array is empty.
    if math.prod([size or 1 for size in shape]) * wire_type.dtype.itemsize > sys.maxsize:
        raise FormatError(f"shape {list(shape)} is too large")
    return shape


def declared_shape(proto: TensorShapeProto) -> tuple[int, ...]:
    """Return the sizes that a shape declares, which may be negative. Raises FormatError for more than 64 of them."""
    # Before any work for each dimension: a message of 40 MB may declare 20 million.
    if len(proto.dim) > _MAX_RANK:
        raise FormatError(f"the shape has {len(proto.dim)} dimensions, at most {_MAX_RANK} are supported")
    # Reading creates an object for each dimension. Most tensors of a process have the same few shapes.
    serialized = proto.SerializeToString()
    if len(serialized) > _LONGEST_KNOWN_SHAPE:
        return tuple([dim.size for dim in proto.dim])
    return _known_sizes(serialized)


@lru_cache(maxsize=1024)
def _known_sizes(serialized: bytes) -> tuple[int, ...]:
    return tuple([dim.size for dim in TensorShapeProto.FromString(serialized).dim])


def _decode_content(content: bytes | memoryview, wire_type: WireType, shape: tuple[int, ...], lenient: bool) -> Array:
    if wire_type.field == "string_val":
        return _decode_string_list(bytes(content), shape)
    expected = math.prod(shape) * wire_type.dtype.itemsize
    if len(content) != expected:
        received, rest = divmod(len(content), wire_type.dtype.itemsize)
        raise WrongCount(
            f"tensor_content has {len(content)} bytes, but shape {list(shape)} of {wire_type.name} requires {expected}",
            math.prod(shape),
            None if rest else received,
        )
    if wire_type.field == "bool_val" and not lenient and np.frombuffer(content, np.uint8).max() > 1:
        # numpy would keep such a byte unchanged.
        raise FormatError("tensor_content contains a byte that is not a bool")
    return np.ndarray(shape, wire_type.dtype, content)


def _decode_string_list(content: bytes, shape: tuple[int, ...]) -> Array:
    """Decode all lengths as varints, then all bytes (tensorflow/core/platform/tensor_coding.h, EncodeStringList)."""
    count = math.prod(shape)
    # Every string takes at least one byte for its length.
    if count > len(content):
        raise FormatError(f"tensor_content has {len(content)} bytes for {count} strings")
    position = 0
    lengths = []
    try:
        for _ in range(count):
            length, position = read_varint(content, position)
            lengths.append(length)
    except ValueError:
        raise FormatError("tensor_content is not a list of strings") from None
    if position + sum(lengths) != len(content):
        raise FormatError("tensor_content is not a list of strings")
    strings = np.empty(count, np.object_)
    for index, length in enumerate(lengths):
        strings[index] = content[position : position + length]
        position += length
    return strings.reshape(shape)


def _decode_values(proto: TensorProto, wire_type: WireType, lenient: bool) -> Array:
    field = wire_type.field
    if field == "float8_val":
        float8s: Array = np.frombuffer(proto.float8_val, wire_type.dtype)
        return float8s
    if field == "string_val":
        container = proto.string_val
        strings = np.empty(len(container), np.object_)
        # numpy reads a list faster than a container of strings. Pieces let other threads run.
        for start in range(0, len(strings), _PIECE):
            strings[start : start + _PIECE] = container[start : start + _PIECE]
        return strings
    # The containers implement __array__, which copies their memory once.
    container = getattr(proto, field)
    if field in ("int_val", "half_val"):
        return _narrow(np.asarray(container, np.int32), wire_type, lenient)
    if field in ("scomplex_val", "dcomplex_val"):
        return _pair(container, wire_type)
    return np.asarray(container, wire_type.dtype)


def _narrow(values: Array, wire_type: WireType, lenient: bool) -> Array:
    """Convert int32 field values to the narrower type: a number, or half_val's 16 bits."""
    is_bits = wire_type.field == "half_val"
    narrow = values.astype(np.uint16 if is_bits else wire_type.dtype, copy=False)
    if narrow is not values and not lenient and not np.array_equal(narrow, values):
        raise FormatError(f"{wire_type.field} contains a value outside the range of {wire_type.name}")
    return narrow.view(wire_type.dtype) if is_bits else narrow


def _pair(container: Any, wire_type: WireType) -> Array:  # noqa: ANN401 (protobuf's container has no public type)
    parts = np.asarray(container, np.float32 if wire_type.field == "scomplex_val" else np.float64)
    if parts.size % 2:
        raise FormatError(f"{wire_type.field} has an odd number of values")
    return parts.view(wire_type.dtype)


def _repeat_last(values: Array, shape: tuple[int, ...], budget: RepeatBudget) -> Array:
    """Repeat the last of `values`, or zero if there is none, to fill `shape`, like Tensor::FromProto."""
    count = math.prod(shape)
    if values.size > count:
        raise WrongCount(f"{values.size} values do not fit shape {list(shape)}", count, values.size)
    last = values[-1:] if values.size else _zero(values.dtype)
    budget.repeat(shape, values.size, _repeated_bytes(last))
    drawn_out = np.empty(count, values.dtype)
    drawn_out[: values.size] = values
    # From an array: numpy converts a bytes object to its own type, which copies it for each element and drops NULs.
    drawn_out[values.size :] = last
    return drawn_out


def _zero(dtype: DType) -> Array:
    zero: Array = np.array([b""], np.object_) if dtype == np.object_ else np.zeros(1, dtype)
    return zero


def _repeated_bytes(last: Array) -> int:
    """Return the memory of one repetition. A runtime copies each string, although the array shares one object."""
    return _STRING_BYTES + len(last[0]) if last.dtype == np.object_ else last.itemsize


@lru_cache(maxsize=4096)
def _header(number: int, shape: tuple[int, ...]) -> bytes:
    """Encode dtype and tensor_shape. Zeros are defaults and omitted, as in protobuf."""
    dims = [b"\x08" + varint(size) if size else b"" for size in shape]
    shape_bytes = b"".join(b"\x12" + varint(len(dim)) + dim for dim in dims)
    return b"".join((b"\x08", varint(number), b"\x12", varint(len(shape_bytes)), shape_bytes))


def _string_values(array: Array) -> bytes:
    if array.size > _MANY_STRINGS:
        return bytes(TensorProto(string_val=array.reshape(-1).tolist()).SerializeToString())
    tag = _TAGS["string_val"]
    parts: list[bytes] = []
    for value in array.flat:
        parts += (tag, varint(len(value)), value)
    return b"".join(parts)


def _raw(array: Array) -> bytes:
    return array.tobytes()


def _signed(array: Array) -> bytes:
    # Negative numbers are sign-extended to 64 bits, in int32 fields too.
    return packed_varints(array.reshape(-1).astype(np.int64).view(np.uint64))


def _unsigned(array: Array) -> bytes:
    return packed_varints(array.reshape(-1).astype(np.uint64))


def _half_bits(array: Array) -> bytes:
    return packed_varints(np.ascontiguousarray(array).reshape(-1).view(np.uint16).astype(np.uint64))


_ENCODERS: dict[str, Callable[[Array], bytes]] = {
    "float_val": _raw,
    "double_val": _raw,
    "scomplex_val": _raw,
    "dcomplex_val": _raw,
    "float8_val": _raw,
    "bool_val": _raw,
    "int_val": _signed,
    "int64_val": _signed,
    "uint32_val": _unsigned,
    "uint64_val": _unsigned,
    "half_val": _half_bits,
}
