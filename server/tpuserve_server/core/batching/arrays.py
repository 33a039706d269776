"""The arrays of a batch: joins and pads the rows of its requests, and splits its outputs among them."""

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from tpuserve_server.core.batching.buffers import BatchBuffers
from tpuserve_server.core.batching.options import BatchingOptions
from tpuserve_server.core.batching.padding import (
    ALIGNMENT_BYTES,
    address,
    empty_aligned,
    empty_batch,
    fill_batch,
    fill_padded,
    largest_rows,
    split_rows,
)
from tpuserve_server.core.batching.sequences import Sequences
from tpuserve_server.core.batching.task import Task
from tpuserve_server.core.terms.types import Array, Tensors

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
        if _is_in_place(first.inputs):
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


def _is_in_place(inputs: Tensors) -> bool:
    """Return whether a runtime reads the large inputs where they are. Most are views of a message at any address."""
    return all(map(_is_readable, inputs.values()))


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
