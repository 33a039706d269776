"""Moving averages of the weights in a Keras file, if the saved optimizer kept them (`use_ema`)."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tpuserve_exporter.sources.keras.archive import KerasArchive
from tpuserve_exporter.sources.keras.h5_variables import dtype_of, is_named, names_in, optimizer_state_names
from tpuserve_exporter.sources.variables.model_variables import ModelVariable
from tpuserve_exporter.sources.variables.object_graph import StoredVariable

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
