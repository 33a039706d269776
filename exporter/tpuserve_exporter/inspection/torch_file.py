"""Reads files of torch.save without torch and without running code from the pickle.

A pickle is a program. Every name in it becomes an object that does nothing, except those that describe tensors. The
other names show which code a normal reader would run.
"""

import io
import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tpuserve_exporter.errors import SourceUnreadable, reason_of
from tpuserve_exporter.inspection.contents import Contents, StoredArray

_STORAGES = {
    "FloatStorage": "float32", "DoubleStorage": "float64", "HalfStorage": "float16", "BFloat16Storage": "bfloat16",
    "LongStorage": "int64", "IntStorage": "int32", "ShortStorage": "int16", "CharStorage": "int8",
    "ByteStorage": "uint8", "BoolStorage": "bool", "ComplexFloatStorage": "complex64",
    "ComplexDoubleStorage": "complex128", "Float8_e4m3fnStorage": "float8_e4m3fn", "Float8_e5m2Storage": "float8_e5m2",
}  # fmt: skip
# Names in files that torch.load(weights_only=True) reads.
_HARMLESS = frozenset({"torch.Size", "torch.device", "torch.storage.UntypedStorage", "collections.defaultdict"})
_OPTIMIZER = ("optimizer", "optim", "opt_state")
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
    notes = () if script or not reader.named else (_warn(sorted(reader.named)),)
    return Contents(kind=kind, name=path.name, arrays=arrays, files=files, notes=notes)


def _warn(named: list[str]) -> str:
    more = f" and {len(named) - _MOST_NAMES} more" if len(named) > _MOST_NAMES else ""
    return f"reading it as a pickle imports and runs: {', '.join(named[:_MOST_NAMES])}{more}"


def _list_arrays(loaded: object, path: tuple[str, ...] = ()) -> Iterator[StoredArray]:
    if isinstance(loaded, _Tensor):
        part = "optimizer" if path and path[0] in _OPTIMIZER else "model"
        yield StoredArray("/".join(path), loaded.dtype, loaded.shape, part)
    elif isinstance(loaded, Mapping):
        for key, value in loaded.items():
            yield from _list_arrays(value, (*path, str(key)))
    elif isinstance(loaded, list | tuple):
        for index, value in enumerate(loaded):
            yield from _list_arrays(value, (*path, str(index)))
