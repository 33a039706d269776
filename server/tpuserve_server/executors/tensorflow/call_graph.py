"""Check of a SavedModel's function calls, before TensorFlow reads the graph.

TensorFlow replaces each call by the nodes of the called function, level by level. A function that calls itself, even
under a condition, fills the memory or ends the process with a stack overflow (TensorFlow 2.21). The same holds for
calls that are nested too deeply, and for functions that double their size at each level.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from tpuserve_formats.messages.official import NodeDef
from tpuserve_server.core.errors import InvalidArgument
from tpuserve_server.core.storage import show_name
from tpuserve_server.executors.tensorflow.meta_graph import message_fields

# Field numbers (saved_model.proto and meta_graph.proto in tensorflow/core/protobuf; graph.proto, function.proto,
# op_def.proto, node_def.proto and attr_value.proto in tensorflow/core/framework).
_META_GRAPH, _GRAPH_DEF, _NODE, _LIBRARY, _FUNCTION = 2, 2, 1, 2, 1
_SIGNATURE, _NODE_OF_FUNCTION, _NAME_OF_SIGNATURE = 1, 3, 1
_ATTRIBUTE, _VALUE_OF_ATTRIBUTE, _TENSOR = 5, 2, 8
# First bytes of AttrValue.func and AttrValue.ListValue.func, which every node with a function has.
_FUNC, _LIST_FUNC = b"\x52", b"\x4a"

# TensorFlow 2.21 takes a second for 120 levels, minutes for 2,000, and ends the process at 10,000.
_MAX_DEPTH: Final = 256
# Nodes that the replacement of calls may add. TensorFlow needs more than a second for each 10,000.
_MAX_ADDED_NODES: Final = 1_000_000
_MOST_SHOWN = 100
# Parsing a constant of this size holds the interpreter's lock for 10 us.
_LARGE_BYTES = 2**16


@dataclass(slots=True)
class _Body:
    """The number of nodes in a graph or a function, and how often it refers to each name that may be a function's."""

    nodes: int = 0
    called: Counter[str] = field(default_factory=Counter)

    def add(self, part: memoryview) -> None:
        node = bytes(part) if len(part) < _LARGE_BYTES else _without_constant(part)
        parsed = NodeDef.FromString(node)
        self.nodes += 1
        self.called[parsed.op] += 1
        if _FUNC in node or _LIST_FUNC in node:
            self.called.update(_functions_of(parsed))


@dataclass(frozen=True, slots=True)
class _Expansion:
    """Number of nodes of a graph or a function, and levels of calls, with all calls replaced."""

    nodes: int
    depth: int


def _without_constant(node: memoryview) -> bytes:
    """Return a node without its attributes that are tensors, which may have any size."""
    return b"".join(
        node[start:end]
        for number, start, content, end in message_fields(node)
        if number != _ATTRIBUTE or not _is_tensor(node[content:end])
    )


def _is_tensor(attribute: memoryview) -> bool:
    fields = [number for value in _parts(attribute, _VALUE_OF_ATTRIBUTE) for number, *_ in message_fields(value)]
    return bool(fields) and set(fields) == {_TENSOR}


def _functions_of(node: NodeDef) -> Iterator[str]:
    return (one.name for value in node.attr.values() for one in (value.func, *value.list.func) if one.name)


def check_calls(saved_model: bytes) -> None:
    """Check the functions of a serialized SavedModel. Takes about 5 us for each node; blocks.

    Raises:
        InvalidArgument: a function calls itself, calls are nested too deeply, or the graph has too many nodes with
            all calls replaced. The message names the function. Also raised if the bytes are not a SavedModel.
        DecodeError: a node is damaged.
    """
    for meta_graph in _parts(memoryview(saved_model), _META_GRAPH):
        for graph in _parts(meta_graph, _GRAPH_DEF):
            _check_graph(graph)


def _check_graph(graph: memoryview) -> None:
    main = _Body()
    for node in _parts(graph, _NODE):
        main.add(node)
    functions: dict[str, _Body] = {}
    for library in _parts(graph, _LIBRARY):
        for function in _parts(library, _FUNCTION):
            # Several definitions of one name count as one function.
            body = functions.setdefault(_name_of(function), _Body())
            for node in _parts(function, _NODE_OF_FUNCTION):
                body.add(node)
    measured: dict[str, _Expansion] = {}
    for name in functions:
        _measure(name, functions, measured)
    expanded = _expand(main, measured).nodes
    if expanded > _MAX_ADDED_NODES + main.nodes + sum(body.nodes for body in functions.values()):
        raise InvalidArgument(f"its functions call each other so often that the graph has {_count(expanded)} nodes")


def _measure(start: str, functions: Mapping[str, _Body], measured: dict[str, _Expansion]) -> None:
    """Measure a function and all that it calls, callees first."""
    path = dict.fromkeys([start] if start not in measured else [])
    pending = [iter(functions[name].called) for name in path]
    while pending:
        name = next((one for one in pending[-1] if one in functions and one not in measured), None)
        if name is None:
            pending.pop()
            done, _ = path.popitem()
            measured[done] = _expand(functions[done], measured)
            if measured[done].depth > _MAX_DEPTH:
                raise InvalidArgument(f"its function {_shown(done)} nests more than {_MAX_DEPTH} calls")
        elif name in path:
            raise InvalidArgument(f"its function {_shown(name)} calls itself, which TensorFlow cannot run")
        else:
            path[name] = None
            pending.append(iter(functions[name].called))


def _expand(body: _Body, measured: Mapping[str, _Expansion]) -> _Expansion:
    called = [(count, measured[name]) for name, count in body.called.items() if name in measured]
    nodes = body.nodes + sum(count * one.nodes for count, one in called)
    return _Expansion(nodes, 1 + max((one.depth for _, one in called), default=0))


def _count(nodes: int) -> str:
    """Return a number of nodes for people. It may have hundreds of digits."""
    return f"{nodes:,}" if nodes < 10**12 else "more than 10^12"


def _name_of(function: memoryview) -> str:
    names = [
        bytes(name).decode(errors="replace")
        for signature in _parts(function, _SIGNATURE)
        for name in _parts(signature, _NAME_OF_SIGNATURE)
    ]
    return names[-1] if names else ""


def _parts(message: memoryview, wanted: int) -> Iterator[memoryview]:
    """Yield the contents of a field of a serialized message."""
    return (message[start:end] for number, _, start, end in message_fields(message) if number == wanted)


def _shown(name: str) -> str:
    return f"'{show_name(name[:_MOST_SHOWN])}'"
