"""Removes training operations from a graph: dropout and batch statistics.

The moving statistics that inference uses are variables of the same graph. This module finds them by their updates and
not by their names. An update is `v -= (v - s) * (1 - decay)` in any form: AssignSub, AssignAdd, Assign or
AssignMovingAvg, possibly through a biased average.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tpuserve_exporter.errors import TrainingMode
from tpuserve_exporter.graphs.batch_statistics import RowAxes, import_graph, is_norm
from tpuserve_exporter.graphs.changing_operations import is_random
from tpuserve_exporter.graphs.graph_walk import RESOURCE_VARIABLE, Walk, is_variable, node_of, pass_on
from tpuserve_exporter.graphs.tpu_surgery import find_looping, reached

if TYPE_CHECKING:
    from tensorflow.core.framework.graph_pb2 import GraphDef
    from tensorflow.core.framework.node_def_pb2 import NodeDef

# Operations from random numbers to the dropout mask: `floor(keep + random)` formerly, `random >= rate` now.
_MASKING = frozenset({"Add", "AddV2", "Sub", "Mul", "Floor", "GreaterEqual", "Cast", "Identity"})
_SCALING = frozenset({"Mul", "RealDiv"})
# Operations that may compute the kept share.
_SHARE = frozenset({"Const", "Placeholder", "PlaceholderWithDefault", "RealDiv", "Sub", "Cast", "Identity"})
# The variables that a fused batch norm takes at inference, in the order of its inputs.
_STATISTICS = ("moving_mean", "moving_variance")
GIVE_INFERENCE = "Export the inference graph: its checkpoint, with the function that builds it as --model"


def stop_training(graph_def: "GraphDef", fetched: Sequence[str]) -> list[str]:
    """Remove dropout and batch statistics that the nodes `fetched` depend on. Return a note for each change.

    Statistics without a moving average and random numbers outside dropout stay. Raises TrainingMode.
    """
    return [
        *_skip_updates(graph_def, fetched),
        *_use_moving_statistics(graph_def, fetched),
        *_remove_dropouts(graph_def, fetched),
    ]


def find_random(graph_def: "GraphDef", fetched: Sequence[str]) -> list["NodeDef"]:
    """Return the nodes that draw the random numbers which the nodes `fetched` depend on."""
    walk = Walk(graph_def)
    return [node for node in walk.before(fetched).values() if is_random(node, walk)]


def _remove_dropouts(graph_def: "GraphDef", fetched: Sequence[str]) -> Iterator[str]:
    nodes = {node.name: node for node in graph_def.node}
    removed = []
    for node in reached(graph_def, fetched):
        kept = _dropped_out(node, nodes)
        if kept is not None:
            pass_on(node, kept, node.attr["T"].type)
            removed.append(node.name)
    if removed:
        yield f"removed dropout, which applies only in training: {', '.join(sorted(removed))}"


def _dropped_out(node: "NodeDef", nodes: "dict[str, NodeDef]") -> str | None:
    """Return the tensor that `node` applies dropout to, or None.

    Dropout is `scaled * mask` or `mask ? scaled : 0`.
    """
    inputs = [one for one in node.input if one[0] != "^"]
    if node.op in ("SelectV2", "Select") and _is_mask(nodes[node_of(inputs[0])], nodes):
        return _unscaled(nodes[node_of(inputs[1])], nodes)
    if node.op == "Mul":
        for scaled, mask in (inputs, inputs[::-1]):
            if _is_mask(nodes[node_of(mask)], nodes) and not _is_mask(nodes[node_of(scaled)], nodes):
                return _unscaled(nodes[node_of(scaled)], nodes)
    return None


def _unscaled(scaled: "NodeDef", nodes: "dict[str, NodeDef]") -> str | None:
    """Return the left side of a division by the kept share, or of a multiplication by its inverse, or None."""
    if scaled.op not in _SCALING or nodes[node_of(scaled.input[1])].op not in _SHARE:
        return None
    return str(scaled.input[0])


def _is_mask(node: "NodeDef", nodes: "dict[str, NodeDef]") -> bool:
    """Return whether `node` is computed from uniform random numbers by a comparison or a floor."""
    compared = False
    while node.op in _MASKING:
        compared |= node.op in ("Floor", "GreaterEqual")
        inputs = [nodes[node_of(one)] for one in node.input if one[0] != "^"]
        node = next((one for one in inputs if one.op in _MASKING or "RandomUniform" in one.op), inputs[0])
    return compared and "RandomUniform" in node.op


def _use_moving_statistics(graph_def: "GraphDef", fetched: Sequence[str]) -> Iterator[str]:
    """Replace batch statistics by their moving averages.

    Raises TrainingMode for batch renormalisation, which uses both.
    """
    nodes = {node.name: node for node in graph_def.node}
    averages = {one.statistic: one.variable for one in find_averages(graph_def, fetched)}
    there = {node.name for node in reached(graph_def, fetched)}
    single = {one: averages[one] for one in averages if not is_norm(nodes[node_of(one)])}
    _check_renormalised(there, single)
    switched = [node.name for node in reached(graph_def, fetched) if _switch_norm(graph_def, node, nodes, averages)]
    switched += _replace_statistics(graph_def, single)
    if switched:
        yield f"batch norm was in training mode and now uses its moving statistics: {', '.join(sorted(switched))}"


def _skip_updates(graph_def: "GraphDef", fetched: Sequence[str]) -> Iterator[str]:
    """Remove updates of moving averages whose results reach outputs, such as quantisation ranges. Keep the averages."""
    updates = find_served_updates(graph_def, fetched)
    for node in updates:
        pass_on(node, node.input[0], node.attr["T"].type)
    if updates:
        names = ", ".join(sorted(node.name for node in updates))
        yield f"requests no longer update moving averages, which keep the checkpoint's values: {names}"


def _check_renormalised(there: set[str], averages: Mapping[str, str]) -> None:
    """Raise TrainingMode if the outputs use both a statistic and its average. `there` are the outputs' nodes."""
    if both := sorted(statistic for statistic, variable in averages.items() if variable in there):
        raise TrainingMode(
            f"the outputs are normalized by batch statistics and by their moving averages: {', '.join(both)}. This "
            f"is batch renormalization in training mode. {GIVE_INFERENCE}"
        )


def _switch_norm(
    graph_def: "GraphDef", node: "NodeDef", nodes: "dict[str, NodeDef]", averages: Mapping[str, str]
) -> bool:
    """Take `node` out of training mode, if it is a fused batch norm with moving statistics in the graph."""
    if not is_norm(node):
        return False
    updated = [nodes[averages[one]] for one in (f"{node.name}:1", f"{node.name}:2") if one in averages]
    handles = updated if len(updated) == 2 else _input_statistics(node, nodes) or _moving_statistics(node, nodes)
    if handles is None:
        return False
    for index, (name, handle) in enumerate(zip(_STATISTICS, handles, strict=True), 3):
        node.input[index] = _read(graph_def, handle, f"{node.name}/served_{name}")
    node.attr["is_training"].b = False
    return True


def _input_statistics(norm: "NodeDef", nodes: "dict[str, NodeDef]") -> "list[NodeDef] | None":
    """Return the variables that `norm` takes to update with the statistics of the batch."""
    found = [_variable_of(tensor, nodes) for tensor in norm.input[3:5]]
    return found if all(map(is_variable, found)) else None


def _moving_statistics(norm: "NodeDef", nodes: "dict[str, NodeDef]") -> "list[NodeDef] | None":
    """Return the variables `…/moving_mean` and `…/moving_variance` in the scope of the scale or offset, or None."""
    for tensor in norm.input[1:3]:
        scope = _variable_of(tensor, nodes).name.rpartition("/")[0]
        found = [nodes.get(f"{scope}/{name}") for name in _STATISTICS]
        if scope and all(one is not None and is_variable(one) for one in found):
            return [one for one in found if one is not None]
    return None


def _variable_of(tensor: str, nodes: "dict[str, NodeDef]") -> "NodeDef":
    node = nodes[node_of(tensor)]
    while node.op in ("ReadVariableOp", "Identity", "Cast", "Enter"):
        node = nodes[node_of(node.input[0])]
    return node


def _replace_statistics(graph_def: "GraphDef", averages: Mapping[str, str]) -> list[str]:
    """Replace tensors by their averages, in the same shape. Return the replaced tensors.

    A tensor in a remaining loop stays, because its values differ between iterations.
    """
    nodes = {node.name: node for node in graph_def.node}
    looping = find_looping(graph_def)
    shapes = _find_shapes(graph_def, averages)
    replaced = {}
    for statistic, shape in shapes.items():
        variable = nodes[averages[statistic]]
        sizes = [dim.size for dim in variable.attr["shape"].shape.dim]
        if node_of(statistic) not in looping and math.prod(shape) == math.prod(sizes):
            value = _read(graph_def, variable, f"{statistic.replace(':', '_')}/moving_average")
            replaced[statistic] = _reshape(graph_def, value, variable, shape)
    for node in graph_def.node:
        if node.name not in {node_of(one) for one in replaced.values()}:
            for index, tensor in enumerate(node.input):
                node.input[index] = replaced.get(tensor.removesuffix(":0"), tensor)
    return list(replaced)


def _find_shapes(graph_def: "GraphDef", averages: Mapping[str, str]) -> dict[str, list[int]]:
    """Return the known shapes of the statistics that have the dtype of their average and no rows of the batch."""
    import tensorflow as tf

    part = tf.compat.v1.graph_util.extract_sub_graph(
        graph_def, list({node_of(one) for pair in averages.items() for one in pair})
    )
    graph = import_graph(part)
    kinds = {node.name: node.attr["dtype"].type for node in part.node if is_variable(node)}
    found = {one: graph.get_tensor_by_name(one if ":" in one else f"{one}:0") for one in averages}
    axes = _find_row_axes(part)
    return {
        one: tensor.shape.as_list()
        for one, tensor in found.items()
        if tensor.shape.is_fully_defined()
        and tensor.dtype.as_datatype_enum == kinds[averages[one]]
        and not (axes and axes.find(one))
    }


def _find_row_axes(graph_def: "GraphDef") -> RowAxes | None:
    """Return the row axes, or None for a graph that takes only one batch size."""
    placeholders = (node for node in graph_def.node if node.op == "Placeholder")
    dims = {node.name: node.attr["shape"].shape.dim for node in placeholders}
    try:
        return RowAxes(graph_def, {name: tuple(dim.size for dim in shape) for name, shape in dims.items() if shape})
    except ValueError:
        return None


def _reshape(graph_def: "GraphDef", tensor: str, variable: "NodeDef", shape: Sequence[int]) -> str:
    import tensorflow as tf

    sizes = graph_def.node.add(name=f"{tensor}/as_statistic/shape", op="Const")
    sizes.attr["dtype"].type = tf.int32.as_datatype_enum
    sizes.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(list(shape), tf.int32, shape=[len(shape)]))
    reshaped = graph_def.node.add(name=f"{tensor}/as_statistic", op="Reshape", input=[tensor, sizes.name])
    reshaped.attr["T"].CopyFrom(variable.attr["dtype"])
    reshaped.attr["Tshape"].type = tf.int32.as_datatype_enum
    return str(reshaped.name)


def _read(graph_def: "GraphDef", variable: "NodeDef", name: str) -> str:
    """Add a node `name` that reads `variable`, and return its name."""
    is_resource = variable.op == RESOURCE_VARIABLE
    read = graph_def.node.add(name=name, op="ReadVariableOp" if is_resource else "Identity")
    read.input.append(variable.name)
    read.attr["dtype" if is_resource else "T"].CopyFrom(variable.attr["dtype"])
    return str(read.name)


_UPDATES = frozenset({"Assign", "AssignSub", "AssignAdd"})
_UPDATES |= {"AssignVariableOp", "AssignSubVariableOp", "AssignAddVariableOp"}
# Operations between the statistic and the variable in an update.
_PASSED = frozenset({"Sub", "Add", "AddV2", "AddN", "Mul", "RealDiv", "Div", "Identity", "Cast", "Reshape", "Squeeze"})
_PASSED |= {"ExpandDims", "StopGradient", "Switch", "Merge", "Select", "SelectV2", "IdentityN", "Enter", *_UPDATES}
_READS = frozenset({"ReadVariableOp", "Identity", "Enter", "Switch", "Cast", "RefSwitch"})


@dataclass(frozen=True, slots=True)
class Average:
    """`variable` keeps the moving average of the tensor `statistic`, which depends on inputs."""

    statistic: str
    variable: str


def find_averages(graph_def: "GraphDef", fetched: Sequence[str]) -> list[Average]:
    """Return the moving averages of tensors that the nodes `fetched` depend on."""
    walk = Walk(graph_def)
    served = walk.before(fetched)
    inputs = [node.name for node in graph_def.node if node.op.startswith("Placeholder")]
    return list(_Updates(walk, set(served), walk.after(inputs)).find())


def find_served_updates(graph_def: "GraphDef", fetched: Sequence[str]) -> "list[NodeDef]":
    """Return the updates of moving averages whose results the nodes `fetched` depend on."""
    walk = Walk(graph_def)
    updates = _Updates(walk, set(), set())
    return [
        node
        for node in walk.before(fetched).values()
        if node.op in ("Assign", "AssignSub", "AssignAdd") and updates.reads_itself(node)
    ]


class _Updates:
    """The updates of one graph. The outputs depend on `served` nodes, and `fed` nodes depend on inputs."""

    def __init__(self, walk: Walk, served: set[str], fed: set[str]) -> None:
        self._walk = walk
        self._served = served
        self._fed = fed

    def find(self) -> Iterator[Average]:
        updates = [node for node in self._walk.nodes.values() if node.op in _UPDATES and len(node.input) > 1]
        found: dict[str, str] = {}
        read: dict[str, set[str]] = {}
        for node in updates:
            variable = self._walk.root(node.input[0])
            statistics, variables = self._follow(node.input[1])
            if variable not in self._walk.nodes or not is_variable(self._walk.nodes[variable]):
                continue
            read.setdefault(variable, set()).update(variables)
            if len(statistics) == 1 and variable in variables:
                found.setdefault(variable, statistics.pop())
        yield from self._without_biased(found, read)

    def reads_itself(self, update: "NodeDef") -> bool:
        """Return whether the variable's new value depends on its old value."""
        return self._walk.root(update.input[0]) in self._follow(update.input[1])[1]

    def _without_biased(self, found: dict[str, str], read: dict[str, set[str]]) -> Iterator[Average]:
        """Yield the averages. A biased average starts at zero; the unbiased one computed from it replaces it."""
        for variable, statistic in found.items():
            shape = self._shape(variable)
            unbiased = [
                one
                for one, others in read.items()
                if variable in others
                and one != variable
                and self._shape(one) == shape
                and found.get(one, statistic) == statistic
            ]
            yield Average(statistic, unbiased[0] if unbiased else variable)

    def _shape(self, variable: str) -> bytes:
        shape: bytes = self._walk.nodes[variable].attr["shape"].shape.SerializeToString()
        return shape

    def _follow(self, tensor: str) -> tuple[set[str], set[str]]:
        """Return the nearest served tensors that an update depends on, and the variables that it reads.

        An update that depends on inputs in another way is not a moving average and has no tensors.
        """
        statistics, variables, otherwise = set[str](), set[str](), False
        waiting, seen = [tensor], set[str]()
        while waiting:
            tensor = waiting.pop()
            name = node_of(tensor)
            node = self._walk.nodes.get(name)
            if node is None or tensor in seen:
                continue
            seen.add(tensor)
            if is_variable(node):
                variables.add(name)
            elif node.op.startswith("FusedBatchNorm") and not is_norm(node):
                otherwise = True  # it returns the averages that it got
            elif name in self._fed and name in self._served:
                statistics.add(tensor.removesuffix(":0"))
            elif node.op in _PASSED or node.op in _READS:
                waiting += self._parts(node)
            elif name in self._fed:
                otherwise = True
        return set() if otherwise else statistics, variables

    def _parts(self, node: "NodeDef") -> list[str]:
        """Return the inputs whose values an operation forwards, without conditions and shapes."""
        values = [one for one in node.input if one[0] != "^"]
        if node.op in ("Select", "SelectV2"):
            return values[1:]
        if node.op in ("Switch", "Reshape", "ExpandDims", "RefSwitch"):
            return values[:1]
        return values
