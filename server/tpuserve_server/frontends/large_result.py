"""Decides whether a result is so large that a worker thread encodes it, so that other requests need not wait."""

from typing import Final

from tpuserve_server.core.types import Array, Tensors

# About 5 ms of encoding as JSON.
LARGE_RESULT_BYTES: Final = 1 << 18
# Estimate for a string, as its length would take a look at each.
_STRING_BYTES: Final = 64
_MOST_MEASURED: Final = 256


def is_large_result(outputs: Tensors) -> bool:
    """Return whether to encode `outputs` on a worker thread."""
    size_bytes = 0
    for array in outputs.values():
        size_bytes += _strings_size(array) if array.dtype.hasobject else array.nbytes
    return size_bytes > LARGE_RESULT_BYTES


def _strings_size(array: Array) -> int:
    return array.size * _STRING_BYTES if array.size > _MOST_MEASURED else sum(map(len, array.flat))
