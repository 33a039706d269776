"""Values of datasets in HDF5 files, read for TensorFlow variables."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from tpuserve_exporter.terms.signature import Array

if TYPE_CHECKING:
    import h5py
    import tensorflow as tf

# TensorFlow requires it of memory that it does not allocate (EIGEN_MAX_ALIGN_BYTES).
_ALIGNMENT: Final = 64
# Smaller copies do not show in an export's peak memory.
_LARGE_BYTES: Final = 16 << 20
# Keras does not compress datasets, and other tools do not compress weights so much.
_SMALL_BYTES: Final = 256 << 20
_MOST_TIMES: Final = 100


def is_large(dataset: "h5py.Dataset") -> bool:
    """Return whether `read_tensor` saves memory. DLPack has no strings and no structures."""
    return dataset.nbytes >= _LARGE_BYTES and (dataset.dtype.kind in "biufc" or dtype_of(dataset) == "bfloat16")


def dtype_of(dataset: "h5py.Dataset") -> str:
    """Return the dtype. HDF5 has no bfloat16, so Keras stores the name in an attribute."""
    return str(dataset.attrs.get("dtype", dataset.dtype.name))


def read_array(dataset: "h5py.Dataset", dtype: str) -> Array:
    """Return the value in a dtype of TensorFlow. Raises OSError if the file is damaged."""
    import tensorflow as tf

    return np.array(dataset, dtype=tf.dtypes.as_dtype(dtype).as_numpy_dtype)


def read_tensor(dataset: "h5py.Dataset", dtype: str) -> "tf.Tensor":
    """Return the value as a tensor. A variable that it is assigned to shares its memory.

    TensorFlow copies an array twice, which decides an export's peak memory for a large table. Raises OSError if the
    file is damaged.
    """
    import tensorflow as tf

    kind = tf.dtypes.as_dtype(dtype)
    if not is_large(dataset):
        return tf.constant(read_array(dataset, dtype))
    memory = np.empty(dataset.size * kind.size + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    value: Any = memory[start : start + dataset.size * kind.size].view(kind.as_numpy_dtype).reshape(dataset.shape)
    dataset.read_direct(value)
    if kind != tf.bfloat16:
        return tf.experimental.dlpack.from_dlpack(value.__dlpack__())
    return tf.bitcast(tf.experimental.dlpack.from_dlpack(value.view(np.uint16).__dlpack__()), kind)


def find_inflated(file: "h5py.File") -> Iterator[str]:
    """Yield the datasets whose declared size their stored bytes contradict: reading one would fill the memory."""
    import h5py

    found: list[h5py.Dataset] = []
    file.visititems(lambda _, item: found.append(item) if isinstance(item, h5py.Dataset) else None)
    for one in found:
        stored = one.id.get_storage_size()
        if one.nbytes > max(_SMALL_BYTES, _MOST_TIMES * stored):
            yield f"{one.name.removeprefix('/')} declares {one.nbytes} bytes, but holds {stored}"
