"""The parts of a serialized MetaGraphDef that the check of its operations needs, read without the large constants."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from tpuserve_formats.messages.fields import field_contents, message_fields
from tpuserve_formats.messages.official import FunctionDef, MetaGraphDef, NodeDef
from tpuserve_formats.safety.attributes import (
    HANDS_FUNCTIONS,
    called_by,
    danger_of_attributes,
    danger_of_calls,
    hands_functions,
    removed_text,
)

# Field numbers (saved_model.proto and meta_graph.proto in tensorflow/core/protobuf; graph.proto, function.proto,
# node_def.proto and attr_value.proto in tensorflow/core/framework).
_META_GRAPH, _GRAPH_DEF, _NODE, _LIBRARY, _FUNCTION = 2, 2, 1, 2, 1
_NODE_OF_FUNCTION = 3
_ATTRIBUTE, _VALUE_OF_ATTRIBUTE, _TENSOR = 5, 2, 8
_RESOURCE = 20  # DT_RESOURCE in types.proto
# First bytes of AttrValue.func, and of AttrValue.ListValue.func and AttrValue.placeholder. Every node with functions,
# or with attributes of its caller, has one of them.
_FUNC, _LIST_FUNC_OR_PLACEHOLDER = b"\x52", b"\x4a"
# Parsing a constant of this size holds the interpreter's lock for 10 us.
_LARGE_BYTES = 2**16
# The attribute with which TensorFlow's optimizer replaces a call by another function that has the same value.
_INTERCHANGEABLE: Final = "api_implements"


class Node(NamedTuple):
    """The parts of a NodeDef that the check needs.

    `is_empty_text` is True for a constant that is an empty string. `danger` is what the attributes make an allowed
    operation do, such as `reads files`; empty for nothing. `module` is the StableHLO program of XlaCallModule.
    `variable` identifies the variable of VarHandleOp: all nodes with the same value share it. An empty one identifies
    none, because TensorFlow may share it with other nodes. `shared_name` is the name under which a reference variable
    or a table is shared, in the same way. `removes` is the text that StaticRegexReplace removes from its input, if it
    does nothing else.
    """

    name: str
    op: str
    inputs: tuple[str, ...]
    functions: tuple[str, ...] = ()
    is_empty_text: bool = False
    danger: str = ""
    module: bytes = b""
    variable: str = ""
    shared_name: str = ""
    removes: str = ""


@dataclass(slots=True)
class Body:
    """The nodes of the graph or of a function by name. `name` is empty for the graph.

    `arguments` are the names of a function's inputs, and `handles` those that are variables or other resources.
    `returns` are the tensors that the function returns, by the names of its outputs in their order. `has_lists` is True
    if an argument takes several tensors. Functions with the same `interchangeable`, if not empty, may replace each
    other. `danger` is what the head of the function does; empty for nothing.
    """

    name: str = ""
    arguments: tuple[str, ...] = ()
    handles: frozenset[str] = frozenset()
    has_lists: bool = False
    interchangeable: str = ""
    danger: str = ""
    returns: Mapping[str, str] = field(default_factory=dict)
    nodes: dict[str, Node] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Graph:
    """A MetaGraphDef: its nodes, its functions by name, and `rest`, the message without the graph."""

    main: Body
    functions: Mapping[str, Body]
    rest: MetaGraphDef

    def operations(self) -> set[str]:
        """Return the operations of the graph and of the functions that it calls, directly or not."""
        operations, pending, seen = set[str](), [self.main], set[str]()
        for body in pending:
            for node in body.nodes.values():
                called = {node.op, *node.functions} & self.functions.keys() - seen
                seen |= called
                pending += [self.functions[name] for name in called]
                if node.op not in self.functions:
                    operations.add(node.op)
        return operations


def read_graphs(saved_model: bytes | memoryview) -> Iterator[Graph]:
    """Read each MetaGraphDef of a serialized SavedModel. Takes about 6 us for each node; blocks.

    Raises:
        FormatError: the bytes are not a SavedModel.
        DecodeError: a part of it is damaged.
    """
    return map(_read_graph, field_contents(memoryview(saved_model), _META_GRAPH))


def read_graph_def(graph_def: bytes) -> Graph:
    """Read a serialized GraphDef without a MetaGraphDef around it. Raises as `read_graphs`."""
    return _read_parts([memoryview(graph_def)], MetaGraphDef())


def _read_graph(meta_graph: memoryview) -> Graph:
    rest = b"".join(
        meta_graph[start:end] for number, start, _, end in message_fields(meta_graph) if number != _GRAPH_DEF
    )
    return _read_parts(field_contents(meta_graph, _GRAPH_DEF), MetaGraphDef.FromString(rest))


def _read_parts(graph_defs: Iterable[memoryview], rest: MetaGraphDef) -> Graph:
    main, functions = Body(), dict[str, Body]()
    for graph in graph_defs:
        _read_nodes(main, field_contents(graph, _NODE))
        for library in field_contents(graph, _LIBRARY):
            for function in field_contents(library, _FUNCTION):
                _read_function(function, functions)
    return Graph(main, functions, rest)


def _read_function(function: memoryview, functions: dict[str, Body]) -> None:
    head = b"".join(
        function[start:end] for number, start, _, end in message_fields(function) if number != _NODE_OF_FUNCTION
    )
    definition = FunctionDef.FromString(head)
    name = definition.signature.name
    # Several definitions of one name count as one function.
    body = functions.setdefault(name, Body(name))
    arguments = definition.signature.input_arg
    body.arguments = tuple(argument.name for argument in arguments)
    body.handles = frozenset(one.name for one in arguments if one.type == _RESOURCE or one.is_ref)
    body.has_lists |= any(argument.number_attr or argument.type_list_attr for argument in arguments)
    body.returns = {one.name: definition.ret[one.name] for one in definition.signature.output_arg}
    body.interchangeable = definition.attr[_INTERCHANGEABLE].s.decode(errors="replace")
    if hands_functions(attribute.default_value for attribute in definition.signature.attr):
        body.danger = HANDS_FUNCTIONS
    _read_nodes(body, field_contents(function, _NODE_OF_FUNCTION))


def _read_nodes(body: Body, parts: Iterator[memoryview]) -> None:
    for part in parts:
        serialized = bytes(part) if len(part) < _LARGE_BYTES else _without_constants(part)
        node = _read_node(serialized)
        # TensorFlow refuses a second node of one name. The check keeps both.
        body.nodes[node.name if node.name not in body.nodes else f"{node.name}\0{len(body.nodes)}"] = node


def _read_node(serialized: bytes) -> Node:
    node = NodeDef.FromString(serialized)
    # Serialized again, because a forged message may begin its fields in other ways, which a search would miss.
    canonical = node.SerializeToString()
    plain = Node(node.name, node.op, tuple(node.input), danger=danger_of_attributes(node))
    if _FUNC in canonical or _LIST_FUNC_OR_PLACEHOLDER in canonical:
        danger = plain.danger or danger_of_calls(node)
        plain = plain._replace(functions=tuple(one.name for one in called_by(node)), danger=danger)
    match node.op:
        case "Const":
            tensor = node.attr["value"].tensor
            return plain._replace(is_empty_text=list(tensor.string_val) == [b""] and not tensor.tensor_content)
        case "VarHandleOp":
            return plain._replace(variable=node.attr["shared_name"].s.decode(errors="replace"))
        case "VariableV2" | "Variable" | "HashTableV2" | "HashTable":
            return plain._replace(shared_name=node.attr["shared_name"].s.decode(errors="replace"))
        case "StaticRegexReplace":
            return plain._replace(removes=removed_text(node))
        case "XlaCallModule":
            return plain._replace(module=node.attr["module"].s)
    return plain


def _without_constants(node: memoryview) -> bytes:
    """Return a node without its attributes that are tensors, which may have any size."""
    return b"".join(
        node[start:end]
        for number, start, content, end in message_fields(node)
        if number != _ATTRIBUTE or not _is_tensor(node[content:end])
    )


def _is_tensor(attribute: memoryview) -> bool:
    values = list(field_contents(attribute, _VALUE_OF_ATTRIBUTE))
    fields = [(number, end - start) for value in values for number, start, _, end in message_fields(value)]
    # Fields that are numbers are not among them. They could replace the tensor by a type, for example.
    has_numbers = sum(size for _, size in fields) != sum(map(len, values))
    return {number for number, _ in fields} == {_TENSOR} and not has_numbers
