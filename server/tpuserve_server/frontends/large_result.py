"""Decides whether a result is so large that a worker thread encodes it, so that other requests need not wait."""

import math
from typing import Final

from tpuserve_server.core.types import Array, Tensors

# About 1.5 ms of encoding as JSON.
LARGE_RESULT_BYTES: Final = 1 << 18
# JSON has brackets for the lists of an array, even if there are no values in them.
_LIST_BYTES: Final = 4
# A string takes as long as so many bytes of numbers. More strings are large.
_STRING_BYTES: Final = 128
_MOST_STRINGS: Final = LARGE_RESULT_BYTES // _STRING_BYTES


def is_large_result(outputs: Tensors) -> bool:
    """Return whether to encode `outputs` on a worker thread."""
    size_bytes = 0
    for array in outputs.values():
        size_bytes += _strings_size(array) if array.dtype.hasobject else array.nbytes
        if array.ndim > 1:
            size_bytes += math.prod(array.shape[:-1]) * _LIST_BYTES * array.ndim
    return size_bytes > LARGE_RESULT_BYTES


def _strings_size(array: Array) -> int:
    if array.size > _MOST_STRINGS:
        return array.size * _STRING_BYTES
    return sum(map(len, array.flat)) + array.size * _STRING_BYTES
