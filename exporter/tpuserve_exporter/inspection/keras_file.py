"""Reads Keras files as data, without Keras or TensorFlow. It builds and runs nothing from the file."""

import json
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from tpuserve_exporter.errors import SourceUnreadable, reason_of
from tpuserve_exporter.inspection.contents import Contents, StoredArray
from tpuserve_exporter.sources.keras.archive import read_archive
from tpuserve_exporter.sources.keras.unsafe_content import find_unsafe_config

_WEIGHTS = "model.weights.h5"


def inspect_keras(path: Path) -> Contents:
    """Return the contents of a `.keras`, `.weights.h5`, `.weights.json` or `.h5` file. Raises SourceUnreadable."""
    try:
        if path.suffix == ".json":
            return _inspect_shards(path)
        return _inspect_archive(path) if zipfile.is_zipfile(path) else _inspect_hdf5(path)
    except (OSError, ValueError, KeyError, RuntimeError, zipfile.BadZipFile) as error:
        raise SourceUnreadable(f"{path.name} is damaged or not a Keras file: {_reason(error, path)}") from error


def _inspect_archive(path: Path) -> Contents:
    with zipfile.ZipFile(path) as archive:
        config = json.loads(archive.read("config.json"))
        version = str(json.loads(archive.read("metadata.json")).get("keras_version"))
        with archive.open(_WEIGHTS) as weights:
            arrays = tuple(_list_arrays(weights))
        files = {part.filename: part.file_size for part in archive.infolist()}
    return Contents(
        kind="Keras model",
        name=path.name,
        facts=dict(_facts(config, version)),
        arrays=arrays,
        files=files,
        notes=tuple(_notes(config, version)),
    )


def _inspect_shards(path: Path) -> Contents:
    shards = read_archive(path).shards
    found = [_inspect_hdf5(shard) for shard in shards]
    arrays = tuple(array for one in found for array in one.arrays)
    files = {path.name: path.stat().st_size} | {name: size for one in found for name, size in one.files.items()}
    return Contents(kind="Keras weights", name=path.name, arrays=arrays, files=files)


def _inspect_hdf5(path: Path) -> Contents:
    import h5py

    with path.open("rb") as file:
        arrays = tuple(_list_arrays(file))
    with h5py.File(path) as weights:
        config = json.loads(weights.attrs["model_config"]) if "model_config" in weights.attrs else None
        version = weights.attrs.get("keras_version")
    facts = {} if config is None else dict(_facts(config, version))
    kind = "Keras weights" if config is None else "Keras model (HDF5)"
    notes = () if config is None else tuple(_notes(config, str(version)))
    return Contents(
        kind=kind, name=path.name, facts=facts, arrays=arrays, files={path.name: path.stat().st_size}, notes=notes
    )


def _list_arrays(file: "IO[bytes]") -> Iterator[StoredArray]:
    """Yield datasets by path, because Keras 3 stores no variable names in a weights file."""
    import h5py

    found: list[StoredArray] = []

    def visit(name: str, item: object) -> None:
        if isinstance(item, h5py.Dataset):
            part = "optimizer" if name.startswith(("optimizer", "optimizer_weights")) else "model"
            dtype = "string" if item.dtype.kind in "OS" else item.dtype.name
            found.append(StoredArray(name, dtype, tuple(item.shape), part))

    with h5py.File(file) as weights:
        weights.visititems(visit)
    yield from found


def _facts(config: Mapping[str, Any], version: str | None) -> Iterator[tuple[str, str]]:
    yield "class", str(config.get("registered_name") or config.get("class_name"))
    if version:
        yield "written by", f"Keras {version}"
    inner = config.get("config")
    layers = inner.get("layers", []) if isinstance(inner, dict) else []
    if layers:
        yield "layers", str(len(layers))
    for layer in layers:
        if layer.get("class_name") == "InputLayer":
            described = layer["config"]
            dims = ", ".join("?" if dim is None else str(dim) for dim in described.get("batch_shape") or ["?"])
            yield f"input {described.get('name')}", f"{described.get('dtype') or 'float32'}[{dims}]"


def _notes(config: object, version: str) -> Iterator[str]:
    """Yield notes on what reading the file as a model requires."""
    classes = sorted(_custom_classes(config))
    if found := sorted(set(find_unsafe_config(config, keras_2=version.startswith("2.")))):
        yield f"reading the file as a model runs code from it or reads other files: {', '.join(found)}"
    if classes:
        yield f"reading it needs your classes {', '.join(classes)}"


def _custom_classes(config: object) -> Iterator[str]:
    if isinstance(config, list):
        for one in config:
            yield from _custom_classes(one)
    if isinstance(config, dict):
        module = config.get("module") or ""
        name = config.get("registered_name")
        if isinstance(name, str) and "class_name" in config and not str(module).startswith("keras") and ">" in name:
            yield name
        for one in config.values():
            yield from _custom_classes(one)


def _reason(error: Exception, path: Path) -> str:
    reason = f"{error.args[0]!r} is missing" if isinstance(error, KeyError) and error.args else reason_of(error)
    return reason.replace(f"{path.parent}/", "")
