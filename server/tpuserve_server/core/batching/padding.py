"""Pure array functions of a batch: choose a bucket, join and pad rows, split results."""

import bisect
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from tpuserve_server.core.terms.errors import FailedPrecondition, counted
from tpuserve_server.core.terms.types import Array, Tensors

# Runtimes read memory in place only at such an address, and copy any other: TensorFlow with AVX-512 (TF_NewTensor),
# JAX on the CPU. numpy's own memory begins 16 bytes behind one.
ALIGNMENT_BYTES: Final = 64


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
