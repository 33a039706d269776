"""What a training graph does in training alone: dropout and batch statistics, found by their pattern and taken back.

The moving statistics that inference uses instead are variables of the same graph: only their updates are elsewhere.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from tpuserve_exporter.sources.tpu_surgery import node_of, reached

if TYPE_CHECKING:
    from tensorflow.core.framework.graph_pb2 import GraphDef
    from tensorflow.core.framework.node_def_pb2 import NodeDef

_RANDOM = frozenset(
    {"RandomUniform", "StatelessRandomUniform", "StatelessRandomUniformV2", "RandomStandardNormal", "TruncatedNormal"}
    | {"RandomUniformInt", "StatelessRandomNormal", "StatelessRandomNormalV2", "Multinomial", "RandomShuffle"}
)
# From random numbers to the mask of dropout: `floor(keep + random)` of old, `random >= rate` since.
_MASKING = frozenset({"Add", "AddV2", "Sub", "Mul", "Floor", "GreaterEqual", "Cast", "Identity"})
_SCALING = frozenset({"Mul", "RealDiv"})
# What a share kept may be made of.
_SHARE = frozenset({"Const", "Placeholder", "PlaceholderWithDefault", "RealDiv", "Sub", "Cast", "Identity"})
_FUSED_NORM = frozenset({"FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3"})


def stop_training(graph_def: "GraphDef", fetched: Sequence[str]) -> list[str]:
    """Change `graph_def` so that `fetched` nodes depend on no dropout and no batch statistics; says what was done."""
    return [*_switch_norms(graph_def, fetched), *_remove_dropouts(graph_def, fetched)]


def find_random(graph_def: "GraphDef", fetched: Sequence[str]) -> list["NodeDef"]:
    """Operations by which `fetched` nodes depend on random numbers."""
    return [node for node in reached(graph_def, fetched) if node.op in _RANDOM]


def _remove_dropouts(graph_def: "GraphDef", fetched: Sequence[str]) -> Iterator[str]:
    nodes = {node.name: node for node in graph_def.node}
    removed = []
    for node in reached(graph_def, fetched):
        kept = _dropped_out(node, nodes)
        if kept is not None:
            kind = node.attr["T"].type
            node.op = "Identity"
            node.attr.clear()
            node.attr["T"].type = kind
            del node.input[:]
            node.input.append(kept)
            removed.append(node.name)
    if removed:
        yield f"took dropout out, which is of training alone: {', '.join(sorted(removed))}"


def _dropped_out(node: "NodeDef", nodes: "dict[str, NodeDef]") -> str | None:
    """The tensor that `node` drops of, by `scaled * mask` or `mask ? scaled : 0`. None where it is no dropout."""
    inputs = [one for one in node.input if one[0] != "^"]
    if node.op in ("SelectV2", "Select") and _is_mask(nodes[node_of(inputs[0])], nodes):
        return _unscaled(nodes[node_of(inputs[1])], nodes)
    if node.op == "Mul":
        for scaled, mask in (inputs, inputs[::-1]):
            if _is_mask(nodes[node_of(mask)], nodes) and not _is_mask(nodes[node_of(scaled)], nodes):
                return _unscaled(nodes[node_of(scaled)], nodes)
    return None


def _unscaled(scaled: "NodeDef", nodes: "dict[str, NodeDef]") -> str | None:
    """What was divided by the share kept, or multiplied by its inverse: always the left side."""
    if scaled.op not in _SCALING or nodes[node_of(scaled.input[1])].op not in _SHARE:
        return None
    return str(scaled.input[0])


def _is_mask(node: "NodeDef", nodes: "dict[str, NodeDef]") -> bool:
    """Made of uniform random numbers, by a comparison or a floor."""
    compared = False
    while node.op in _MASKING:
        compared |= node.op in ("Floor", "GreaterEqual")
        inputs = [nodes[node_of(one)] for one in node.input if one[0] != "^"]
        node = next((one for one in inputs if one.op in _MASKING or "RandomUniform" in one.op), inputs[0])
    return compared and "RandomUniform" in node.op


def _switch_norms(graph_def: "GraphDef", fetched: Sequence[str]) -> Iterator[str]:
    """Let batch norms use the moving statistics that stand beside their `gamma` or `beta`."""
    nodes = {node.name: node for node in graph_def.node}
    training = [one for one in reached(graph_def, fetched) if one.op in _FUSED_NORM and one.attr["is_training"].b]
    switched, left = [], []
    for node in training:
        handles = _moving_statistics(node, nodes)
        if handles is None:
            left.append(node.name)
            continue
        for index, handle in zip((3, 4), handles, strict=True):
            node.input[index] = _read(graph_def, handle, node)
        node.attr["is_training"].b = False
        switched.append(node.name)
    if switched:
        yield f"batch norm was in training mode: it uses its moving statistics now: {', '.join(sorted(switched))}"
    if left:
        yield (
            "batch norm in training mode, no moving_mean and moving_variance beside it: what is served depends on the "
            f"batch: {', '.join(sorted(left))}"
        )


def _moving_statistics(norm: "NodeDef", nodes: "dict[str, NodeDef]") -> "list[NodeDef] | None":
    """The variables `…/moving_mean` and `…/moving_variance` beside that of its scale or offset."""
    for tensor in norm.input[1:3]:
        variable = nodes[node_of(tensor)]
        while variable.op in ("ReadVariableOp", "Identity", "Cast", "Enter"):
            variable = nodes[node_of(variable.input[0])]
        scope = variable.name.rpartition("/")[0]
        found = [nodes.get(f"{scope}/{name}") for name in ("moving_mean", "moving_variance")]
        if scope and all(one is not None and one.op in ("VarHandleOp", "VariableV2") for one in found):
            return [one for one in found if one is not None]
    return None


def _read(graph_def: "GraphDef", variable: "NodeDef", norm: "NodeDef") -> str:
    """The name of a node that reads `variable` for `norm`."""
    if variable.op != "VarHandleOp":
        return str(variable.name)
    read = graph_def.node.add(name=f"{norm.name}/{variable.name.rpartition('/')[2]}", op="ReadVariableOp")
    read.input.append(variable.name)
    read.attr["dtype"].CopyFrom(variable.attr["dtype"])
    return str(read.name)
