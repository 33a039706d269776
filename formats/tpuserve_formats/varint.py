"""Protobuf's base-128 varints (protobuf.dev/programming-guides/encoding), one at a time and for whole arrays."""

from functools import lru_cache
from typing import Any

import numpy as np

from tpuserve_formats.errors import FormatError

_UNSIGNED_64 = (1 << 64) - 1


@lru_cache(maxsize=4096)
def varint(value: int) -> bytes:
    """One integer; a negative one takes ten bytes, as int32 and int64 fields do."""
    value &= _UNSIGNED_64
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def packed_varints(values: np.ndarray[Any, np.dtype[np.uint64]]) -> bytes:
    """A packed field's payload from a flat uint64 array, without a Python object for each element.

    Memory: the longest varint's bytes for each element (at most ten), then the result.
    """
    largest = int(values.max(initial=0))
    if largest < 0x80:
        return values.astype(np.uint8).tobytes()
    width = (largest.bit_length() + 6) // 7
    columns = np.empty((values.size, width), np.uint8)
    wanted = np.empty((values.size, width), np.bool_)
    for column in range(width):
        rest = values >> np.uint64(7 * column)
        # A byte is there when anything is left for it; the first always is.
        wanted[:, column] = rest != 0 if column else True
        columns[:, column] = (rest & np.uint64(0x7F)) | ((rest > np.uint64(0x7F)).astype(np.uint64) << np.uint64(7))
    return columns[wanted].tobytes()


def read_varint(data: bytes, position: int) -> tuple[int, int]:
    """Read the varint at `position`; return it and the position after it.

    Raises:
        FormatError: it is cut off, or longer than 64 bits.
    """
    value = 0
    for shift in range(0, 70, 7):
        if position >= len(data):
            raise FormatError("it ends within a number")
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise FormatError("a number of more than ten bytes")
