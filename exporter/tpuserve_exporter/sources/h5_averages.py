"""Moving averages of the weights in a Keras file, where the optimizer that it was saved with kept them (`use_ema`)."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tpuserve_exporter.sources.h5_variables import dtype_of, is_named, names_in
from tpuserve_exporter.sources.model_variables import ModelVariable
from tpuserve_exporter.sources.object_graph import StoredVariable

if TYPE_CHECKING:
    import h5py
    import keras


def find_h5_averages(
    file: "h5py.File", optimizer: Mapping[str, Any], model: "keras.Model", weights: Sequence[ModelVariable]
) -> dict[int, StoredVariable]:
    """The average of each variable that has one, by its index. `optimizer` is the configuration in the file."""
    if not optimizer.get("use_ema"):
        return {}
    datasets = _named(file, weights) if is_named(file) else _in_order(file, optimizer, model, weights)
    return {
        index: StoredVariable(
            -1 - index, f"average of {weights[index].name}", one.name, dtype_of(one), tuple(one.shape)
        )
        for index, one in datasets.items()
        if tuple(one.shape) == weights[index].shape
    }


def _in_order(
    file: "h5py.File", optimizer: Mapping[str, Any], model: "keras.Model", weights: Sequence[ModelVariable]
) -> "dict[int, h5py.Dataset]":
    """After the count of steps and, unless a schedule sets it, the learning rate: one for each trainable variable."""
    state = file.get("optimizer/vars")
    if state is None or int(state["0"][()]) == 0:  # before the first step Keras has only zeros there
        return {}
    first = 1 if isinstance(optimizer.get("learning_rate"), Mapping) else 2
    index_of = {id(one.node): index for index, one in enumerate(weights)}
    keys = {index_of[id(one)]: str(first + place) for place, one in enumerate(model.trainable_variables)}
    return {index: state[key] for index, key in keys.items() if key in state}


def _named(file: "h5py.File", weights: Sequence[ModelVariable]) -> "dict[int, h5py.Dataset]":
    """`adam/hidden_kernel_average` is that of `hidden/kernel`."""
    group = file.get("optimizer_weights")
    names = [] if group is None else names_in(group, "weight_names")
    if any(name.endswith("/iteration") and int(group[name][()]) == 0 for name in names):
        return {}
    by_end = {name.partition("/")[2]: name for name in names}
    wanted = {index: by_end.get(f"{one.name.replace('/', '_')}_average") for index, one in enumerate(weights)}
    return {index: group[name] for index, name in wanted.items() if name is not None}
