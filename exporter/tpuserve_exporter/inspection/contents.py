"""The contents of a path, as `tpuserve inspect` prints them."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tpuserve_exporter.terms.signature import Signature, TensorSpec

_BITS = re.compile(r"[a-z]+(?P<bits>\d+)")


@dataclass(frozen=True, slots=True)
class StoredArray:
    """One array. `dtype` and `shape` are None if only the name is known. `part` is the part of the checkpoint."""

    name: str
    dtype: str | None
    shape: tuple[int, ...] | None
    part: str = "model"

    @property
    def size_bytes(self) -> int | None:
        """Size in bytes, or None for strings and if dtype or shape is unknown."""
        if self.dtype is None or self.shape is None:
            return None
        return size_of(self.dtype, self.shape)

    def __str__(self) -> str:
        return "?" if self.dtype is None or self.shape is None else f"{self.dtype}{list(self.shape)}"


def size_of(dtype: str, shape: tuple[int, ...]) -> int | None:
    """Return the size in bytes in memory, or None for a dtype without a fixed size."""
    found = _BITS.match(dtype)
    bits = 8 if dtype == "bool" else int(found["bits"]) if found else None
    return None if bits is None else math.ceil(bits * math.prod(shape) / 8)


@dataclass(frozen=True, slots=True)
class Operations:
    """Operations by type, with their counts. `host` operations have no kernel for a TPU compiler."""

    counts: Mapping[str, int]
    tpu: Mapping[str, int]
    host: Mapping[str, int]
    unknown: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Contents:
    """The contents of a path. `facts` are for display, in order. `problems` describe damaged or missing parts.

    `refused` describes operations that servers refuse to run.
    """

    kind: str
    name: str
    facts: Mapping[str, str] = field(default_factory=dict)
    signatures: Mapping[str, Signature] = field(default_factory=dict)
    arrays: tuple[StoredArray, ...] = ()
    operations: Operations | None = None
    files: Mapping[str, int] = field(default_factory=dict)
    manifest: Mapping[str, Any] | None = None
    notes: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()

    @property
    def size_bytes(self) -> int:
        """Size in bytes of all arrays whose size is known."""
        return sum(array.size_bytes or 0 for array in self.arrays)

    def to_json(self) -> dict[str, Any]:
        return {
            "ok": not self.problems,
            "kind": self.kind,
            "name": self.name,
            "facts": dict(self.facts),
            "signatures": {name: _signature_to_json(one) for name, one in self.signatures.items()},
            "variables": [_array_to_json(one) for one in self.arrays],
            "variables_bytes": self.size_bytes,
            "operations": None if self.operations is None else _operations_to_json(self.operations),
            "files": dict(self.files),
            "manifest": self.manifest,
            "notes": list(self.notes),
            "refused_operations": list(self.refused),
            "problems": list(self.problems),
        }


def _signature_to_json(signature: Signature) -> dict[str, Any]:
    def describe(specs: Mapping[str, TensorSpec]) -> dict[str, Any]:
        return {name: {"dtype": spec.dtype, "shape": spec.shape} for name, spec in specs.items()}

    return {"inputs": describe(signature.inputs), "outputs": describe(signature.outputs)}


def _array_to_json(array: StoredArray) -> dict[str, Any]:
    shape = None if array.shape is None else list(array.shape)
    described = {"name": array.name, "dtype": array.dtype, "shape": shape}
    return described | {"size_bytes": array.size_bytes, "part": array.part}


def _operations_to_json(operations: Operations) -> dict[str, Any]:
    return {
        "counts": dict(operations.counts),
        "tpu": dict(operations.tpu),
        "host": dict(operations.host),
        "unknown": dict(operations.unknown),
    }
