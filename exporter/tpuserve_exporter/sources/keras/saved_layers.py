"""Content of a Keras file for each layer, besides variables: files, configuration and arrays, by Keras' path."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from tpuserve_exporter.models.layer_states import SavedLayers
from tpuserve_exporter.sources.keras.archive import OpenArchive, reading
from tpuserve_exporter.sources.keras.unpacking import ASSETS
from tpuserve_exporter.terms.signature import Array


class SavedKerasLayers(SavedLayers):
    """The layers of an open archive."""

    def __init__(self, opened: OpenArchive) -> None:
        self.of_keras_2 = opened.archive.is_keras_2
        self._opened = opened
        self._configs = dict(list_configs(opened.archive.config))

    def files(self, path: str) -> Mapping[str, bytes]:
        if self._opened.folder is None:
            return {}
        folder = self._opened.folder / ASSETS / path
        with reading(self._opened.archive.path):
            found = sorted(folder.iterdir()) if folder.is_dir() else []
            return {one.name: one.read_bytes() for one in found if one.is_file()}

    def config(self, path: str) -> Mapping[str, Any]:
        return self._configs.get(path, {})

    def arrays(self, path: str) -> Mapping[str, Array]:
        return {name: np.asarray(one) for name, one in self._group(path).items()}

    def name(self, path: str) -> str | None:
        return getattr(self._group(path), "attrs", {}).get("name")

    def _group(self, path: str) -> Any:  # noqa: ANN401 - a group of HDF5, or an empty dictionary
        return self._opened.weights.get(f"{path}/vars".removeprefix("/"), {})


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
