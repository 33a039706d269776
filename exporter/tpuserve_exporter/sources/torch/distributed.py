"""Reads checkpoints of torch.distributed.checkpoint, in one process and without a process group.

PyTorch's own reader runs the pickles in these directories. This module reads tensors alone, as `weights_only` does.
"""

import io
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from tpuserve_exporter.errors import SourceUnreadable, reason_of
from tpuserve_exporter.sources.torch.distributed_metadata import Part, StoredValue, read_metadata

# The largest object to read. Steps and counters are small, and the state of data loaders is not needed.
_MOST_OBJECT_BYTES = 4096


def read_distributed(folder: Path) -> tuple[dict[str, Any], Callable[[torch.Tensor], torch.Tensor]]:
    """Return the saved dictionaries with placeholders for tensors, and a function that reads the tensor of one.

    Scalars are read at once. The dictionaries have no lists: an index is a key. Raises SourceUnreadable.
    """
    stored = read_metadata(folder)
    missing = sorted({part.file for one in stored.values() for part in one.parts if not (folder / part.file).is_file()})
    if missing:
        raise SourceUnreadable(
            f"{folder.name} lacks {', '.join(missing)}, which its .metadata lists. Copy all its files"
        )
    placeholders: dict[int, StoredValue] = {}
    nested: dict[str, Any] = {}
    for one in stored.values():
        if one.shape:
            placeholder = _placeholder(one)
            placeholders[id(placeholder)] = one
            _insert(nested, one.keys, placeholder)
        else:
            _insert(nested, one.keys, _object(folder, one) if one.shape is None else _read_tensor(folder, one))

    def read(tensor: torch.Tensor) -> torch.Tensor:
        return _read_tensor(folder, placeholders[id(tensor)]) if id(tensor) in placeholders else tensor

    return nested, read


def _insert(nested: dict[str, Any], keys: tuple[str | int, ...], value: Any) -> None:  # noqa: ANN401 - as saved
    *outer, last = map(str, keys)
    for key in outer:
        nested = nested.setdefault(key, {})
    nested[last] = value


def _placeholder(stored: StoredValue) -> torch.Tensor:
    dtype = getattr(torch, stored.dtype, None)
    if not isinstance(dtype, torch.dtype):
        raise SourceUnreadable(f"{'.'.join(map(str, stored.keys))} has a dtype unknown to torch: {stored.dtype}")
    return torch.empty(stored.shape, dtype=dtype, device="meta")


def _object(folder: Path, stored: StoredValue) -> Any:  # noqa: ANN401 - as saved
    """Return a number or text, or None for a large object and for one that is more than plain values."""
    small = [part for part in stored.parts if part.length <= _MOST_OBJECT_BYTES]
    try:
        return next((_load(folder, part) for part in small), None)
    except SourceUnreadable:
        return None


def _read_tensor(folder: Path, stored: StoredValue) -> torch.Tensor:
    parts = [(part, _load(folder, part)) for part in stored.parts]
    if len(parts) == 1:
        return _shaped(parts[0][1], stored)
    whole = torch.empty(stored.shape, dtype=getattr(torch, stored.dtype))
    for part, tensor in parts:
        whole[tuple(map(_range, part.offsets, part.sizes))] = tensor
    return whole


def _range(offset: int, size: int) -> slice:
    return slice(offset, offset + size)


def _shaped(tensor: Any, stored: StoredValue) -> torch.Tensor:  # noqa: ANN401 - as saved
    if not torch.is_tensor(tensor) or tuple(tensor.shape) != stored.shape:
        raise SourceUnreadable(f"{'.'.join(map(str, stored.keys))} has another shape than the .metadata states")
    return tensor


def _load(folder: Path, part: Part) -> Any:  # noqa: ANN401 - as saved
    path = folder / part.file
    if not path.resolve().is_relative_to(folder.resolve()):
        raise SourceUnreadable(f"{folder.name} refers to a file outside of it: {part.file}")
    with path.open("rb") as file:
        file.seek(part.start)
        content = file.read(part.length)
    try:
        return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except Exception as error:  # torch and pickle raise many kinds of errors for damaged files
        raise SourceUnreadable(
            f"cannot read {folder.name}/{part.file} at byte {part.start:,}: {reason_of(error)}. If it is truncated, "
            "copy it again"
        ) from error


_SHARDING = "DCP_SHARDING_INFO"


def read_sharded(paths: Sequence[Path]) -> dict[str, torch.Tensor]:
    """Read safetensors files with parts of tensors, as HuggingFaceStorageWriter writes them. Raises SourceUnreadable.

    Return an empty dictionary if the files do not state the places of their parts.
    """
    import safetensors

    parts: dict[str, list[tuple[tuple[int, ...], torch.Tensor]]] = {}
    for path in paths:
        with safetensors.safe_open(path, framework="pt", device="cpu") as file:
            sharding = json.loads((file.metadata() or {}).get(_SHARDING, "{}"))
            for name in file.keys():  # noqa: SIM118 - it is no dictionary
                if name not in sharding:
                    return {}
                parts.setdefault(name, []).append((tuple(sharding[name]["saved_offsets"]), file.get_tensor(name)))
    return {name: _join(name, found) for name, found in parts.items()}


def _join(name: str, parts: Sequence[tuple[tuple[int, ...], torch.Tensor]]) -> torch.Tensor:
    """Join the parts of a tensor. Raises SourceUnreadable if they leave a gap."""
    ends = [tuple(map(sum, zip(offsets, tensor.shape, strict=True))) for offsets, tensor in parts]
    shape = tuple(map(max, zip(*ends, strict=True)))
    distinct = dict(parts)
    if sum(tensor.numel() for tensor in distinct.values()) != math.prod(shape):
        raise SourceUnreadable(f"{name} is incomplete: its parts do not fill the shape {list(shape)}. Copy all shards")
    whole = torch.empty(shape, dtype=parts[0][1].dtype)
    for offsets, tensor in distinct.items():
        whole[tuple(map(_range, offsets, tensor.shape))] = tensor
    return whole
