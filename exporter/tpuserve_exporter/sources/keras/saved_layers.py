"""Content of a Keras file for each layer, besides variables: files, configuration and arrays, by Keras' path."""

import re
import zipfile
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from tpuserve_exporter.sources.keras.archive import KerasArchive, reading
from tpuserve_exporter.terms.signature import Array

if TYPE_CHECKING:
    import h5py

_ASSETS = "assets/"


class SavedKerasLayers:
    """The layers of an archive, whose HDF5 file is open."""

    def __init__(self, archive: KerasArchive, weights: "h5py.File") -> None:
        """List the files. Raises SourceUnreadable."""
        self.of_keras_2 = archive.is_keras_2
        self._archive = archive
        self._weights = weights
        self._configs = dict(list_configs(archive.config))
        self._names: list[str] = []
        if archive.is_zip:
            with reading(archive.path), zipfile.ZipFile(archive.path) as file:
                self._names = [name for name in file.namelist() if name.startswith(_ASSETS) and name[-1] != "/"]

    def files(self, path: str) -> Mapping[str, bytes]:
        folder = f"{_ASSETS}{path}/" if path else _ASSETS
        names = [name for name in self._names if name.rpartition("/")[0] + "/" == folder]
        if not names:
            return {}
        with reading(self._archive.path), zipfile.ZipFile(self._archive.path) as file:
            return {name.removeprefix(folder): file.read(name) for name in names}

    def config(self, path: str) -> Mapping[str, Any]:
        return self._configs.get(path, {})

    def arrays(self, path: str) -> Mapping[str, Array]:
        group = self._weights.get(f"{path}/vars".removeprefix("/"), {})
        return {name: np.asarray(one) for name, one in group.items()}


def list_configs(config: Mapping[str, Any], path: str = "layers") -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield path and configuration of the layers of a Functional or Sequential model, at any depth."""
    inner = config.get("config")
    layers = inner.get("layers") if isinstance(inner, Mapping) else None
    used: dict[str, int] = {}
    for layer in layers if isinstance(layers, list) else ():
        if isinstance(layer, Mapping) and isinstance(layer.get("config"), Mapping):
            kind = _snake_case(str(layer.get("class_name")))
            number = used[kind] = used.get(kind, -1) + 1
            own = f"{path}/{kind}_{number}" if number else f"{path}/{kind}"
            yield own, layer["config"]
            yield from list_configs(layer, f"{own}/layers")


def _snake_case(name: str) -> str:
    """Return the name by which Keras counts layers of a class (`to_snake_case` of keras.src.utils.naming)."""
    name = re.sub(r"(.)([A-Z][a-z]+)", r"\1_\2", re.sub(r"\W+", "", name))
    return re.sub(r"([a-z])([A-Z])", r"\1_\2", name).lower()
