"""`weights.safetensors`: every weight of a version, once, by name, as servers map it into memory.

The format: eight bytes of the header's length, the header (JSON), the tensors' bytes
(https://github.com/huggingface/safetensors#format). Written here and not by the safetensors library, which wants all
tensors in memory at a time, and copies them: what is served may be as large as the machine.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from tpuserve_exporter.errors import CannotLower
from tpuserve_exporter.signature import Array

WEIGHTS_FILE = Path("assets.extra/tpuserve/weights.safetensors")
# A tensor at such an offset can be used where the file is mapped; readers copy others.
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
    """One to write. `read` gives its value, of that dtype and shape, when its turn comes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    read: Callable[[], Array]

    @property
    def size_bytes(self) -> int:
        return prod(self.shape) * numpy_dtype(self.dtype).itemsize


def write_weights(path: Path, weights: Iterable[Weight]) -> int:
    """Write them all, one value in memory at a time; returns the file's size in bytes. Raises CannotLower for a dtype.

    Those of whole lines of memory come first: the others would put all that follow off the alignment.
    """
    ordered = sorted(weights, key=lambda one: (one.size_bytes % _ALIGNMENT != 0, one.name))
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.write(_header(ordered))
        for weight in ordered:
            _write_value(file, weight)
        return file.tell()


def _write_value(file: BinaryIO, weight: Weight) -> None:
    """A function of its own, so that the value is gone before the next is read."""
    value = np.asarray(weight.read(), order="C")
    if (value.dtype.name, value.shape) != (weight.dtype, weight.shape):
        raise AssertionError(f"{weight.name} is {value.dtype}{value.shape}, told was {weight}")
    file.write(value.reshape(-1).view(np.uint8).data)


def _header(weights: Iterable[Weight]) -> bytes:
    described, begin = dict[str, Any](), 0
    for weight in weights:
        if weight.dtype not in _DTYPES:
            raise CannotLower(
                f"weight {weight.name} is of {weight.dtype}, which weights.safetensors cannot hold; it holds "
                f"{', '.join(_DTYPES)}"
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
    """Every weight by name, in the file's memory map: nothing is read before it is used."""
    content = np.memmap(path, np.uint8, "r")
    length = int.from_bytes(content[:8].tobytes(), "little")
    header: dict[str, Any] = json.loads(content[8 : 8 + length].tobytes())
    return dict(_views(content[8 + length :], header))


def _views(tensors: Array, header: Mapping[str, Any]) -> Iterator[tuple[str, Array]]:
    for name, one in header.items():
        begin, end = one["data_offsets"]
        yield name, tensors[begin:end].view(numpy_dtype(_NAMES[one["dtype"]])).reshape(one["shape"])


def numpy_dtype(name: str) -> "np.dtype[Any]":
    """Numpy's own, or one of those that ml_dtypes adds to them."""
    import ml_dtypes  # noqa: F401 - makes its dtypes known to numpy by name

    return np.dtype(name)
