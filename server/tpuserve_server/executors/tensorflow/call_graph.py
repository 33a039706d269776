"""Check of a SavedModel's function calls, before TensorFlow reads the graph.

TensorFlow replaces each call by the nodes of the called function, level by level. A function that calls itself, even
under a condition, fills the memory or ends the process with a stack overflow (TensorFlow 2.21). The same holds for
calls that are nested too deeply, and for functions that double their size at each level.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from tpuserve_formats.safety.graph import Body, Graph
from tpuserve_server.core.errors import InvalidArgument
from tpuserve_server.core.storage import show_name

# TensorFlow 2.21 takes a second for 120 levels, minutes for 2,000, and ends the process at 10,000.
_MAX_DEPTH: Final = 256
# Nodes that the replacement of calls may add. TensorFlow needs more than a second for each 10,000.
_MAX_ADDED_NODES: Final = 1_000_000
_MOST_SHOWN = 100


@dataclass(frozen=True, slots=True)
class _Calls:
    """The number of nodes in a graph or a function, and how often it refers to each name that may be a function's."""

    nodes: int
    called: Counter[str]

    @classmethod
    def of(cls, body: Body) -> "_Calls":
        called = Counter(name for node in body.nodes.values() for name in (node.op, *node.functions))
        return cls(len(body.nodes), called)


@dataclass(frozen=True, slots=True)
class _Expansion:
    """Number of nodes of a graph or a function, and levels of calls, with all calls replaced."""

    nodes: int
    depth: int


def check_calls(graphs: Iterable[Graph]) -> None:
    """Check the functions of a SavedModel's graphs. Blocks.

    Raises:
        InvalidArgument: a function calls itself, calls are nested too deeply, or the graph has too many nodes with
            all calls replaced. The message names the function.
    """
    for graph in graphs:
        _check_graph(graph)


def _check_graph(graph: Graph) -> None:
    main, functions = _Calls.of(graph.main), {name: _Calls.of(body) for name, body in graph.functions.items()}
    measured: dict[str, _Expansion] = {}
    for name in functions:
        _measure(name, functions, measured)
    expanded = _expand(main, measured).nodes
    if expanded > _MAX_ADDED_NODES + main.nodes + sum(body.nodes for body in functions.values()):
        raise InvalidArgument(f"its functions call each other so often that the graph has {_count(expanded)} nodes")


def _measure(start: str, functions: Mapping[str, _Calls], measured: dict[str, _Expansion]) -> None:
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


def _expand(body: _Calls, measured: Mapping[str, _Expansion]) -> _Expansion:
    called = [(count, measured[name]) for name, count in body.called.items() if name in measured]
    nodes = body.nodes + sum(count * one.nodes for count, one in called)
    return _Expansion(nodes, 1 + max((one.depth for _, one in called), default=0))


def _count(nodes: int) -> str:
    """Return a number of nodes for people. It may have hundreds of digits."""
    return f"{nodes:,}" if nodes < 10**12 else "more than 10^12"


def _shown(name: str) -> str:
    return f"'{show_name(name[:_MOST_SHOWN])}'"
