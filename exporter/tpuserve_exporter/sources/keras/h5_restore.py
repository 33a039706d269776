"""Restores the weights of a Keras file (HDF5) into a builder's model, and reports every variable of both.

The layout of Keras 3 and of the last Keras 2 counts layers by kind (`layers/dense_1/vars/0`). The older layout of `.h5`
files has the variables' training names (`dense_7/kernel:0`).
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tpuserve_exporter.errors import CheckpointMismatch, SourceUnreadable, reason_of
from tpuserve_exporter.models.layer_states import SavedLayers, lookup_of, walk_layers
from tpuserve_exporter.options.export_options import ModelOptions
from tpuserve_exporter.sources.keras.archive import KerasArchive, OpenArchive
from tpuserve_exporter.sources.keras.hdf5_values import dtype_of, read_tensor
from tpuserve_exporter.sources.keras.restoring import assign_values
from tpuserve_exporter.sources.keras.saved_layers import SavedKerasLayers
from tpuserve_exporter.sources.variables.averages import OPTIMIZER
from tpuserve_exporter.sources.variables.matching import (
    Matching,
    ModelVariable,
    Way,
    model_variables,
    pair_by_count,
    pair_by_name,
)
from tpuserve_exporter.sources.variables.object_graph import StoredVariable
from tpuserve_exporter.sources.variables.object_restore import describe_averages
from tpuserve_exporter.terms.provenance import TRAINED, Origin, OriginKind
from tpuserve_exporter.terms.restore_report import Entry, RestoreReport

if TYPE_CHECKING:
    import h5py
    import keras
    import tensorflow as tf


def find_h5_averages(
    file: "h5py.File", archive: KerasArchive, model: "keras.Model", weights: Sequence[ModelVariable]
) -> dict[int, StoredVariable]:
    """Return the average of each variable that has one, by the variable's index."""
    if not archive.optimizer.get("use_ema"):
        return {}
    datasets = _named(file, model, weights) if is_named(file) else _in_order(file, archive, model, weights)
    return {
        index: StoredVariable(
            -1 - index, f"average of {weights[index].name}", one.name, dtype_of(one), tuple(one.shape)
        )
        for index, one in datasets.items()
        if tuple(one.shape) == weights[index].shape
    }


def may_hold_averages(file: "h5py.File", archive: KerasArchive) -> bool:
    """Return whether the file has optimizer state without the optimizer's settings, as files of only weights do."""
    return not archive.optimizer and bool(optimizer_state_names(file))


def _in_order(
    file: "h5py.File", archive: KerasArchive, model: "keras.Model", weights: Sequence[ModelVariable]
) -> "dict[int, h5py.Dataset]":
    """Return the dataset of each trainable variable's average, by the variable's index.

    The step count comes first, then in Keras 3 the learning rate, unless a schedule sets it.
    """
    state = file.get("optimizer/vars")
    if state is None or int(state["0"][()]) == 0:  # averages are zero before the first step
        return {}
    first = 1 if archive.is_keras_2 or isinstance(archive.optimizer.get("learning_rate"), Mapping) else 2
    keys = {index: str(first + place) for place, index in enumerate(_trained(model, weights))}
    return {index: state[key] for index, key in keys.items() if key in state}


def _trained(model: "keras.Model", weights: Sequence[ModelVariable]) -> list[int]:
    """Return the indices of the trainable variables, in the optimizer's order."""
    index_of = {id(one.node): index for index, one in enumerate(weights)}
    return [index_of[id(one)] for one in model.trainable_variables]


def _named(file: "h5py.File", model: "keras.Model", weights: Sequence[ModelVariable]) -> "dict[int, h5py.Dataset]":
    """Return the averages that have names. Keras 3 names that of `hidden/kernel` `adam/hidden_kernel_average`.

    Keras 2 writes `Adam/average/hidden/kernel:0`, in the order of the trainable variables. Only the order counts,
    because names may differ.
    """
    group = file.get("optimizer_weights")
    names = [] if group is None else names_in(group, "weight_names")
    if any(_is_count(name) and int(group[name][()]) == 0 for name in names):
        return {}
    by_end = {name.partition("/")[2]: name for name in names}
    wanted = {index: by_end.get(f"{one.name.replace('/', '_')}_average") for index, one in enumerate(weights)}
    old, trained = [name for name in names if "/average/" in name], _trained(model, weights)
    if [group[name].shape for name in old] == [weights[index].shape for index in trained]:
        wanted |= dict(zip(trained, old, strict=True))
    return {index: group[name] for index, name in wanted.items() if name is not None}


def _is_count(name: str) -> bool:
    """Return whether `name` is the optimizer's step count. Averages have no values before the first step."""
    return name.removesuffix(":0").rpartition("/")[2] == "iteration"


_AS_TRAINED = "used the weights as trained: {} does not show whether its optimizer kept averages (--weights raw)"


class H5Model:
    """The model in an open archive."""

    bookkeeping: tuple[str, ...] = ()

    def __init__(self, opened: OpenArchive) -> None:
        self.name = opened.archive.path.name
        self.layers: SavedLayers = SavedKerasLayers(opened)
        self.optimizer_state = tuple(optimizer_state_names(opened.weights))
        self._archive = opened.archive
        self._file = opened.weights

    def variables(self, states: set[str]) -> list[StoredVariable]:
        return [one for one in read_variables(self._file) if one.name not in states]

    def match(
        self, model: "keras.Model", weights: Sequence[ModelVariable], stored: Sequence[StoredVariable]
    ) -> Matching:
        return match_h5(model, weights, stored, is_named(self._file))

    def choose_averages(
        self, model: "keras.Model", weights: Sequence[ModelVariable], matching: Matching, options: ModelOptions
    ) -> tuple[Mapping[int, StoredVariable], tuple[str, ...]]:
        averages = choose_averages(self._archive, self._file, model, weights, options)
        unread = options.weights == "auto" and may_hold_averages(self._file, self._archive)
        return averages, (_AS_TRAINED.format(self.name),) if unread else ()

    def read(self, stored: StoredVariable) -> "tf.Tensor":
        try:
            return read_tensor(self._file[stored.key], stored.dtype)
        except OSError as error:
            raise SourceUnreadable(f"cannot read {self.name}: {reason_of(error)}") from error


def restore_h5_averages(opened: OpenArchive, model: "keras.Model", options: ModelOptions) -> RestoreReport | None:
    """Replace the weights of a model that Keras read by their moving averages, if requested and present.

    Return the report of all weights, or None if it took no average. Raises CheckpointMismatch if --weights requires
    averages that the file does not have.
    """
    weights = model_variables(model)
    averages = choose_averages(opened.archive, opened.weights, model, weights, options)
    assign_values(H5Model(opened), weights, averages)
    if not averages:
        return None
    average = Origin(OriginKind.AVERAGE, OPTIMIZER)
    entries = [
        Entry.compare(one.name, one.spec, one.spec, average if index in averages else TRAINED)
        for index, one in enumerate(weights)
    ]
    notes = (describe_averages(len(averages), len(weights), options.weights),)
    return RestoreReport(tuple(entries), notes=notes)


def choose_averages(
    archive: KerasArchive,
    file: "h5py.File",
    model: "keras.Model",
    weights: Sequence[ModelVariable],
    options: ModelOptions,
) -> dict[int, StoredVariable]:
    """Return the averages to take, by the variable's index. Raises CheckpointMismatch if required ones are missing."""
    if options.weights == "raw":
        return {}
    averages = find_h5_averages(file, archive, model, weights)
    if options.weights == "ema" and not averages and may_hold_averages(file, archive):
        raise CheckpointMismatch(
            f"--weights ema: {archive.path.name} does not show what its optimizer kept, so that its averages cannot "
            "be read. Export the .keras file or a checkpoint of the run, or use --weights raw"
        )
    if options.weights == "ema" and not averages:
        raise CheckpointMismatch(
            f"--weights ema: {archive.path.name} has no moving averages (of an optimizer with use_ema). Use "
            "--weights raw"
        )
    return averages


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
        return Matching.of(pairs, stored, Way.NAME)
    candidates = [
        Matching.of(pair_by_name(weights, stored), stored, Way.NAME),
        Matching.of(_pair_in_order(weights, stored), stored, Way.POSITION),
        Matching.of(pair_by_count(weights, stored), stored, Way.COUNT),
    ]
    return max(candidates, key=lambda one: one.fit(weights))


def _pair_in_order(weights: Sequence[ModelVariable], stored: Sequence[StoredVariable]) -> dict[int, StoredVariable]:
    """Pair variables in order, as Keras reads this layout, if both sides have the same shapes. Ignore names."""
    if [one.shape for one in weights] != [one.shape for one in stored]:
        return {}
    return dict(enumerate(stored))


def _model_paths(model: "keras.Model", weights: Sequence[ModelVariable]) -> dict[int, str]:
    """Return the path under which Keras would save each variable of the model, by the variable's index."""
    index_of = {id(one.node): index for index, one in enumerate(weights)}
    paths = dict[int, str]()
    for path, layer in walk_layers(model):
        # A lookup without terms cannot save its IDF weights, which are no variables of the model.
        if hasattr(layer, "save_own_variables") and lookup_of(layer) is None:
            own = dict[str, Any]()
            layer.save_own_variables(own)
            for name, value in own.items():
                if id(value) in index_of:
                    paths.setdefault(index_of[id(value)], f"{path}/vars/{name}".removeprefix("/"))
    return paths


def names_in(group: "h5py.Group", attribute: str) -> list[str]:
    """Return a list that Keras wrote as an attribute, possibly in several parts, or an empty list."""
    from keras.src.legacy.saving import legacy_h5_format

    return [str(name) for name in legacy_h5_format.load_attributes_from_hdf5_group(group, attribute)]
