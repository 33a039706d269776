"""Reads PyTorch's files without torch and without running their code: torch.save, torch.export and safetensors.

A pickle is a program. Every name in it becomes an object that does nothing, except those that describe tensors. The
other names show which code a normal reader would run.
"""

import io
import json
import pickle
import struct
import zipfile
from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tpuserve_exporter.errors import SourceUnreadable, reason_of
from tpuserve_exporter.inspection.contents import Contents, Operations, StoredArray
from tpuserve_exporter.sources.checkpoint_path import INDEX_SUFFIX, read_index
from tpuserve_exporter.sources.part_roles import Role, is_torch_optimizer, role_of
from tpuserve_exporter.terms.signature import Signature, TensorSpec
from tpuserve_exporter.terms.texts import first

_STORAGES = {
    "FloatStorage": "float32", "DoubleStorage": "float64", "HalfStorage": "float16", "BFloat16Storage": "bfloat16",
    "LongStorage": "int64", "IntStorage": "int32", "ShortStorage": "int16", "CharStorage": "int8",
    "ByteStorage": "uint8", "BoolStorage": "bool", "ComplexFloatStorage": "complex64",
    "ComplexDoubleStorage": "complex128", "Float8_e4m3fnStorage": "float8_e4m3fn", "Float8_e5m2Storage": "float8_e5m2",
}  # fmt: skip
# Names in files that torch.load(weights_only=True) reads.
_HARMLESS = frozenset({"torch.Size", "torch.device", "torch.storage.UntypedStorage", "collections.defaultdict"})
_SCRIPT = "/code/__torch__"
_MOST_NAMES = 6


@dataclass(frozen=True, slots=True)
class _Storage:
    dtype: str


@dataclass(frozen=True, slots=True)
class _Tensor:
    dtype: str
    shape: tuple[int, ...]


class _Inert:
    """Placeholder for any object that a pickle names. It takes any arguments and state, and does nothing."""

    def __new__(cls, *args: object, **kwargs: object) -> "_Inert":
        return super().__new__(cls)

    def __init__(self, *args: object, **kwargs: object) -> None:
        pass

    def __call__(self, *args: object, **kwargs: object) -> "_Inert":
        return _Inert()

    def __setstate__(self, state: object) -> None:
        pass

    def __setitem__(self, key: object, value: object) -> None:
        pass

    def append(self, value: object) -> None: ...

    def extend(self, values: object) -> None: ...


class _Reader(pickle.Unpickler):
    """An unpickler that imports nothing."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self.named: set[str] = set()

    def find_class(self, module: str, name: str) -> Any:  # noqa: ANN401 - as pickle has it
        full = f"{module}.{name}"
        if full == "collections.OrderedDict":
            return OrderedDict
        if full in ("torch._utils._rebuild_tensor_v2", "torch._utils._rebuild_tensor_v3"):
            return _rebuild_tensor
        if full in ("torch._utils._rebuild_parameter", "torch._tensor._rebuild_from_type_v2"):
            return _first_tensor
        if module.startswith("torch") and name in _STORAGES:
            return _Storage(_STORAGES[name])
        if full not in _HARMLESS and not (module == "torch" and name in _STORAGES.values()):
            self.named.add(full)
        return _Inert

    def persistent_load(self, pid: Any) -> Any:  # noqa: ANN401 - as pickle has it
        """Return the storage's type from `('storage', type, key, location, elements)`. Separate files have the data."""
        kind = pid[1] if isinstance(pid, tuple) and len(pid) > 1 else None
        return kind if isinstance(kind, _Storage) else _Inert()


def _rebuild_tensor(storage: object, offset: object, size: tuple[int, ...], *rest: object) -> object:
    return _Tensor(storage.dtype, tuple(size)) if isinstance(storage, _Storage) else _Inert()


def _first_tensor(*args: object) -> object:
    return next((one for one in args if isinstance(one, _Tensor)), _Inert())


def inspect_torch(path: Path) -> Contents:
    """Return the contents of a `.pt`, `.pth` or `.bin` file. Raises SourceUnreadable."""
    if not zipfile.is_zipfile(path):
        raise SourceUnreadable(
            f"{path.name} is damaged or in torch's format from before 1.6. Save it again with torch.save(state_dict, "
            "path)"
        )
    try:
        with zipfile.ZipFile(path) as archive:
            files = {part.filename: part.file_size for part in archive.infolist()}
            name = next((name for name in files if name.endswith("/data.pkl")), None)
            if name is None:
                raise SourceUnreadable(f"{path.name} contains no data.pkl, so that torch.save did not write it")
            reader = _Reader(io.BytesIO(archive.read(name)))
            loaded = reader.load()
    except SourceUnreadable:
        raise
    except Exception as error:  # a damaged pickle may raise anything
        raise SourceUnreadable(f"{path.name} is damaged: {type(error).__name__}: {reason_of(error)}") from error
    arrays = tuple(_list_arrays(loaded))
    script = any(_SCRIPT in name for name in files)
    kind = "TorchScript program" if script else "PyTorch file"
    run = f"reading it as a pickle imports and runs: {first(sorted(reader.named), _MOST_NAMES)}"
    notes = () if script or not reader.named else (run,)
    return Contents(kind=kind, name=path.name, facts=_progress(loaded), arrays=arrays, files=files, notes=notes)


def _progress(loaded: object) -> dict[str, str]:
    """Return the integers at the top, such as the epoch and the step."""
    items = loaded.items() if isinstance(loaded, Mapping) else ()
    numbers = {str(name): f"{one:,}" for name, one in items if isinstance(one, int) and not isinstance(one, bool)}
    return dict(list(numbers.items())[:_MOST_NAMES])


def _list_arrays(loaded: object, path: tuple[str, ...] = (), in_optimizer: bool = False) -> Iterator[StoredArray]:
    if isinstance(loaded, _Tensor):
        part = Role.OPTIMIZER if in_optimizer else role_of(path[:-1])
        yield StoredArray("/".join(path), loaded.dtype, loaded.shape, part)
    elif isinstance(loaded, Mapping):
        inner = in_optimizer or is_torch_optimizer(loaded)
        for key, value in loaded.items():
            yield from _list_arrays(value, (*path, str(key)), inner)
    elif isinstance(loaded, list | tuple):
        for index, value in enumerate(loaded):
            yield from _list_arrays(value, (*path, str(index)), in_optimizer)


_WEIGHTS = "/data/weights/model_weights_config.json"
_PROGRAM = "/models/model.json"
# torch._export.serde.schema.ScalarType, which starts at 1.
_DTYPES = (
    "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64", "complex32", "complex64",
    "complex128", "bool", "bfloat16",
)  # fmt: skip


def inspect_torch_program(path: Path) -> Contents:
    """Return the contents of a `.pt2` file. Raises SourceUnreadable."""
    try:
        with zipfile.ZipFile(path) as archive:
            files = {part.filename: part.file_size for part in archive.infolist()}
            weights, program = (_read(archive, files, ending) for ending in (_WEIGHTS, _PROGRAM))
        graph = program["graph_module"]["graph"]
        return Contents(
            kind="PyTorch program (torch.export)",
            name=path.name,
            signatures={"forward": _read_signature(program["graph_module"]["signature"], graph["tensor_values"])},
            arrays=tuple(_list_weights(weights["config"])),
            operations=Operations(_count(graph["nodes"]), {}, {}, {}),
            files=files,
        )
    except (OSError, ValueError, LookupError, TypeError, zipfile.BadZipFile) as error:
        raise SourceUnreadable(
            f"{path.name} is damaged or not written by torch.export.save: {type(error).__name__}: {reason_of(error)}"
        ) from error


def _read(archive: zipfile.ZipFile, files: Mapping[str, int], ending: str) -> Any:  # noqa: ANN401 - any JSON value
    name = next((name for name in files if name.endswith(ending)), None)
    if name is None:
        raise LookupError(f"{ending[1:]} is missing")
    return json.loads(archive.read(name))


def _count(nodes: list[Mapping[str, Any]]) -> dict[str, int]:
    return dict(Counter(str(node["target"]).removeprefix("torch.ops.") for node in nodes).most_common())


def _list_weights(config: Mapping[str, Any]) -> Iterator[StoredArray]:
    for name, one in config.items():
        spec = _spec(one["tensor_meta"])
        shape = None if spec.shape is None else tuple(-1 if dim is None else dim for dim in spec.shape)
        yield StoredArray(name, spec.dtype, shape)


def _spec(meta: Mapping[str, Any]) -> TensorSpec:
    """Return dtype and shape. A size that is an expression is a free dimension."""
    dims = tuple(size.get("as_int") for size in meta["sizes"])
    return TensorSpec(_DTYPES[meta["dtype"] - 1], dims)


def _read_signature(signature: Mapping[str, Any], values: Mapping[str, Any]) -> Signature:
    inputs = [one["user_input"]["arg"] for one in signature["input_specs"] if "user_input" in one]
    outputs = [one["user_output"]["arg"] for one in signature["output_specs"] if "user_output" in one]
    return Signature("forward", _named(inputs, values), _named(outputs, values))


def _named(arguments: list[Mapping[str, Any]], values: Mapping[str, Any]) -> dict[str, TensorSpec]:
    names = [one["as_tensor"]["name"] for one in arguments if "as_tensor" in one]
    return {name: _spec(values[name]) for name in names}


_SAFETENSORS_DTYPES = {
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "U16": "uint16", "I16": "int16", "U32": "uint32", "I32": "int32",
    "U64": "uint64", "I64": "int64", "F16": "float16", "BF16": "bfloat16", "F32": "float32", "F64": "float64",
    "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2",
}  # fmt: skip
# Places of a file's tensors in larger ones, of torch.distributed.checkpoint: a long text.
_SHARDING = "DCP_SHARDING_INFO"
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
        kind="safetensors", name=path.name,
        facts={str(name): str(value) for name, value in metadata.items() if name != _SHARDING}, arrays=arrays,
        files={path.name: path.stat().st_size}, problems=tuple(problems),
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
        return StoredArray(
            name, _SAFETENSORS_DTYPES.get(one["dtype"], str(one["dtype"]).lower()), tuple(map(int, one["shape"]))
        )
    except (KeyError, TypeError, ValueError) as error:
        raise SourceUnreadable(f"{path.name} is damaged: its header does not describe {name}") from error
