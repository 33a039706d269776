"""Operations that make answers change: they draw random numbers, or write variables or tables."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from tpuserve_exporter.graphs.graph_walk import Walk

if TYPE_CHECKING:
    from tensorflow.core.framework.node_def_pb2 import NodeDef

# All lists hold prefixes of names. These operations keep a random state, or use a generator's.
_RANDOM = (
    "Random",
    "TruncatedNormal",
    "ParameterizedTruncatedNormal",
    "Multinomial",
    "SampleDistortedBoundingBox",
    "StatefulUniform",
    "StatefulStandardNormal",
    "StatefulTruncatedNormal",
    "StatefulRandom",
    "RngReadAndSkip",
)
_NOT_RANDOM = ("RandomDataset", "RandomShuffleQueue")
# These operations take a seed as an input.
_SEEDED = (
    "StatelessRandom",
    "StatelessTruncated",
    "StatelessMultinomial",
    "StatelessParameterized",
    "StatelessShuffle",
    "StatelessSampleDistorted",
)
_WRITES = (
    "Assign",
    "ResourceApply",
    "ResourceSparseApply",
    "ResourceScatter",
    "ResourceStridedSliceAssign",
    "Scatter",
    "LookupTableInsert",
    "LookupTableImport",
    "LookupTableRemove",
    "CountUpTo",
    "ResourceCountUpTo",
)
_NOT_WRITES = ("ScatterNd", "AssignVariableXlaConcat")
_READS = ("ReadVariableOp", "ResourceGather", "LookupTableFind", "LookupTableSize", "LookupTableExport", "VariableV2")
_GENERATORS = ("RngReadAndSkip", "RngSkip", "Stateful")


def is_random(node: "NodeDef", walk: Walk) -> bool:
    """Return whether `node` draws different numbers each time. A constant seed gives the same numbers."""
    if node.op.startswith(_SEEDED):
        return any(_changes(one) for one in walk.before(node.input).values())
    return (node.op.startswith(_RANDOM) and not node.op.startswith(_NOT_RANDOM)) or "CandidateSampler" in node.op


def is_write(node: "NodeDef") -> bool:
    """Return whether `node` changes a variable or a table, which its first input names."""
    return node.op.startswith(_WRITES) and not node.op.startswith(_NOT_WRITES) and bool(node.input)


def is_generator(node: "NodeDef") -> bool:
    """Return whether `node` advances the state of a random generator, which its first input names."""
    return node.op.startswith(_GENERATORS) and bool(node.input)


def roots_read(walk: Walk, nodes: Iterable["NodeDef"]) -> set[str]:
    """Return the names of the variables and tables that `nodes` read."""
    found = set[str]()
    for node in nodes:
        if node.op in ("VariableV2", "Variable"):
            found.add(node.name)
        elif node.op.startswith(_READS) and node.input:
            found.add(walk.root(node.input[0]))
    return found


def _changes(node: "NodeDef") -> bool:
    return node.op in ("Placeholder", "VarHandleOp", "VariableV2") or node.op.startswith((*_RANDOM, "Timestamp"))
