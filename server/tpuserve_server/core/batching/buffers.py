"""BatchBuffers: the padded arrays in which a device thread joins its batches, kept from batch to batch."""

from collections.abc import Hashable, Mapping

from tpuserve_server.core.padding import empty_batch
from tpuserve_server.core.types import Array, Tensors

# Limit for all threads of a batcher together. A thread that reaches its share drops its buffers and allocates new ones.
MAX_BUFFER_BYTES = 256 * 2**20
# Limit for one thread. Row shapes come from clients and are unbounded if dimensions are free.
_MAX_BUFFERS = 64


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

        Each signature and row shape has one buffer, which grows to the largest requested bucket.
        """
        key = (signature_name, *row_shapes.values())
        buffer = self._by_shape.get(key)
        if buffer is None or any(len(array) < bucket for array in buffer.values()):
            self._by_shape.pop(key, None)
            buffer = empty_batch(like, row_shapes, bucket)
            if len(self._by_shape) >= _MAX_BUFFERS or self._is_too_large(buffer):
                self._by_shape.clear()
            self._by_shape[key] = buffer
        return {name: array[:bucket] for name, array in buffer.items()}

    def _is_too_large(self, buffer: Tensors) -> bool:
        return sum(_size_bytes(kept) for kept in (buffer, *self._by_shape.values())) > self._max_bytes


def _size_bytes(tensors: Tensors) -> int:
    return sum(array.nbytes for array in tensors.values())
