"""RunGraph: the operations that a run of a signature may execute, read from a MetaGraphDef.

Also finds operations that make responses differ, and refuses unsafe ones.
"""

from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeVar

from tpuserve_formats.messages.official import FunctionDef, GraphDef, NodeDef
from tpuserve_formats.safety import runs
from tpuserve_formats.safety.graph import Graph, Node
from tpuserve_formats.safety.screening import BadAsset, describe_findings, operations_of, screen_graphs
from tpuserve_formats.safety.unassigned import describe_unassigned, explain_unassigned, find_unassigned
from tpuserve_server.core.terms.errors import FailedPrecondition, InvalidArgument
from tpuserve_server.core.terms.types import DEFAULT_SIGNATURE_NAME, Signature
from tpuserve_server.executors.tensorflow.meta_graph import message_fields

# Field numbers of MetaGraphDef, GraphDef and FunctionDefLibrary (tensorflow/core/framework/graph.proto, function.proto,
# tensorflow/core/protobuf/meta_graph.proto).
_GRAPH_DEF, _NODE, _LIBRARY, _FUNCTION = 2, 1, 2, 1
# Attribute of calls with `jit_compile=True` (tensorflow/compiler/jit/defs.h, kXlaMustCompileAttr).
_COMPILED: Final = "_XlaMustCompile"


@dataclass(frozen=True, slots=True)
class RunNode:
    """The parts of a NodeDef that the searches need. The values of constants are not kept.

    `is_compiled`: XLA compiles the function that the node calls, in the first run of each shape. `constants` are the
    names of all constants of the same graph or function.
    """

    op: str
    inputs: tuple[str, ...]
    functions: tuple[str, ...]
    is_compiled: bool
    constants: Set[str]

    @classmethod
    def of(cls, node: NodeDef, constants: set[str]) -> "RunNode":
        """Return the parts of a node. Add its name to `constants` if it is one."""
        if node.op == "Const":
            constants.add(node.name)
        functions = [
            one.name
            for value in node.attr.values()
            if value.WhichOneof("value") in ("func", "list")
            for one in (value.func, *value.list.func)
            if one.name
        ]
        return cls(node.op, tuple(node.input), tuple(functions), node.attr[_COMPILED].b, constants)

    def is_constant(self, index: int) -> bool:
        """Return whether an input is the output of a constant."""
        return index < len(self.inputs) and _node_name(self.inputs[index]) in self.constants


@dataclass(frozen=True, slots=True)
class RunGraph:
    """The nodes of a graph and of its functions, by name."""

    nodes: Mapping[str, RunNode]
    functions: Mapping[str, tuple[RunNode, ...]]

    @classmethod
    def of(cls, meta_graph: bytes) -> "RunGraph":
        """Read a serialized MetaGraphDef. Takes about 10 us for each node; blocks.

        Raises:
            InvalidArgument: the bytes are not a MetaGraphDef.
        """
        return cls(*_read(meta_graph))

    def run_by(self, signature: Signature) -> Iterator[RunNode]:
        """Yield every node that a run of the signature may execute. An operation may be the name of a function."""
        return _with_functions(needed_nodes(self.nodes, signature), self.functions)


def _read(meta_graph: bytes) -> tuple[dict[str, RunNode], dict[str, tuple[RunNode, ...]]]:
    """Return the nodes of the graph and of its functions, by name."""
    nodes: dict[str, RunNode] = {}
    functions: dict[str, tuple[RunNode, ...]] = {}
    constants = set[str]()
    for definition in read_definitions(meta_graph):
        if isinstance(definition, NodeDef):
            nodes[definition.name] = RunNode.of(definition, constants)
        else:
            own = set[str]()
            functions[definition.signature.name] = tuple(RunNode.of(node, own) for node in definition.node_def)
    return nodes, functions


def read_definitions(meta_graph: bytes) -> Iterator[NodeDef | FunctionDef]:
    """Yield each node and each function of a serialized MetaGraphDef.

    Parses them one by one: parsing the whole graph would hold the interpreter's lock for long.

    Raises:
        InvalidArgument: the bytes are not a MetaGraphDef.
    """
    for graph in _parts(memoryview(meta_graph), _GRAPH_DEF):
        for part in _parts(graph, _NODE):
            yield NodeDef.FromString(bytes(part))
        for library in _parts(graph, _LIBRARY):
            for part in _parts(library, _FUNCTION):
                yield FunctionDef.FromString(bytes(part))


def read_head(meta_graph: bytes) -> GraphDef:
    """Return the graph of a serialized MetaGraphDef without its nodes and functions. Raises as `read_definitions`."""
    graphs = _parts(memoryview(meta_graph), _GRAPH_DEF)
    return GraphDef.FromString(
        b"".join(
            graph[start:end]
            for graph in graphs
            for number, start, _, end in message_fields(graph)
            if number not in (_NODE, _LIBRARY)
        )
    )


def _parts(message: memoryview, wanted: int) -> Iterator[memoryview]:
    """Yield the contents of a field of a serialized message."""
    return (message[start:end] for number, _, start, end in message_fields(message) if number == wanted)


_AnyNode = TypeVar("_AnyNode", "RunNode", Node)


def needed_nodes(nodes: Mapping[str, _AnyNode], signature: Signature) -> Iterator[_AnyNode]:
    """Yield every node that a run of the signature may execute. A fed tensor replaces its node."""
    fed = {spec.graph_name for spec in signature.inputs.values()}
    pending = [spec.graph_name for spec in signature.outputs.values()]
    seen = set[str]()
    while pending:
        tensor = pending.pop()
        name = _node_name(tensor)
        if name in seen or name not in nodes or tensor in fed or f"{tensor}:0" in fed:
            continue
        seen.add(name)
        yield nodes[name]
        pending += nodes[name].inputs


def _with_functions(nodes: Iterable[RunNode], functions: Mapping[str, tuple[RunNode, ...]]) -> Iterator[RunNode]:
    """Yield the nodes and all nodes of the functions that they call, directly or not."""
    pending = list(nodes)
    seen = set[str]()
    while pending:
        node = pending.pop()
        yield node
        for name in {node.op, *node.functions} & functions.keys() - seen:
            seen.add(name)
            pending += functions[name]


def _node_name(tensor: str) -> str:
    """Return the name of the node that a NodeDef names as input."""
    return tensor.lstrip("^").partition(":")[0]


# Operations with state whose output changes only if another operation writes the state. No list has one that writes.
READS: Final = frozenset(
    {
        "VarHandleOp", "Variable", "VariableV2", "ReadVariableOp", "VarIsInitializedOp", "IsVariableInitialized",
        "VariableShape", "ResourceGather", "ResourceGatherNd", "HashTable", "HashTableV2", "AnonymousHashTable",
        "MutableHashTable", "MutableHashTableV2", "MutableDenseHashTable", "MutableDenseHashTableV2", "LookupTableFind",
        "LookupTableFindV2", "LookupTableSize", "LookupTableSizeV2",
    }
)  # fmt: skip
# Control flow and calls, whose functions are searched too, checks, and arrays that live for one run.
_CONTROL: Final = frozenset(
    {
        "StatefulPartitionedCall", "If", "While", "Case", "RefEnter", "RefExit", "RefIdentity", "RefMerge",
        "RefNextIteration", "RefSelect", "RefSwitch", "Assert", "Print", "PrintV2", "TensorArrayV3",
        "TensorArrayCloseV3", "TensorArrayConcatV3", "TensorArrayGatherV3", "TensorArrayReadV3", "TensorArrayScatterV3",
        "TensorArraySizeV3", "TensorArraySplitV3", "TensorArrayWriteV3",
    }
)  # fmt: skip
# The same of TensorFlow Text and Decision Forests. SentencepieceTokenizeOp is missing: it may draw random numbers. The
# length of a text decides how long some of them take.
_LIBRARY_READS: Final = frozenset(
    {
        "SentencepieceDetokenizeOp", "SentencepieceIdToStringOp", "SentencepieceOp", "SentencepieceStringToIdOp",
        "SentencepieceVocabSizeOp", "SimpleMLCreateModelResource", "SimpleMLInferenceLeafIndexOpWithHandle",
        "SimpleMLInferenceOpWithHandle", "WordpieceTokenizeWithOffsets",
    }
)  # fmt: skip
_ALLOWED: Final = READS | _CONTROL | _LIBRARY_READS
# TensorFlow does not mark these, although they read files or run any Python code.
_UNMARKED: Final = frozenset({"MatchingFiles", "PyFuncStateless", "ReadFile"})
_LOOPS: Final = frozenset({"LoopCond", "StatelessWhile", "While"})
# DT_RESOURCE (tensorflow/core/framework/types.proto).
_RESOURCE: Final = 20
_CHECKPOINT: Final = "variables/variables.index"


# Returns TensorFlow's OpDef of a registered operation. TensorFlow has no types.
FindOp: TypeAlias = Callable[[str], Any | None]


def find_unrepeatable(graph: RunGraph, signatures: Iterable[Signature], find_op: FindOp) -> str:
    """Return why equal requests may get different outputs, or "".

    `find_op` returns the definition of a registered operation.
    """
    for signature in signatures:
        for node in graph.run_by(signature):
            if reason := _why_not(node.op, graph.functions, find_op):
                return f"signature '{signature.name}' {reason}"
    return ""


def has_effects(graph: RunGraph, signature: Signature, find_op: FindOp) -> bool:
    """Return whether a run may change a variable, a table or a queue, or wait for another run.

    The operations in READS and calls of functions do not. Random numbers are no effect.
    """
    operations = {node.op for node in graph.run_by(signature)} - _ALLOWED - graph.functions.keys()
    return any(_takes_state(find_op(operation)) for operation in operations)


def may_not_end(graph: RunGraph, signature: Signature) -> bool:
    """Return whether a run has loops, or waits for other processes."""
    return any(node.op in _LOOPS or node.op.startswith("Collective") for node in graph.run_by(signature))


def _takes_state(definition: Any | None) -> bool:  # noqa: ANN401 - TensorFlow has no types
    if definition is None or any(_is_handle(one) for one in definition.input_arg):
        return True
    # Some find their state by its name, such as Stage. Those that return a handle make the state.
    is_named = definition.is_stateful and any(one.name == "shared_name" for one in definition.attr)
    return is_named and not any(_is_handle(one) for one in definition.output_arg)


def _is_handle(argument: Any) -> bool:  # noqa: ANN401 - as above
    return bool(argument.is_ref or argument.type == _RESOURCE)


def _why_not(op: str, functions: Container[str], find_op: FindOp) -> str:
    if op in _ALLOWED or op in functions:
        return ""
    definition = find_op(op)
    if definition is None:
        return f"has the operation {op}, which this server's TensorFlow does not define"
    is_marked = definition.is_stateful or any(one.is_ref for one in definition.input_arg)
    return f"has the operation {op}, which has state or is random" if is_marked or op in _UNMARKED else ""


def check_operations(graphs: Sequence[Graph], tags: Collection[str], allowed: Collection[str]) -> tuple[str, ...]:
    """Return the operations that the SavedModel needs and only `allowed` permits. Blocks.

    Raises:
        FailedPrecondition: the graph that will be loaded has other such operations. The message names them.
        InvalidArgument: an asset is outside the version.
    """
    try:
        findings = screen_graphs(graphs, tags)
    except BadAsset as error:
        raise InvalidArgument(str(error)) from error
    if refused := [finding for finding in findings if finding.operation not in allowed]:
        names = ",".join(operations_of(refused))
        raise FailedPrecondition(
            f"this server refuses operations of the SavedModel: {describe_findings(refused)}. Export the model without "
            f"them. If you trust its author, allow them: --allowed_ops={names}"
        )
    return tuple(operations_of(findings))


@dataclass(frozen=True, slots=True)
class MissingValues:
    """The signatures of a version that read variables or tables without values, named in `text`.

    `fails_version` is True if one of them is the default signature, or if there is no other signature.
    """

    text: str
    fails_version: bool

    def error(self) -> FailedPrecondition:
        """Return the error of a version that fails."""
        return FailedPrecondition(
            f"{self.text}. The server's flag --lenient_loads serves such versions, as TensorFlow Serving does"
        )


def find_missing_values(graph: Graph, version_path: Path) -> MissingValues | None:
    """Return the signatures that lack values, or None. `graph` is the one to load of the version. Blocks."""
    restores = (version_path / _CHECKPOINT).exists()
    if not (found := find_unassigned(graph, restores=restores)):
        return None
    if not restores and any("variable" in state.kind for states in found.values() for state in states):
        text = f"{describe_unassigned(found)}, but it has no {_CHECKPOINT}. Copy or export the version again"
    else:
        text = f"{explain_unassigned(found)}. tpuserve export repairs it if Python finds the values"
    return MissingValues(text, DEFAULT_SIGNATURE_NAME in found or len(found) == len(runs.signatures(graph.rest)))
