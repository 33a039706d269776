"""`weights.safetensors`: every weight of a version once by name, for servers to map into memory.

The format has eight bytes with the header's length, a JSON header and the tensors' bytes
(https://github.com/huggingface/safetensors#format). The safetensors library needs all tensors in memory at once and
copies them. This module writes one tensor at a time, because a model may be as large as the machine's memory.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from tpuserve_exporter.errors import CannotLower
from tpuserve_exporter.terms.signature import Array

WEIGHTS_FILE = Path("assets.extra/tpuserve/weights.safetensors")
# Readers use a tensor at a multiple of this offset in place, and copy other tensors.
_ALIGNMENT = 64
_DTYPES = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2",
    "int64": "I64", "int32": "I32", "int16": "I16", "int8": "I8",
    "uint64": "U64", "uint32": "U32", "uint16": "U16", "uint8": "U8", "bool": "BOOL", "complex64": "C64",
}  # fmt: skip
_NAMES = {short: name for name, short in _DTYPES.items()}


@dataclass(frozen=True, slots=True)
class Weight:
    """One weight to write. `read` returns its value with `dtype` and `shape` when the writer needs it."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    read: Callable[[], Array]

    @property
    def size_bytes(self) -> int:
        return prod(self.shape) * numpy_dtype(self.dtype).itemsize


def write_weights(path: Path, weights: Iterable[Weight]) -> int:
    """Write the weights with one value in memory at a time. Return the file's size in bytes.

    Weights whose sizes are multiples of the alignment come first, so that they are aligned. Raises CannotLower for an
    unsupported dtype.
    """
    ordered = sorted(weights, key=lambda one: (one.size_bytes % _ALIGNMENT != 0, one.name))
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.write(_header(ordered))
        for weight in ordered:
            _write_value(file, weight)
        return file.tell()


def _write_value(file: BinaryIO, weight: Weight) -> None:
    """Write one value. A separate function frees the value before the writer reads the next."""
    value = np.asarray(weight.read(), order="C")
    if (value.dtype.name, value.shape) != (weight.dtype, weight.shape):
        raise AssertionError(f"{weight.name} is {value.dtype}{value.shape} instead of {weight}")
    file.write(value.reshape(-1).view(np.uint8).data)


def _header(weights: Iterable[Weight]) -> bytes:
    described, begin = dict[str, Any](), 0
    for weight in weights:
        if weight.dtype not in _DTYPES:
            raise CannotLower(
                f"weight {weight.name} is of {weight.dtype}, but weights.safetensors holds only {', '.join(_DTYPES)}"
            )
        end = begin + weight.size_bytes
        described[weight.name] = {
            "dtype": _DTYPES[weight.dtype], "shape": weight.shape, "data_offsets": (begin, end),
        }  # fmt: skip
        begin = end
    text = json.dumps(described, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % _ALIGNMENT)
    return len(text).to_bytes(8, "little") + text


def map_weights(path: Path) -> Mapping[str, Array]:
    """Map the file into memory and return every weight by name. Values are read on first use."""
    content = np.memmap(path, np.uint8, "r")
    length = int.from_bytes(content[:8].tobytes(), "little")
    header: dict[str, Any] = json.loads(content[8 : 8 + length].tobytes())
    return dict(_views(content[8 + length :], header))


def _views(tensors: Array, header: Mapping[str, Any]) -> Iterator[tuple[str, Array]]:
    for name, one in header.items():
        begin, end = one["data_offsets"]
        yield name, tensors[begin:end].view(numpy_dtype(_NAMES[one["dtype"]])).reshape(one["shape"])


def numpy_dtype(name: str) -> "np.dtype[Any]":
    """Return a dtype of numpy or ml_dtypes by name."""
    import ml_dtypes  # noqa: F401 - makes its dtypes known to numpy by name

    return np.dtype(name)
