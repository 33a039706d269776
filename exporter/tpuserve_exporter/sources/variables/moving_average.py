"""Moving averages of the weights in a TF2 checkpoint. The object graph shows which variable each belongs to."""

import re
from collections.abc import Iterator

from tpuserve_exporter.sources.variables.object_graph import ObjectGraph, StoredVariable

# Usual names of a model that holds averages of the trained one.
_AVERAGED_MODEL = re.compile(r"(^|_)(ema|swa|avg|averaged?|shadow)(_|$)", re.IGNORECASE)
_SLOT = "average"
_TRAINED, _AVERAGES, _COUNT = "_trainable_variables", "_model_variables_moving_average", "_iterations"


def is_averaged_model(name: str) -> bool:
    """Return whether `name`, as in tf.train.Checkpoint(model=..., ema=...), suggests averages of another model."""
    return _AVERAGED_MODEL.search(name) is not None


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
