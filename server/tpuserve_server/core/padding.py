"""Pure array work of a batch: choose a bucket, join and pad rows, split results."""

import bisect
from collections.abc import Sequence

import numpy as np

from tpuserve_server.core.errors import FailedPrecondition
from tpuserve_server.core.types import Array, Tensors


def choose_bucket(rows: int, allowed_batch_sizes: Sequence[int]) -> int:
    """The smallest allowed size that holds `rows`; `rows` itself where no sizes are given or none is large enough."""
    index = bisect.bisect_left(allowed_batch_sizes, rows)
    return allowed_batch_sizes[index] if index < len(allowed_batch_sizes) else rows


def empty_batch(like: Tensors, bucket: int) -> dict[str, Array]:
    """Uninitialised arrays of `bucket` rows, each row shaped and typed as in `like`."""
    return {name: np.empty((bucket, *array.shape[1:]), array.dtype) for name, array in like.items()}


def fill_batch(batch: dict[str, Array], parts: Sequence[Tensors], rows: int) -> None:
    """Write the rows of `parts` into `batch` one after the other; repeat the last real row up to the bucket.

    A real row, not zeros, because a model may divide by a norm (tensorflow/serving, batching/README.md).
    """
    for name, target in batch.items():
        np.concatenate([part[name] for part in parts], out=target[:rows])
        if rows < len(target):
            target[rows:] = target[rows - 1]


def split_rows(outputs: Tensors, sizes: Sequence[int], bucket: int) -> list[dict[str, Array]]:
    """Each part's rows of every output, as views; rows beyond the parts are padding and are dropped.

    Raises:
        FailedPrecondition: an output has not `bucket` rows, so that nobody can tell whose rows are whose.
    """
    for name, array in outputs.items():
        if array.ndim == 0 or array.shape[0] != bucket:
            raise FailedPrecondition(
                "Batched output tensor's 0th dimension does not equal the sum of the 0th dimension sizes of the input "
                f"tensors: output '{name}' has shape {list(array.shape)}, expected {bucket} rows"
            )
    parts = []
    start = 0
    for size in sizes:
        parts.append({name: array[start : start + size] for name, array in outputs.items()})
        start += size
    return parts
