"""Finds operations with which equal requests may get different outputs. A response cache must not keep these outputs.

The search covers every signature: one may write a variable that another one reads. It does not cover a model's
initialisation and its saver, which write variables too. It errs on the safe side: TensorFlow marks operations with
state, and only those that are listed here may occur. Operations without the mark depend on their inputs alone.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

from tpuserve_formats.messages.official import FunctionDef, NodeDef
from tpuserve_server.core.types import Signature
from tpuserve_server.executors.tensorflow.meta_graph import message_fields

# Field numbers of MetaGraphDef, GraphDef and FunctionDefLibrary (tensorflow/core/framework/graph.proto, function.proto,
# tensorflow/core/protobuf/meta_graph.proto).
_GRAPH_DEF, _NODE, _LIBRARY, _FUNCTION = 2, 1, 2, 1

# Operations with state whose output changes only if another operation writes the state. No list has one that writes.
_READS: Final = frozenset(
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
_ALLOWED: Final = _READS | _CONTROL
# TensorFlow does not mark these, although they read files or run any Python code.
_UNMARKED: Final = frozenset({"MatchingFiles", "PyFuncStateless", "ReadFile"})


class _Argument(Protocol):
    @property
    def is_ref(self) -> bool: ...


class OpDef(Protocol):
    """The part of TensorFlow's OpDef that the search reads."""

    @property
    def is_stateful(self) -> bool:
        """Whether the operation's outputs depend on more than its inputs."""
        ...

    @property
    def input_arg(self) -> Iterable[_Argument]:
        """The inputs. An operation may write to an input that is a reference."""
        ...


class _WithInputs(Protocol):
    @property
    def inputs(self) -> tuple[str, ...]: ...


_AnyNode = TypeVar("_AnyNode", bound=_WithInputs)


@dataclass(frozen=True, slots=True)
class _Node:
    """The parts of a NodeDef that the search needs. Constants are not kept."""

    op: str
    inputs: tuple[str, ...]
    functions: tuple[str, ...]

    @classmethod
    def of(cls, node: NodeDef) -> "_Node":
        functions = [
            one.name
            for value in node.attr.values()
            if value.WhichOneof("value") in ("func", "list")
            for one in (value.func, *value.list.func)
            if one.name
        ]
        return cls(node.op, tuple(node.input), tuple(functions))


def find_unrepeatable(
    meta_graph: bytes, signatures: Iterable[Signature], find_op: Callable[[str], OpDef | None]
) -> str:
    """Return why equal requests may get different outputs, or "". Takes about 10 us for each node; blocks.

    `find_op` returns the definition of a registered operation.

    Raises:
        InvalidArgument: the bytes are not a MetaGraphDef.
    """
    nodes, functions = _read(meta_graph)
    for signature in signatures:
        for node in _with_functions(needed_nodes(nodes, signature), functions):
            if reason := _why_not(node.op, functions, find_op):
                return f"signature '{signature.name}' {reason}"
    return ""


def _why_not(op: str, functions: Mapping[str, object], find_op: Callable[[str], OpDef | None]) -> str:
    if op in _ALLOWED or op in functions:
        return ""
    definition = find_op(op)
    if definition is None:
        return f"has the operation {op}, which this server's TensorFlow does not define"
    is_marked = definition.is_stateful or any(one.is_ref for one in definition.input_arg)
    return f"has the operation {op}, which has state or is random" if is_marked or op in _UNMARKED else ""


def _read(meta_graph: bytes) -> tuple[dict[str, _Node], dict[str, tuple[_Node, ...]]]:
    """Return the nodes of the graph and of its functions, by name.

    Parses the nodes one by one: parsing the whole graph would hold the interpreter's lock for long.
    """
    nodes: dict[str, _Node] = {}
    functions: dict[str, tuple[_Node, ...]] = {}
    for graph in _parts(memoryview(meta_graph), _GRAPH_DEF):
        for part in _parts(graph, _NODE):
            node = NodeDef.FromString(bytes(part))
            nodes[node.name] = _Node.of(node)
        for library in _parts(graph, _LIBRARY):
            for part in _parts(library, _FUNCTION):
                function = FunctionDef.FromString(bytes(part))
                functions[function.signature.name] = tuple(map(_Node.of, function.node_def))
    return nodes, functions


def _parts(message: memoryview, wanted: int) -> Iterator[memoryview]:
    """Yield the contents of a field of a serialized message."""
    return (message[start:end] for number, _, start, end in message_fields(message) if number == wanted)


def needed_nodes(nodes: Mapping[str, _AnyNode], signature: Signature) -> Iterator[_AnyNode]:
    """Yield every node that a run of the signature may execute. A fed tensor replaces its node."""
    fed = {spec.graph_name for spec in signature.inputs.values()}
    pending = [spec.graph_name for spec in signature.outputs.values()]
    seen = set[str]()
    while pending:
        tensor = pending.pop()
        name = tensor.lstrip("^").partition(":")[0]
        if name in seen or name not in nodes or tensor in fed or f"{tensor}:0" in fed:
            continue
        seen.add(name)
        yield nodes[name]
        pending += nodes[name].inputs


def _with_functions(nodes: Iterable[_Node], functions: Mapping[str, tuple[_Node, ...]]) -> Iterator[_Node]:
    """Yield the nodes and all nodes of the functions that they call, directly or not."""
    pending = list(nodes)
    seen = set[str]()
    while pending:
        node = pending.pop()
        yield node
        for name in {node.op, *node.functions} & functions.keys() - seen:
            seen.add(name)
            pending += functions[name]
