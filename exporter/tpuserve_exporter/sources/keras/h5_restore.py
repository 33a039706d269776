"""Restores the weights of a Keras file (HDF5) into a builder's model, and reports every variable of both.

The layout of Keras 3 and of the last Keras 2 counts layers by kind (`layers/dense_1/vars/0`). The older layout of `.h5`
files has the variables' training names (`dense_7/kernel:0`).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tpuserve_exporter.errors import CheckpointMismatch, SourceUnreadable, reason_of
from tpuserve_exporter.models.layer_states import list_states, lookup_of, walk_layers
from tpuserve_exporter.models.naming import build_weights
from tpuserve_exporter.options.export_options import ModelOptions, idle_renames
from tpuserve_exporter.sources.keras.archive import KerasArchive
from tpuserve_exporter.sources.keras.saved_layers import SavedKerasLayers
from tpuserve_exporter.sources.variables.averages import OPTIMIZER
from tpuserve_exporter.sources.variables.matching import (
    Matching,
    ModelVariable,
    Way,
    compare,
    model_variables,
    pair_by_count,
    pair_by_name,
)
from tpuserve_exporter.sources.variables.object_graph import StoredVariable, renamed
from tpuserve_exporter.sources.variables.object_restore import describe_averages, notes_on
from tpuserve_exporter.sources.variables.state_matching import (
    compare_states,
    describe_missing,
    fill_states,
    missing_tables,
)
from tpuserve_exporter.terms.provenance import TRAINED, Origin, OriginKind
from tpuserve_exporter.terms.restore_report import Entry, RestoreReport, allow
from tpuserve_exporter.terms.signature import Array

if TYPE_CHECKING:
    import h5py
    import keras


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


def restore_h5(archive: KerasArchive, model: "keras.Model", options: ModelOptions) -> RestoreReport:
    """Build the weights of `model`, and assign those in the file, one by one.

    Raises SourceUnreadable, OptionConflict, or CheckpointMismatch with the report before it assigns any value.
    """
    with archive.open_weights() as file:
        saved = SavedKerasLayers(archive, file)
        fill_states(model, saved)
        build_weights(model, options)
        fill_states(model, saved, built=True)
        beside = _list_state_paths(model, saved)
        stored, weights = [one for one in read_variables(file) if one.name not in beside], model_variables(model)
        idle = idle_renames([one.name for one in stored], options.renames)
        stored = list(renamed(dict(enumerate(stored)), options.renames).values())
        matching = match_h5(model, weights, stored, is_named(file))
        averages = choose_averages(archive, file, model, weights, options)
        matching = replace(matching, averages={index: averages[index] for index in averages if index in matching.pairs})
        unread = options.weights == "auto" and may_hold_averages(file, archive)
        states = [*compare_states(model, saved), *missing_tables(model)]
        entries = allow([*compare(weights, matching), *states], options.allow_missing, options.allow_unused)
        notes = (
            *describe_missing(states, archive.path.name),
            *(f"--rename {one} changes no name" for one in idle),
            *notes_on(matching, entries, options),
        )
        notes += (_AS_TRAINED.format(archive.path.name),) if unread else ()
        state = tuple(optimizer_state_names(file))
        report = RestoreReport(entries, optimizer_state=state, notes=notes)
        if report.problems:
            raise CheckpointMismatch(
                report.refusal(f"{archive.path.name} does not fit the model that {options.builder} builds"),
                restore=report,
            )
        assign_values(archive, file, weights, matching.taken)
    return report


def _list_state_paths(model: "keras.Model", saved: SavedKerasLayers) -> set[str]:
    """Return the paths of arrays that hold states of layers instead of variables."""
    paths = {f"{one.path}/vars/{key}" for one in list_states(model) for key in one.keys(saved)}
    # A TextVectorization saves the weights of the lookup in it twice.
    return paths | {path.replace("/vars/", "/_lookup_layer/vars/") for path in paths}


def restore_h5_averages(archive: KerasArchive, model: "keras.Model", options: ModelOptions) -> RestoreReport | None:
    """Replace the weights of a model that Keras read by their moving averages, if requested and present.

    Return the report of all weights, or None if it took no average. Raises CheckpointMismatch if --weights requires
    averages that the file does not have.
    """
    with archive.open_weights() as file:
        weights = model_variables(model)
        averages = choose_averages(archive, file, model, weights, options)
        assign_values(archive, file, weights, averages)
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


def assign_values(
    archive: KerasArchive,
    file: "h5py.File",
    weights: Sequence[ModelVariable],
    taken: Mapping[int, StoredVariable],
) -> None:
    """Read one value after another into its variable, in the variable's dtype. Raises SourceUnreadable."""
    for index, stored in taken.items():
        variable = weights[index].variable
        try:
            value = read_value(file, stored)
        except OSError as error:
            raise SourceUnreadable(f"cannot read {archive.path.name}: {reason_of(error)}") from error
        variable.assign(value.astype(variable.dtype.as_numpy_dtype, copy=False), read_value=False)


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
