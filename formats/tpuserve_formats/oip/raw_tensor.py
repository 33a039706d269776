"""Raw tensors: the binary form of raw contents over gRPC, binary data over HTTP, and shared memory.

Values are little-endian, in row-major order. Each element of a BYTES tensor is a length of four bytes and its bytes.
Source: Triton's "Binary Tensor Data Extension" (server/docs/protocol/extension_binary_data.md).
"""

import math
import struct
from collections.abc import Sequence
from typing import Final, TypeAlias

import numpy as np

from tpuserve_formats.dtypes import STRING, Array
from tpuserve_formats.errors import FormatError
from tpuserve_formats.oip.datatypes import dtype_of

Buffer: TypeAlias = bytes | bytearray | memoryview

_LENGTH = struct.Struct("<I")
# numpy's limit.
_MAX_RANK: Final = 64
# numpy's limit on the bytes of an array, for elements of 16 bytes.
_MAX_EMPTY: Final = np.iinfo(np.intp).max // 16
_MAX_STRING_BYTES: Final = 2**32 - 1


def checked_count(shape: Sequence[int]) -> int:
    """Return the number of elements of a shape. Allocates nothing.

    Raises:
        FormatError: the shape has a negative dimension, too many dimensions, or is too large although it is empty.
    """
    if len(shape) > _MAX_RANK:
        raise FormatError(f"the shape has {len(shape)} dimensions, at most {_MAX_RANK} are supported")
    if shape and min(shape) < 0:
        raise FormatError(f"shape {list(shape)} has a negative dimension")
    count = math.prod(shape)
    # numpy counts zeros as ones, and refuses huge shapes even if the array is empty.
    if not count and math.prod(size or 1 for size in shape) > _MAX_EMPTY:
        raise FormatError(f"shape {list(shape)} is too large")
    return count


def decode_raw(datatype: str, shape: Sequence[int], buffer: Buffer) -> Array:
    """Return the array in `buffer`: a read-only view of it if it is `bytes`, but BYTES are copied.

    Raises:
        FormatError: the datatype is unknown, the shape is invalid, or the buffer has another size than they require.
    """
    dtype = dtype_of(datatype)
    count = checked_count(shape)
    if dtype is STRING:
        return _decode_strings(buffer, count).reshape(shape)
    expected_bytes = count * dtype.itemsize
    if len(buffer) != expected_bytes:
        raise FormatError(
            f"{datatype} of shape {list(shape)} needs {expected_bytes} bytes, but the data has {len(buffer)}"
        )
    if dtype == np.bool_:
        return _decode_bools(buffer).reshape(shape)
    return np.frombuffer(buffer, dtype).reshape(shape)


def encode_raw(array: Array) -> Buffer:
    """Return the raw bytes of `array`: a view of its memory if it is contiguous, but strings are copied.

    Raises:
        FormatError: an element of a string array is longer than 4 GiB.
    """
    if array.dtype == STRING:
        return _encode_strings(array)
    contiguous = np.ascontiguousarray(array)
    # ml_dtypes support no buffer protocol, so view the values as bytes.
    return memoryview(contiguous.reshape(-1).view(np.uint8).data)


def _decode_bools(buffer: Buffer) -> Array:
    # A byte other than 0 and 1 is undefined as a bool in numpy and in C++.
    values = np.frombuffer(buffer, np.uint8)
    return values.view(np.bool_) if not values.size or values.max() <= 1 else values != 0


def _decode_strings(buffer: Buffer, count: int) -> Array:
    # Each element takes at least its length, so a short buffer cannot make the server allocate a large array.
    if count * _LENGTH.size > len(buffer):
        raise FormatError(
            f"{count} BYTES elements need at least {count * _LENGTH.size} bytes, but the data has {len(buffer)}"
        )
    strings = np.empty(count, STRING)
    view, position = memoryview(buffer), 0
    for index in range(count):
        start = position + _LENGTH.size
        if start > len(view):
            raise FormatError(f"BYTES element {index} of {count} has no length: the data ends at byte {len(view)}")
        (length,) = _LENGTH.unpack_from(view, position)
        position = start + length
        if position > len(view):
            raise FormatError(
                f"BYTES element {index} of {count} has {length} bytes, but only {len(view) - start} bytes remain"
            )
        strings[index] = bytes(view[start:position])
    if position != len(view):
        raise FormatError(f"{len(view) - position} bytes remain after {count} BYTES elements")
    return strings


def _encode_strings(array: Array) -> bytes:
    parts: list[bytes] = []
    for element in array.reshape(-1):
        if len(element) > _MAX_STRING_BYTES:
            raise FormatError(f"a BYTES element has {len(element)} bytes, at most {_MAX_STRING_BYTES} are supported")
        parts += (_LENGTH.pack(len(element)), element)
    return b"".join(parts)
