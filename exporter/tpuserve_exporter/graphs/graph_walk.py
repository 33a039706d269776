"""Walks a flat graph along its data, to the nodes that a tensor depends on, or to the nodes that depend on it."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tensorflow.core.framework.graph_pb2 import GraphDef
    from tensorflow.core.framework.node_def_pb2 import NodeDef

# Operations whose results depend on the shape of their input, and not on its values.
_SHAPES = frozenset({"Shape", "ShapeN", "Size", "Rank", "ZerosLike", "OnesLike", "TensorListLength"})
# The result of a branch depends on its condition, which is a control input.
_WAITING = frozenset({"Merge"})
# Operations that return a resource or a reference unchanged.
_PASSING = frozenset({"Identity", "Enter", "RefEnter", "Switch", "RefSwitch", "Merge", "RefIdentity", "IdentityN"})
_PASSING |= {"NextIteration", "Exit"}


def node_of(tensor: str) -> str:
    """Return the node's name from a tensor name in another node's inputs: `node`, `node:1` or `^node`."""
    return tensor.removeprefix("^").split(":")[0]


class Walk:
    """The nodes of one flat graph by name, and walks along them."""

    def __init__(self, graph_def: "GraphDef") -> None:
        self.nodes = {node.name: node for node in graph_def.node}

    def before(self, tensors: Iterable[str]) -> dict[str, "NodeDef"]:
        """Return the nodes whose values `tensors` depend on, their own nodes included, nearest first."""
        return self._collect(tensors, self.values_of)

    def reached(self, tensors: Iterable[str]) -> dict[str, "NodeDef"]:
        """Return the nodes that `tensors` depend on by values or shapes, nearest first."""
        return self._collect(tensors, lambda node: (one for one in node.input if one[0] != "^"))

    def needed(self, tensors: Iterable[str]) -> dict[str, "NodeDef"]:
        """Return the nodes that run for `tensors`, control inputs included."""
        return self._collect(tensors, lambda node: node.input)

    def _collect(self, tensors: Iterable[str], inputs: "Callable[[NodeDef], Iterable[str]]") -> dict[str, "NodeDef"]:
        found = {name: self.nodes[name] for name in map(node_of, tensors) if name in self.nodes}
        waiting = list(found.values())
        for node in waiting:
            for tensor in inputs(node):
                name = node_of(tensor)
                if name not in found and name in self.nodes:
                    found[name] = self.nodes[name]
                    waiting.append(self.nodes[name])
        return found

    def values_of(self, node: "NodeDef") -> list[str]:
        """Return the inputs whose values the result of `node` depends on."""
        if node.op in _SHAPES:
            return []
        return [one for one in node.input if one[0] != "^" or node.op in _WAITING]

    def after(self, names: Iterable[str]) -> set[str]:
        """Return the nodes whose values depend on the nodes `names`, these included."""
        consumers = defaultdict[str, list[str]](list)
        for node in self.nodes.values():
            for tensor in self.values_of(node):
                consumers[node_of(tensor)].append(node.name)
        found = set(names)
        waiting = list(found)
        for name in waiting:
            for consumer in consumers[name]:
                if consumer not in found:
                    found.add(consumer)
                    waiting.append(consumer)
        return found

    def root(self, tensor: str) -> str:
        """Return the node that makes a resource or reference: a variable, a table, or the placeholder of a capture."""
        node = self.nodes.get(node_of(tensor))
        seen = set[str]()
        while node is not None and node.op in _PASSING and node.name not in seen and node.input:
            seen.add(node.name)
            node = self.nodes.get(node_of(node.input[0]))
        return node_of(tensor) if node is None else node.name

    def back(self, tensor: str, passing: frozenset[str]) -> "Iterator[NodeDef]":
        """Yield each node on the way back from `tensor`. Continue only through operations in `passing`."""
        waiting, seen = [node_of(tensor)], set[str]()
        while waiting:
            node = self.nodes.get(waiting.pop())
            if node is None or node.name in seen:
                continue
            seen.add(node.name)
            yield node
            if node.op in passing:
                waiting += [node_of(one) for one in node.input if one[0] != "^"]
