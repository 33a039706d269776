"""The arrays of a batch: buckets and buffers, joined and padded rows of requests, and their shares of the outputs."""

import bisect
import math
import sys
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from tpuserve_server.core.batching.parameters import BatchingOptions
from tpuserve_server.core.batching.sequences import Sequences
from tpuserve_server.core.batching.task import Task
from tpuserve_server.core.system.alignment import ALIGNMENT_BYTES
from tpuserve_server.core.terms.errors import FailedPrecondition, counted
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


# The copy that a runtime makes of a smaller array takes less time than the search for a buffer.
_SMALL_BYTES: Final = 1 << 16


def join_batch(
    tasks: Sequence[Task], rows: int, bucket: int, options: BatchingOptions | None, buffers: BatchBuffers
) -> tuple[Tensors, bool]:
    """Return the inputs of `rows` rows, padded to `bucket`, and whether they lie in `buffers`, to be overwritten."""
    first = tasks[0]
    sequences = options.sequences if options is not None and first.shareable else None
    fits = sequences is None or sequences.own_lengths(first.inputs) == first.lengths
    if len(tasks) == 1 and rows == bucket and fits:
        # A runtime reads large inputs where they are. Most are views of a message at any address.
        if all(map(_is_readable, first.inputs.values())):
            return first.inputs, False
        if not first.shareable:
            return {name: _aligned(array) for name, array in first.inputs.items()}, False
    parts = [task.inputs for task in tasks]
    pads = options is not None and options.pad_variable_length_inputs
    shapes = largest_rows(parts) if pads else {name: array.shape[1:] for name, array in first.inputs.items()}
    if sequences is not None:
        shapes = sequences.row_shapes(shapes, first.lengths)
    batch, reusable = _make_batch(first, shapes, bucket, buffers)
    if sequences is not None or pads:
        fill_padded(batch, parts, rows, None if sequences is None else sequences.pad_values)
    else:
        fill_batch(batch, parts, rows)
    return batch, reusable


def split_outputs(
    outputs: Tensors, tasks: Sequence[Task], bucket: int, options: BatchingOptions | None
) -> Sequence[Tensors]:
    """Return each request's rows of the outputs, without its own padding.

    Raises:
        FailedPrecondition: an output does not have `bucket` rows, so its rows cannot be assigned to requests.
    """
    if not tasks[0].shareable:
        return [outputs]
    shares = split_rows(outputs, [task.rows for task in tasks], bucket)
    if options is None or options.sequences is None:
        return shares
    return _cut(options.sequences, tasks, shares)


def detached(outputs: Tensors, buffers: Tensors) -> Tensors:
    """Copy outputs that are views of a buffer: a model that returns an input unchanged returns the batcher's memory."""
    return {
        name: array.copy() if any(np.may_share_memory(array, buffer) for buffer in buffers.values()) else array
        for name, array in outputs.items()
    }


def _is_readable(array: Array) -> bool:
    if array.nbytes < _SMALL_BYTES or array.dtype.hasobject:
        return True
    return array.flags.c_contiguous and address(array) % ALIGNMENT_BYTES == 0


def _aligned(array: Array) -> Array:
    if _is_readable(array):
        return array
    copied = empty_aligned(array.shape, array.dtype)
    copied[...] = array
    return copied


def _make_batch(
    like: Task, row_shapes: Mapping[str, tuple[int, ...]], bucket: int, buffers: BatchBuffers
) -> tuple[dict[str, Array], bool]:
    # Strings need new arrays: a kept buffer would keep clients' data alive.
    if any(array.dtype.hasobject for array in like.inputs.values()):
        return empty_batch(like.inputs, row_shapes, bucket), False
    return buffers.get(like.signature_name, like.inputs, row_shapes, bucket), True


def _cut(sequences: Sequences, tasks: Sequence[Task], shares: Sequence[Tensors]) -> Sequence[Tensors]:
    return [
        sequences.cut(outputs, sequences.own_lengths(task.inputs), task.lengths)
        for task, outputs in zip(tasks, shares, strict=True)
    ]


def choose_bucket(rows: int, allowed_batch_sizes: Sequence[int]) -> int:
    """Return the smallest allowed size that holds `rows`, or `rows` if there are no sizes or none is large enough."""
    index = bisect.bisect_left(allowed_batch_sizes, rows)
    return allowed_batch_sizes[index] if index < len(allowed_batch_sizes) else rows


def empty_batch(like: Tensors, row_shapes: Mapping[str, tuple[int, ...]], bucket: int) -> dict[str, Array]:
    """Return uninitialised, aligned arrays of `bucket` rows of `row_shapes`, with the dtypes of `like`."""
    return {name: empty_aligned((bucket, *row_shapes[name]), array.dtype) for name, array in like.items()}


def empty_aligned(shape: Sequence[int], dtype: np.dtype[Any]) -> Array:
    """Return an uninitialised array at a multiple of ALIGNMENT_BYTES. Strings need no alignment."""
    if dtype.hasobject:
        return np.empty(shape, dtype)
    memory = np.empty(math.prod(shape) * dtype.itemsize + ALIGNMENT_BYTES, np.uint8)
    return np.ndarray(shape, dtype, memory, -address(memory) % ALIGNMENT_BYTES)


def address(array: Array) -> int:
    """Return the address of the first element."""
    first: int = array.__array_interface__["data"][0]
    return first


def largest_rows(parts: Sequence[Tensors]) -> dict[str, tuple[int, ...]]:
    """Return for each input the smallest row shape that holds the rows of every part."""
    return {
        name: tuple(max(sizes) for sizes in zip(*(part[name].shape[1:] for part in parts), strict=True))
        for name in parts[0]
    }


def fill_batch(batch: dict[str, Array], parts: Sequence[Tensors], rows: int) -> None:
    """Write the rows of `parts` into `batch` in order, and repeat the last real row up to the bucket.

    The padding is a real row instead of zeros, because a model may divide by a norm (tensorflow/serving,
    batching/README.md).
    """
    for name, target in batch.items():
        np.concatenate([part[name] for part in parts], out=target[:rows])
        if rows < len(target):
            target[rows:] = target[rows - 1]


def fill_padded(
    batch: dict[str, Array], parts: Sequence[Tensors], rows: int, pad_values: Mapping[str, object] | None = None
) -> None:
    """Fill like `fill_batch`, but pad the rows of smaller parts at the end of each dimension.

    The padding is the input's value in `pad_values`. Without `pad_values` it is the part's own first element, like in
    TensorFlow Serving (batching/batching_util.cc), because the model accepts this value. Then every part must have
    elements.
    """
    for name, target in batch.items():
        start = 0
        for part in parts:
            array = part[name]
            share = target[start : start + len(array)]
            if array.shape != share.shape:
                _pad_beyond(share, array.shape, array.flat[0] if pad_values is None else pad_values[name])
            share[tuple(slice(size) for size in array.shape)] = array
            start += len(array)
        if rows < len(target):
            target[rows:] = target[rows - 1]


def _pad_beyond(target: Array, shape: Sequence[int], value: object) -> None:
    """Write `value` to all elements outside an array of `shape`."""
    for dimension, size in enumerate(shape):
        if size < target.shape[dimension]:
            target[(*[slice(None)] * dimension, slice(size, None))] = value
            # The rest of this dimension lies within the array, so later dimensions need not write the corner again.
            target = target[(*[slice(None)] * dimension, slice(size))]


def split_rows(outputs: Tensors, sizes: Sequence[int], bucket: int) -> list[dict[str, Array]]:
    """Return each part's rows of every output, as views. Rows beyond the parts are padding and are dropped.

    Raises:
        FailedPrecondition: an output does not have `bucket` rows, so its rows cannot be assigned to parts.
    """
    for name, array in outputs.items():
        if array.ndim == 0 or array.shape[0] != bucket:
            raise FailedPrecondition(
                "Batched output tensor's 0th dimension does not equal the sum of the 0th dimension sizes of the input "
                f"tensors: output '{name}' has shape {list(array.shape)}, expected {counted(bucket, 'row')}"
            )
    parts = []
    start = 0
    if len(outputs) == 1:
        # Most models have one output, and a comprehension for each request takes three times as long.
        ((name, array),) = outputs.items()
        for size in sizes:
            parts.append({name: array[start : start + size]})
            start += size
        return parts
    for size in sizes:
        parts.append({name: array[start : start + size] for name, array in outputs.items()})
        start += size
    return parts
