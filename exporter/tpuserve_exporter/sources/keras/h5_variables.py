"""The variables of an HDF5 file from Keras, in either layout, and their match with a model's variables.

The layout of Keras 3 and of the last Keras 2 counts layers by kind (`layers/dense_1/vars/0`). The older layout of `.h5`
files has the variables' training names (`dense_7/kernel:0`).
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tpuserve_exporter.sources.variables.matching import Matching, Way, pair_by_count, pair_by_name
from tpuserve_exporter.sources.variables.model_variables import ModelVariable
from tpuserve_exporter.sources.variables.object_graph import StoredVariable
from tpuserve_exporter.terms.signature import Array

if TYPE_CHECKING:
    import h5py
    import keras

# Parts of a path that contain no weights of the model.
_BOOKKEEPING = frozenset(
    {"metrics", "_metrics", "compile_metrics", "_loss_tracker", "seed_generator", "_seed_generator"}
)
_OPTIMIZER = "optimizer"


def is_named(file: "h5py.File") -> bool:
    """Return whether the file has the older layout, with names."""
    return "model_weights" in file or bool(names_in(file, "layer_names"))


def read_variables(file: "h5py.File") -> list[StoredVariable]:
    """Return the weights in `file`, in its order, without optimizer state."""
    found = _read_named(file.get("model_weights", file)) if is_named(file) else _read_paths(file)
    return [
        StoredVariable(index, name, one.name, dtype_of(one), tuple(one.shape))
        for index, (name, one) in enumerate(found)
    ]


def _read_named(group: "h5py.Group") -> "Iterator[tuple[str, h5py.Dataset]]":
    for layer in [*names_in(group, "layer_names"), "top_level_model_weights"]:
        for name in names_in(group[layer], "weight_names") if layer in group else ():
            yield name.removesuffix(":0"), group[layer][name]


def _read_paths(file: "h5py.File") -> "Iterator[tuple[str, h5py.Dataset]]":
    import h5py

    found: list[h5py.Dataset] = []
    file.visititems(lambda _, item: found.append(item) if isinstance(item, h5py.Dataset) else None)
    for dataset in found:
        path = dataset.name.removeprefix("/")
        parts = set(path.split("/"))
        if not parts & _BOOKKEEPING and not path.startswith(f"{_OPTIMIZER}/"):
            yield path, dataset


def optimizer_state_names(file: "h5py.File") -> list[str]:
    """Return the names of an optimizer's variables."""
    if is_named(file):
        group = file.get("optimizer_weights")
        return [] if group is None else names_in(group, "weight_names")
    group = file.get(f"{_OPTIMIZER}/vars")
    return [] if group is None else [f"{_OPTIMIZER}/vars/{name}" for name in group]


def match_h5(
    model: "keras.Model", weights: Sequence[ModelVariable], stored: Sequence[StoredVariable], named: bool
) -> Matching:
    """Match by path, which Keras derives from the model. In the older layout, match by name, by count, or in order."""
    if not named:
        paths = {one.name: one for one in stored}
        pairs = {index: paths[path] for index, path in _model_paths(model, weights).items() if path in paths}
        return _matching(pairs, stored, Way.NAME)
    candidates = [
        _matching(pair_by_name(weights, stored), stored, Way.NAME),
        _matching(_pair_in_order(weights, stored), stored, Way.POSITION),
        _matching(pair_by_count(weights, stored), stored, Way.COUNT),
    ]
    return max(candidates, key=lambda one: one.fit(weights))


def _matching(pairs: dict[int, StoredVariable], stored: Sequence[StoredVariable], way: Way) -> Matching:
    used = {one.node for one in pairs.values()}
    return Matching("", pairs, [one for one in stored if one.node not in used], way)


def _pair_in_order(weights: Sequence[ModelVariable], stored: Sequence[StoredVariable]) -> dict[int, StoredVariable]:
    """Pair variables in order, as Keras reads this layout, if both sides have the same shapes. Ignore names."""
    if [one.shape for one in weights] != [one.shape for one in stored]:
        return {}
    return dict(enumerate(stored))


def _model_paths(model: "keras.Model", weights: Sequence[ModelVariable]) -> dict[int, str]:
    """Return the path under which Keras would save each variable of the model, by the variable's index.

    Keras' own walk over the model gives the paths. The store below only notes them and writes nothing.
    """
    from keras.src.saving import saving_lib

    class Notebook(saving_lib.H5IOStore):  # type: ignore[misc]  # keras is untyped
        def __init__(self) -> None:
            self.noted: dict[str, dict[str, Any]] = {}

        def __bool__(self) -> bool:
            return True

        def make(self, path: str, metadata: object = None) -> dict[str, Any]:
            return self.noted.setdefault(f"{path}/vars".removeprefix("/"), {})

    notebook = Notebook()
    saving_lib._save_state(model, notebook, None, inner_path="", visited_saveables=set())
    index_of = {id(one.node): index for index, one in enumerate(weights)}
    return {
        index_of[id(value)]: f"{path}/{name}"
        for path, values in notebook.noted.items()
        for name, value in values.items()
        if id(value) in index_of
    }


def dtype_of(dataset: "h5py.Dataset") -> str:
    """Return the dtype. HDF5 has no bfloat16, so Keras stores the name in an attribute."""
    return str(dataset.attrs.get("dtype", dataset.dtype.name))


def read_value(file: "h5py.File", stored: StoredVariable) -> Array:
    """Return the value in the stored dtype. Raises OSError if the file is damaged."""
    import tensorflow as tf

    return np.array(file[stored.key], dtype=tf.dtypes.as_dtype(stored.dtype).as_numpy_dtype)


def names_in(group: "h5py.Group", attribute: str) -> list[str]:
    """Return a list that Keras wrote as an attribute, possibly in several parts, or an empty list."""
    from keras.src.legacy.saving import legacy_h5_format

    return [str(name) for name in legacy_h5_format.load_attributes_from_hdf5_group(group, attribute)]
