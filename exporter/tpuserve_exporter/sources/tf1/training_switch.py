"""Sets the boolean placeholders that switch a TensorFlow 1 graph to training (`is_training`) to inference.

The graph shows the right value: with the other one, the outputs depend on more training operations.
"""

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tpuserve_exporter.graphs.batch_statistics import is_norm
from tpuserve_exporter.graphs.function_inlining import inline_calls
from tpuserve_exporter.graphs.graph_walk import node_of, pass_on, replace_operation
from tpuserve_exporter.graphs.tpu_surgery import reached
from tpuserve_exporter.sources.tf1.training_mode import find_averages, find_random

if TYPE_CHECKING:
    from tensorflow.core.framework.graph_pb2 import GraphDef
    from tensorflow.core.framework.node_def_pb2 import NodeDef

_PLACEHOLDERS = frozenset({"Placeholder", "PlaceholderWithDefault"})
_BRANCHES = frozenset({"If", "StatelessIf"})
_CHOICES = frozenset({"Switch", "RefSwitch"})


def set_to_inference(graph_def: "GraphDef", fetched: Sequence[str]) -> list[str]:
    """Remove training switches that the nodes `fetched` depend on from `graph_def`. Return a note for each.

    A placeholder stays if the outputs depend on as many training operations with either value.
    """
    notes = []
    for name in [node.name for node in reached(graph_def, fetched) if _is_switch(node)]:
        folded = {value: _fold(graph_def, name, value) for value in (False, True)}
        marks = {value: _count_training(graph, fetched) for value, graph in folded.items()}
        if marks[False] != marks[True]:
            value = marks[True] < marks[False]
            graph_def.CopyFrom(folded[value])
            notes.append(f"{name} is {str(value).lower()}, as in inference")
    return notes


def _is_switch(node: "NodeDef") -> bool:
    from tensorflow.core.framework import types_pb2

    return (
        node.op in _PLACEHOLDERS and node.attr["dtype"].type == types_pb2.DT_BOOL and not node.attr["shape"].shape.dim
    )


def _count_training(graph_def: "GraphDef", fetched: Sequence[str]) -> int:
    """Count the training operations that the nodes `fetched` depend on."""
    averaged = {node_of(one.statistic) for one in find_averages(graph_def, fetched)}
    norms = {one.name for one in reached(graph_def, fetched) if is_norm(one)}
    random = {one.name for one in find_random(graph_def, fetched)}
    return len(averaged | norms | random)


def _fold(graph_def: "GraphDef", name: str, value: bool) -> "GraphDef":
    """Return a copy where the placeholder `name` is `value`, without the conditions and branches that this decides."""
    from tensorflow.core.framework import types_pb2

    folded = type(graph_def)()
    folded.CopyFrom(graph_def)
    placeholder = next(node for node in folded.node if node.name == name)
    replace_operation(placeholder, "Const", ())
    placeholder.attr["dtype"].type = types_pb2.DT_BOOL
    placeholder.attr["value"].tensor.dtype = types_pb2.DT_BOOL
    placeholder.attr["value"].tensor.tensor_shape.SetInParent()
    placeholder.attr["value"].tensor.bool_val.append(value)
    known = _known_conditions(folded, name, value)
    _fold_branches(folded, known)
    folded = inline_calls(folded, ())[0]
    _fold_switches(folded, known)
    return folded


def _known_conditions(graph_def: "GraphDef", name: str, value: bool) -> dict[str, bool]:
    """Return the nodes whose value follows from that of `name`, each with its value."""
    known = {name: value}
    waiting = [node for node in graph_def.node if node.op in ("Identity", "LogicalNot", "LogicalAnd", "LogicalOr")]
    grown = True
    while grown:
        grown = False
        for node in waiting:
            found = _truth(node, known) if node.name not in known else None
            if found is not None:
                known[node.name] = found
                grown = True
    return known


def _truth(node: "NodeDef", known: dict[str, bool]) -> bool | None:
    values = [known.get(node_of(one)) for one in node.input if one[0] != "^"]
    if node.op == "Identity":
        return values[0]
    if node.op == "LogicalNot":
        return None if values[0] is None else not values[0]
    deciding = bool(node.op == "LogicalOr")
    if deciding in values:
        return deciding
    return None if None in values else not deciding


def _fold_branches(graph_def: "GraphDef", known: dict[str, bool]) -> None:
    """Replace each decided `tf.cond` of TensorFlow 2 and each decided `tf.where` by the taken side."""
    for node in graph_def.node:
        if node.op in _BRANCHES and node_of(node.input[0]) in known:
            taken = node.attr["then_branch" if known[node_of(node.input[0])] else "else_branch"].func
            kinds = [node.attr["Tin"].list, node.attr["Tout"].list]
            _call(node, taken.name, *([*one.type] for one in kinds))
        elif node.op in ("Select", "SelectV2") and node_of(node.input[0]) in known:
            pass_on(node, node.input[1 if known[node_of(node.input[0])] else 2], node.attr["T"].type)


def _call(node: "NodeDef", function: str, taken: list[int], dtypes: list[int]) -> None:
    replace_operation(node, "StatefulPartitionedCall", node.input[1:])
    node.attr["f"].func.name = function
    node.attr["Tin"].list.type.extend(taken)
    node.attr["Tout"].list.type.extend(dtypes)


def _fold_switches(graph_def: "GraphDef", known: dict[str, bool]) -> None:
    """Let each Merge of a decided TensorFlow 1 branch take the remaining side."""
    switches = [node for node in graph_def.node if node.op in _CHOICES and node_of(node.input[1]) in known]
    dead = _find_dead(graph_def, {f"{node.name}:{int(not known[node_of(node.input[1])])}" for node in switches})
    for node in graph_def.node:
        if node.op in ("Merge", "RefMerge"):
            alive = [one for one in node.input if one[0] != "^" and not _is_dead(one, dead)]
            if len(alive) == 1 and len(alive) < len([one for one in node.input if one[0] != "^"]):
                pass_on(node, alive[0], node.attr["T"].type)
    for node in switches:
        kind, data = node.attr["T"].type, node.input[0]
        replace_operation(node, "IdentityN", [data, data])
        node.attr["T"].list.type.extend([kind, kind])


def _find_dead(graph_def: "GraphDef", ends: set[str]) -> set[str]:
    """Return the tensors and nodes of branches that are not taken. `ends` are the switch outputs into them."""
    consumers = defaultdict[str, list["NodeDef"]](list)
    for node in graph_def.node:
        for tensor in node.input:
            consumers[node_of(tensor)].append(node)
    dead = set(ends)
    waiting = [node_of(end) for end in ends]
    for name in waiting:
        for node in consumers[name]:
            if node.name not in dead and _dies(node, dead):
                dead.add(node.name)
                waiting.append(node.name)
    return dead


def _dies(node: "NodeDef", dead: set[str]) -> bool:
    values = [_is_dead(one, dead) for one in node.input]
    return all(values) if node.op in ("Merge", "RefMerge") else any(values)


def _is_dead(tensor: str, dead: set[str]) -> bool:
    name, _, index = tensor.removeprefix("^").partition(":")
    return name in dead or f"{name}:{index or 0}" in dead
