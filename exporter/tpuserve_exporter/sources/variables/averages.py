"""Averages of weights in an object checkpoint: their places, and the evidence that they are averages of the weights."""

import math
from collections.abc import Iterator, Mapping

from tpuserve_exporter.sources.nearness import check_near, choose_compared, measure
from tpuserve_exporter.sources.part_roles import Role, role_of
from tpuserve_exporter.sources.variables.object_graph import ObjectGraph, StoredVariable

_SLOT = "average"
# The name in reports for averages without a separate model: Keras' use_ema, slots named `average`.
OPTIMIZER = "optimizer"
_TRAINED, _AVERAGES, _COUNT = "_trainable_variables", "_model_variables_moving_average", "_iterations"


def is_averaged_model(name: str) -> bool:
    """Return whether `name`, as in tf.train.Checkpoint(model=..., ema=...), suggests averages of another model."""
    return role_of([name]) is Role.AVERAGE


def find_averages(graph: ObjectGraph) -> dict[int, StoredVariable]:
    """Return the moving average of each variable that has one, by the variable's number.

    Averages are in a Keras optimizer with `use_ema`, or in a slot named `average` (Model Garden, TensorFlow Addons).
    """
    return dict(_kept_in_slots(graph)) | dict(_kept_by_optimizers(graph))


def _kept_in_slots(graph: ObjectGraph) -> Iterator[tuple[int, StoredVariable]]:
    for slot, (original, name) in graph.slots.items():
        if name == _SLOT and slot in graph.variables:
            yield original, graph.variables[slot]


def _kept_by_optimizers(graph: ObjectGraph) -> Iterator[tuple[int, StoredVariable]]:
    for optimizer in graph.children.values():
        if _AVERAGES in optimizer and not _is_unused(optimizer, graph):
            averages = graph.children[optimizer[_AVERAGES]]
            yield from _by_index(averages, graph.children.get(optimizer.get(_TRAINED, -1), {}), graph)
            yield from _by_name(averages, graph)


def _is_unused(optimizer: dict[str, int], graph: ObjectGraph) -> bool:
    """Return whether the optimizer took no step yet. Keras 3 averages are zero until then."""
    count = graph.variables.get(optimizer.get(_COUNT, -1))
    return count is not None and int(graph.read(count)) == 0


def _by_index(
    averages: dict[str, int], trained: dict[str, int], graph: ObjectGraph
) -> Iterator[tuple[int, StoredVariable]]:
    """Yield the averages of Keras 3, which keeps averages and variables as two lists in the same order."""
    for index, node in averages.items():
        if index in trained and node in graph.variables:
            yield trained[index], graph.variables[node]


def _by_name(averages: dict[str, int], graph: ObjectGraph) -> Iterator[tuple[int, StoredVariable]]:
    """Yield the averages of Keras 2, which names the average of `dense/kernel` `Adam/average/dense/kernel`."""
    nodes = {variable.name: node for node, variable in graph.variables.items()}
    for node in averages.values():
        stored = graph.variables.get(node)
        _, found, original = (stored.name if stored else "").partition("average/")
        if stored and found and original in nodes:
            yield nodes[original], stored


def check_averages(
    averages: Mapping[int, StoredVariable],
    trained: Mapping[int, StoredVariable],
    graph: ObjectGraph,
    name: str,
    weights: str,
    strictly: bool,
) -> str:
    """Compare averages with trained values by the model's variable. Return a description for the provenance.

    Slots start at zero. Raises CheckpointMismatch for averages that training has not filled, or of something else.
    """
    compared = _choose(averages, trained)
    pairs = ((graph.read(averages[index]), graph.read(trained[index])) for index in compared)
    return check_near(measure(pairs), name, weights, strictly)


def are_empty(averages: Mapping[int, StoredVariable], graph: ObjectGraph) -> bool:
    """Return whether all compared averages are zero, as slots are until the training starts to average."""
    compared = _choose(averages, averages)
    return bool(compared) and not any(graph.read(averages[index]).any() for index in compared)


def _choose(averages: Mapping[int, StoredVariable], trained: Mapping[int, StoredVariable]) -> list[int]:
    return choose_compared(
        {
            index: math.prod(one.shape)
            for index, one in averages.items()
            if "float" in one.dtype and index in trained and trained[index].shape == one.shape
        }
    )
