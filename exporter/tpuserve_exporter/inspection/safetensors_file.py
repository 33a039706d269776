"""Reads safetensors files by their JSON header: one file, or an index of several."""

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tpuserve_exporter.errors import SourceUnreadable
from tpuserve_exporter.inspection.contents import Contents, StoredArray
from tpuserve_exporter.sources.torch.safetensors_index import INDEX_SUFFIX, read_index

_DTYPES = {
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "U16": "uint16", "I16": "int16", "U32": "uint32", "I32": "int32",
    "U64": "uint64", "I64": "int64", "F16": "float16", "BF16": "bfloat16", "F32": "float32", "F64": "float64",
    "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2",
}  # fmt: skip
# The format's own limit for the header.
_LONGEST_HEADER = 100_000_000
_LENGTH_BYTES = 8


def inspect_safetensors(path: Path) -> Contents:
    """Return the contents of a safetensors file or index. Raises SourceUnreadable."""
    if path.name.endswith(INDEX_SUFFIX):
        return _inspect_index(path)
    header, data_bytes = _read_header(path)
    metadata = header.pop("__metadata__", None) or {}
    arrays = tuple(_describe(path, name, one) for name, one in header.items())
    needed = max((one["data_offsets"][1] for one in header.values()), default=0)
    problems = (
        [(f"{path.name} is truncated: it has {data_bytes:,} of {needed:,} bytes of data")]
        if needed > data_bytes
        else []
    )
    return Contents(
        kind="safetensors", name=path.name, facts={str(name): str(value) for name, value in metadata.items()},
        arrays=arrays, files={path.name: path.stat().st_size}, problems=tuple(problems),
    )  # fmt: skip


def _inspect_index(path: Path) -> Contents:
    parts = sorted(set(read_index(path).values()))
    read = [inspect_safetensors(part) for part in parts if part.is_file()]
    missing = [f"{part.name} is missing; {path.name} lists it" for part in parts if not part.is_file()]
    return Contents(
        kind="safetensors in parts",
        name=path.name,
        arrays=tuple(array for part in read for array in part.arrays),
        files={name: size for part in read for name, size in part.files.items()},
        problems=(*missing, *(problem for part in read for problem in part.problems)),
    )


def _read_header(path: Path) -> tuple[dict[str, Any], int]:
    """Return the header, and the number of data bytes after it."""
    with path.open("rb") as file:
        start = file.read(_LENGTH_BYTES)
        length = struct.unpack("<Q", start)[0] if len(start) == _LENGTH_BYTES else _LONGEST_HEADER + 1
        text = file.read(length) if length <= _LONGEST_HEADER else b""
    try:
        header = json.loads(text)
    except ValueError as error:
        raise SourceUnreadable(f"{path.name} is damaged or not a safetensors file: cannot read its header") from error
    if not isinstance(header, dict):
        raise SourceUnreadable(f"{path.name} is not a safetensors file: its header is not a dictionary")
    return header, path.stat().st_size - _LENGTH_BYTES - length


def _describe(path: Path, name: str, one: Mapping[str, Any]) -> StoredArray:
    try:
        return StoredArray(name, _DTYPES.get(one["dtype"], str(one["dtype"]).lower()), tuple(map(int, one["shape"])))
    except (KeyError, TypeError, ValueError) as error:
        raise SourceUnreadable(f"{path.name} is damaged: its header does not describe {name}") from error
