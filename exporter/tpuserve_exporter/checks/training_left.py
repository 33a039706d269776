"""What of training is left in what is served: layers that drop, add noise or take statistics at each request.

They were called with `training=True`, or heed no `training` at all. The layers are told by the names that TensorFlow
gives to what they do, which begin with theirs.
"""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tpuserve_exporter.inspection.operations import find_needed
from tpuserve_exporter.inspection.saved_model import read_meta_graph
from tpuserve_exporter.signature import read_signatures

if TYPE_CHECKING:
    from tensorflow.core.framework.node_def_pb2 import NodeDef

# Of numbers drawn by a state of the operation's own; and of a seed that is given.
_RANDOM = ("RandomUniform", "RandomStandardNormal", "TruncatedNormal", "Multinomial", "RandomShuffle", "RandomGamma")
_SEEDED = (
    "StatelessRandom",
    "StatelessTruncated",
    "StatelessMultinomial",
    "StatelessParameterized",
    "StatelessShuffle",
)
_WRITES = ("AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp", "AssignMovingAvg", "Assign", "AssignAdd")
_NORM = "FusedBatchNorm"
# Where, in the name of an operation, that of its layer has ended.
_OWN = re.compile(r"/(stateless_|random_|truncated_|dropout/|Assign|moments/|FusedBatchNorm|Random|Stateless).*")
_MOST_NAMED = 5


def find_training(version: Path) -> list[str]:
    """What a user should know of a written version. Empty where nothing of training is in what its signatures run."""
    meta_graph = read_meta_graph(version)
    signatures = read_signatures(meta_graph.signature_def).values()
    outputs = [spec.graph_name for one in signatures for spec in one.outputs.values() if spec.graph_name]
    parts = find_needed(meta_graph.graph_def, outputs)
    random = _places(node for part in parts for node in _find_random(part))
    norms = _places(node for part in parts for node in part if _is_training_norm(node))
    written = _places(node for part in parts for node in part if node.op in _WRITES) - random
    return list(_describe(random, norms, written))


def _describe(random: set[str], norms: set[str], written: set[str]) -> Iterator[str]:
    mend = "call it with training=False, or pass on the `training` it is called with"
    if random:
        yield (
            f"what is served draws random numbers, in {_list(random)}: no two answers agree. If that is dropout or "
            f"noise of training, {mend}"
        )
    if norms:
        yield f"batch norm in training mode, {_list(norms)}: an answer depends on the rows beside it; {mend}"
    if written:
        yield (
            f"what is served changes variables, in {_list(written)}: answers may depend on those before. If that is a "
            f"batch norm in training mode, {mend}"
        )


def _list(places: set[str]) -> str:
    named, more = sorted(places)[:_MOST_NAMED], len(places) - _MOST_NAMED
    return ", ".join(named) + (f" and {more} more" if more > 0 else "")


def _places(nodes: "Iterator[NodeDef]") -> set[str]:
    return {_OWN.sub("", node.name) for node in nodes}


def _find_random(part: "Sequence[NodeDef]") -> "Iterator[NodeDef]":
    """Those whose numbers are others each time: not those of a seed that is in the graph."""
    nodes = {node.name: node for node in part}
    for node in part:
        if node.op in _RANDOM or (node.op.startswith(_SEEDED) and not _is_constant(node, nodes)):
            yield node


def _is_constant(node: "NodeDef", nodes: "dict[str, NodeDef]") -> bool:
    """Whether it follows from constants: not from arguments, variables, or what is random itself."""
    waiting, seen = [node], {node.name}
    while waiting:
        for name in waiting.pop().input:
            before = nodes.get(name.removeprefix("^").split(":")[0])
            if before is None or before.op in ("Placeholder", "VarHandleOp", "ReadVariableOp", *_RANDOM):
                return False
            if before.name not in seen:
                seen.add(before.name)
                waiting.append(before)
    return True


def _is_training_norm(node: "NodeDef") -> bool:
    """What is not said is true: attributes that are as usual are left out of what is written."""
    return node.op.startswith(_NORM) and ("is_training" not in node.attr or node.attr["is_training"].b)
