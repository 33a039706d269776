"""Protobuf's base-128 varints (protobuf.dev/programming-guides/encoding), for single integers and whole arrays."""

from functools import lru_cache
from typing import Any

import numpy as np

from tpuserve_formats.errors import FormatError

_UNSIGNED_64 = (1 << 64) - 1


@lru_cache(maxsize=4096)
def varint(value: int) -> bytes:
    """Encode one integer. A negative one takes ten bytes, like in int32 and int64 fields."""
    value &= _UNSIGNED_64
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def packed_varints(values: np.ndarray[Any, np.dtype[np.uint64]]) -> bytes:
    """Encode a packed field's payload from a flat uint64 array, without a Python object per element.

    Temporary memory: the bytes of the longest varint (at most ten) for each element, then the result.
    """
    largest = int(values.max(initial=0))
    if largest < 0x80:
        return values.astype(np.uint8).tobytes()
    width = (largest.bit_length() + 6) // 7
    columns = np.empty((values.size, width), np.uint8)
    wanted = np.empty((values.size, width), np.bool_)
    for column in range(width):
        rest = values >> np.uint64(7 * column)
        # A byte is used if bits are left for it. The first byte always is.
        wanted[:, column] = rest != 0 if column else True
        columns[:, column] = (rest & np.uint64(0x7F)) | ((rest > np.uint64(0x7F)).astype(np.uint64) << np.uint64(7))
    return columns[wanted].tobytes()


def read_varint(data: bytes | bytearray, position: int) -> tuple[int, int]:
    """Read the varint at `position`. Return it and the position after it.

    Raises:
        FormatError: the varint is cut off, or longer than 64 bits.
    """
    value = 0
    for shift in range(0, 70, 7):
        if position >= len(data):
            raise FormatError("the data ends inside a number")
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise FormatError("a number of more than ten bytes")
