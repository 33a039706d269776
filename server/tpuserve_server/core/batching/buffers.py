"""BatchBuffers: the padded arrays in which a device thread joins its batches, kept from batch to batch."""

import sys
from collections.abc import Hashable, Mapping
from typing import Final

from tpuserve_server.core.batching.padding import ALIGNMENT_BYTES, empty_batch
from tpuserve_server.core.terms.types import Array, Tensors

# Limit for all threads of a batcher together. A thread that reaches its share drops its buffers and allocates new ones.
MAX_BUFFER_BYTES = 256 * 2**20
# Limit for one thread. Row shapes come from clients and are unbounded if dimensions are free.
_MAX_BUFFERS = 64
# References to the memory of a buffer without views: of the buffer, and of the function that counts.
_OWN_REFERENCES: Final = 2


class BatchBuffers:
    """Arrays of one thread: at most `max_bytes` in few buffers, unless a single buffer is larger."""

    def __init__(self, max_bytes: int) -> None:
        """Keep no buffer yet."""
        self._max_bytes = max_bytes
        self._by_shape: dict[Hashable, dict[str, Array]] = {}

    def get(
        self, signature_name: str, like: Tensors, row_shapes: Mapping[str, tuple[int, ...]], bucket: int
    ) -> dict[str, Array]:
        """Return arrays of `bucket` rows of `row_shapes`, with the dtypes of `like`. They reuse the last call's memory.

        Each signature and row shape has one buffer, which grows to the largest requested bucket. A buffer that is
        still in use elsewhere is left to its user: a model may keep an input in a variable.
        """
        key = (signature_name, *row_shapes.values())
        buffer = self._by_shape.get(key)
        if buffer is None or any(len(array) < bucket or _has_views(array) for array in buffer.values()):
            self._by_shape.pop(key, None)
            buffer = empty_batch(like, row_shapes, bucket)
            if len(self._by_shape) >= _MAX_BUFFERS or self._is_too_large(buffer):
                self._by_shape.clear()
            self._by_shape[key] = buffer
        return {name: array[:bucket] for name, array in buffer.items()}

    def _is_too_large(self, buffer: Tensors) -> bool:
        return sum(_size_bytes(kept) for kept in (buffer, *self._by_shape.values())) > self._max_bytes


def _has_views(buffer: Array) -> bool:
    # A view refers to the memory, not to the array that it was made of.
    return sys.getrefcount(buffer.base) > _OWN_REFERENCES


def _size_bytes(tensors: Tensors) -> int:
    return sum(array.nbytes + ALIGNMENT_BYTES for array in tensors.values())
