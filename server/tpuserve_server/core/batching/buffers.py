"""BatchBuffers: the padded arrays in which a device thread joins its batches, kept from one to the next."""

from collections.abc import Hashable, Mapping

from tpuserve_server.core.padding import empty_batch
from tpuserve_server.core.types import Array, Tensors

# Of all of a batcher's threads together: what would be more is let go and made anew.
MAX_BUFFER_BYTES = 256 * 2**20
# Of one thread. Shapes of rows come from clients, and there is no end of them where dimensions are free.
_MAX_BUFFERS = 64


class BatchBuffers:
    """At most `max_bytes` of arrays, and few of them, for one thread."""

    def __init__(self, max_bytes: int) -> None:
        """Nothing is kept yet."""
        self._max_bytes = max_bytes
        self._by_shape: dict[Hashable, dict[str, Array]] = {}

    def get(
        self, signature_name: str, like: Tensors, row_shapes: Mapping[str, tuple[int, ...]], bucket: int
    ) -> dict[str, Array]:
        """Arrays of `bucket` rows of `row_shapes`, typed as in `like`; what the last call wrote is theirs to overwrite.

        One buffer for each signature and shape of row, which grows to the largest bucket that was asked for.
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
