"""Moving averages of the weights in a Keras file, where the optimizer that it was saved with kept them (`use_ema`)."""

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
    """The average of each variable that has one, by its index."""
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
    """Whether there is an optimizer's state that nothing explains: a file of weights alone has no settings."""
    return not archive.optimizer and bool(optimizer_state_names(file))


def _in_order(
    file: "h5py.File", archive: KerasArchive, model: "keras.Model", weights: Sequence[ModelVariable]
) -> "dict[int, h5py.Dataset]":
    """One for each trainable variable, after the count of steps and, in Keras 3 unless a schedule sets it, the rate."""
    state = file.get("optimizer/vars")
    if state is None or int(state["0"][()]) == 0:  # before the first step Keras has only zeros there
        return {}
    first = 1 if archive.is_keras_2 or isinstance(archive.optimizer.get("learning_rate"), Mapping) else 2
    keys = {index: str(first + place) for place, index in enumerate(_trained(model, weights))}
    return {index: state[key] for index, key in keys.items() if key in state}


def _trained(model: "keras.Model", weights: Sequence[ModelVariable]) -> list[int]:
    """The trainable variables' indices, in the order that optimizers know them in."""
    index_of = {id(one.node): index for index, one in enumerate(weights)}
    return [index_of[id(one)] for one in model.trainable_variables]


def _named(file: "h5py.File", model: "keras.Model", weights: Sequence[ModelVariable]) -> "dict[int, h5py.Dataset]":
    """Of `hidden/kernel`, Keras 3 calls it `adam/hidden_kernel_average`.

    Keras 2 says `Adam/average/hidden/kernel:0`, in the trainable variables' order, which counts: names may differ.
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
    """Of the optimizer's steps, before the first of which an average is none."""
    return name.removesuffix(":0").rpartition("/")[2] == "iteration"
