"""Memory-mapped weights of a version, in the safetensors format (huggingface/safetensors, README.md, "Format").

The format's own library returns bfloat16 only to PyTorch, and copies the arrays that it returns to numpy.
"""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from tpuserve_server.core.errors import DataLoss
from tpuserve_server.core.types import Array

_DTYPES: Mapping[str, np.dtype[Any]] = {
    "BOOL": np.dtype(np.bool_),
    "U8": np.dtype(np.uint8),
    "I8": np.dtype(np.int8),
    "U16": np.dtype(np.uint16),
    "I16": np.dtype(np.int16),
    "U32": np.dtype(np.uint32),
    "I32": np.dtype(np.int32),
    "U64": np.dtype(np.uint64),
    "I64": np.dtype(np.int64),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "F32": np.dtype(np.float32),
    "F64": np.dtype(np.float64),
    "C64": np.dtype(np.complex64),
    "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
    "F8_E5M2": np.dtype(ml_dtypes.float8_e5m2),
}
_LENGTH_BYTES = 8
# The library's limit, against forged headers.
_MAX_HEADER_BYTES = 100_000_000


def map_weights(path: Path) -> dict[str, Array]:
    """Return every array in the file by name, as a read-only view of one memory map.

    The map reads data on first access. The views keep it open.

    Raises:
        DataLoss: the file is truncated, or not a safetensors file.
    """
    try:
        size_bytes = path.stat().st_size
        if size_bytes < _LENGTH_BYTES:
            raise DataLoss(f"{path.name} is truncated: {size_bytes} bytes")
        content: Array = np.memmap(path, np.uint8, "r").view(np.ndarray)
    except OSError as error:
        raise DataLoss(f"{path.name} cannot be read: {error.strerror}") from error
    length = int.from_bytes(content[:_LENGTH_BYTES].tobytes(), "little")
    start = _LENGTH_BYTES + length
    if length > _MAX_HEADER_BYTES or start > size_bytes:
        raise DataLoss(f"{path.name} is truncated, or is not a safetensors file")
    try:
        header = json.loads(content[_LENGTH_BYTES:start].tobytes())
        header.pop("__metadata__", None)
        return {name: _view(content[start:], entry) for name, entry in header.items()}
    # The last two: thousands of brackets, and sizes beyond 64 bits.
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError) as error:
        raise DataLoss(f"{path.name} has a header that cannot be read: {type(error).__name__}: {error}") from error


def _view(data: Array, entry: Mapping[str, Any]) -> Array:
    dtype, shape = _DTYPES[entry["dtype"]], tuple(entry["shape"])
    begin, end = entry["data_offsets"]
    if not 0 <= begin <= end <= len(data) or end - begin != math.prod(shape) * dtype.itemsize:
        raise ValueError(f"data from {begin} to {end} does not match {entry['dtype']} {list(shape)}")
    return data[begin:end].view(dtype).reshape(shape)
