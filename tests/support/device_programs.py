"""Versions with device programs for tests, made with JAX's public API in the format of docs/reference/manifest.md."""

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax import export

from tpuserve_server.core.terms.types import Array

# Set this before JAX starts, because it would search for a TPU.
jax.config.update("jax_platforms", os.environ.get("JAX_PLATFORMS") or "cpu")

FOLDER = Path("assets.extra", "tpuserve")
# safetensors' names (huggingface/safetensors, README.md).
_SAFETENSORS = {"float32": "F32", "int64": "I64", "int32": "I32", "bfloat16": "BF16", "float64": "F64", "bool": "BOOL"}


@dataclass(frozen=True)
class Part:
    """A function of inputs and then weights, which returns a tuple, and its tensors by name, in order.

    Shapes are those of the manifest: a leading None for rows, another None for a length.
    """

    function: Callable[..., tuple[jax.Array, ...]]
    inputs: Mapping[str, tuple[str, tuple[int | None, ...]]]
    outputs: Mapping[str, tuple[str, tuple[int | None, ...]]]
    weights: Mapping[str, Array] = field(default_factory=dict)


def write_programs(
    path: Path,
    part: Part,
    *,
    batch_sizes: Sequence[int] = (1, 2, 4),
    lengths: Sequence[int] = (),
    signature: Mapping[str, Any] | None = None,
    rows_independent: bool = True,
    **device: object,
) -> Path:
    """Add programs, weights and a manifest to the version in `path`, which may contain a SavedModel.

    `signature` updates the entry of `serving_default`, `device` the object of that name.
    """
    write_weights(path / FOLDER / "weights.safetensors", part.weights)
    free: Sequence[int | None] = lengths or [None]
    programs = [_write_program(path, part, rows, length) for rows in batch_sizes for length in free]
    entry = {
        "inputs": _tensors(part.inputs),
        "weights": list(part.weights),
        "outputs": _tensors(part.outputs),
        "compute_dtype": "float32",
        "programs": programs,
    }
    mapped = {
        "part": "device",
        "inputs": {name: name for name in part.inputs},
        "outputs": {name: name for name in part.outputs},
        "host": None,
    }
    served = {
        "inputs": entry["inputs"],
        "outputs": entry["outputs"],
        "batch_sizes": list(batch_sizes),
        "rows_independent": rows_independent,
        "sequence_buckets": list(lengths),
        **(signature or {}),
    }
    write_device_manifest(
        path,
        {"serving_default": served},
        {
            "format_version": 1,
            "lowered_with": {"jax": jax.__version__},
            "calling_convention_version": export.maximum_supported_calling_convention_version,
            "weights": str(FOLDER / "weights.safetensors"),
            "parts": {"device": entry},
            "signatures": {"serving_default": mapped},
            **device,
        },
    )
    return path


def write_device_manifest(path: Path, signatures: Mapping[str, Any], device: Mapping[str, Any]) -> None:
    """Write a manifest of the existing files."""
    target = path / FOLDER / "manifest.json"
    files = {
        str(file.relative_to(path)): {
            "sha256": hashlib.sha256(file.read_bytes()).hexdigest(),
            "size_bytes": file.stat().st_size,
        }
        for file in path.rglob("*")
        if file.is_file() and file != target
    }
    manifest = {"format_version": 1, "signatures": signatures, "device": device, "files": files}
    target.write_text(json.dumps(manifest))


def read_manifest(path: Path) -> dict[str, Any]:
    """Return a version's manifest, which a test can change and write again."""
    manifest: dict[str, Any] = json.loads((path / FOLDER / "manifest.json").read_text())
    return manifest


def write_weights(path: Path, weights: Mapping[str, Array]) -> None:
    """Write a safetensors file with the exporter's alignment, which lets devices use the mapped memory."""
    header: dict[str, Any] = {}
    end = 0
    for name, array in weights.items():
        header[name] = {
            "dtype": _SAFETENSORS[str(array.dtype)],
            "shape": list(array.shape),
            "data_offsets": [end, end + array.nbytes],
        }
        end += array.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-(8 + len(text)) % 64)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(
        b"".join([len(text).to_bytes(8, "little"), text, *(array.tobytes() for array in weights.values())])
    )


def double_and_add() -> Part:
    """Return `x` float32 [rows, 2] times and plus a weight each, like `double_and_add` of the executors' contract."""
    return Part(
        lambda x, two, one: (x * two, x + one),
        {"x": ("float32", (None, 2))},
        {"double": ("float32", (None, 2)), "added": ("float32", (None, 2))},
        {"two": np.array(2, np.float32), "one": np.ones(2, np.float32)},
    )


def _write_program(path: Path, part: Part, rows: int, length: int | None) -> dict[str, Any]:
    file = FOLDER / "programs" / "device" / (f"b{rows}.jaxexport" if length is None else f"b{rows}_s{length}.jaxexport")
    (path / file).parent.mkdir(parents=True, exist_ok=True)
    with jax.enable_x64(True):
        arguments = [*_shapes(part.inputs.values(), rows, length), *part.weights.values()]
        # A test calls `nobody` to make compilation fail.
        unchecked = [export.DisabledSafetyCheck.platform(), export.DisabledSafetyCheck.custom_call("nobody")]
        lowered = export.export(jax.jit(part.function), platforms=("tpu",), disabled_checks=unchecked)(*arguments)
    (path / file).write_bytes(lowered.serialize())
    return {"batch_size": rows, "sequence_length": length, "file": str(file)}


def _shapes(
    tensors: Iterable[tuple[str, tuple[int | None, ...]]], rows: int, length: int | None
) -> list[jax.ShapeDtypeStruct]:
    return [
        jax.ShapeDtypeStruct(
            [size if size is not None else length if axis else rows for axis, size in enumerate(shape)], dtype
        )
        for dtype, shape in tensors
    ]


def _tensors(tensors: Mapping[str, tuple[str, tuple[int | None, ...]]]) -> dict[str, Any]:
    return {name: {"dtype": dtype, "shape": list(shape)} for name, (dtype, shape) in tensors.items()}
