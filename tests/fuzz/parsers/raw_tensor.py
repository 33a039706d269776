"""Raw tensors of the Open Inference Protocol. The second opinion is a slow reader with struct."""

import math
import struct

import numpy as np

from tests.fuzz.arrays import expect_same
from tests.fuzz.target import Target, expect
from tpuserve_formats.dtypes import STRING, Array
from tpuserve_formats.errors import FormatError
from tpuserve_formats.oip.datatypes import DATATYPES, dtype_of
from tpuserve_formats.oip.raw_tensor import decode_raw, encode_raw


def run(data: bytes) -> bool:
    """Decode: one byte for the datatype, one for the rank, one for each signed dimension, then the contents."""
    if len(data) < 2:
        return False
    datatype, rank = DATATYPES[data[0] % len(DATATYPES)], data[1] % 70
    sizes, contents = data[2 : 2 + rank], data[2 + rank :]
    shape = [size - 256 if size > 127 else size for size in sizes]
    wanted = _slow(datatype, shape, contents)
    try:
        array = decode_raw(datatype, shape, contents)
    except FormatError as error:
        expect(wanted is None, f"a valid tensor is refused: {error}")
        return False
    if wanted is None:
        expect(False, "an invalid tensor is accepted")
        return False
    expect_same(datatype, array, wanted)
    again = bytes(encode_raw(array))
    expect(again == contents or datatype == "BOOL", "the encoded tensor differs")
    expect_same("encoded again", decode_raw(datatype, shape, again), array)
    return True


def _slow(datatype: str, shape: list[int], contents: bytes) -> Array | None:
    if len(shape) > 64 or any(size < 0 for size in shape):
        return None
    if math.prod(size or 1 for size in shape) > 2**59:
        return None
    count, dtype = math.prod(shape), dtype_of(datatype)
    if dtype == STRING:
        texts = _slow_strings(contents, count)
        if texts is None:
            return None
        array = np.empty(count, STRING)
        array[:] = texts
        return array.reshape(shape)
    if len(contents) != count * dtype.itemsize:
        return None
    if datatype == "BOOL":
        return np.array([byte != 0 for byte in contents], np.bool_).reshape(shape)
    return np.array(np.frombuffer(contents, dtype)).reshape(shape)


def _slow_strings(contents: bytes, count: int) -> list[bytes] | None:
    texts, rest = [], contents
    while rest:
        if len(rest) < 4:
            return None
        (length,) = struct.unpack("<I", rest[:4])
        if len(rest) < 4 + length:
            return None
        texts.append(rest[4 : 4 + length])
        rest = rest[4 + length :]
    return texts if len(texts) == count else None


TARGET = Target(run)
