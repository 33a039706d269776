"""Walking a flat graph along its data: what a tensor is made of, and what is made of it."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tensorflow.core.framework.graph_pb2 import GraphDef
    from tensorflow.core.framework.node_def_pb2 import NodeDef

# They give the shape of what they take, not its values.
_SHAPES = frozenset({"Shape", "ShapeN", "Size", "Rank", "ZerosLike", "OnesLike", "TensorListLength"})
# A branch's result depends on the condition, which it waits for.
_WAITING = frozenset({"Merge"})
# What the number that says where a variable is kept passes through.
_PASSING = frozenset({"Identity", "Enter", "RefEnter", "Switch", "RefSwitch", "Merge", "RefIdentity", "IdentityN"})
_PASSING |= {"NextIteration", "Exit"}


def node_of(tensor: str) -> str:
    """Return the name of the node in an input of another node: `node`, `node:1` or `^node`."""
    return tensor.removeprefix("^").split(":")[0]


class Walk:
    """Nodes of one flat graph by name, and ways through them."""

    def __init__(self, graph_def: "GraphDef") -> None:
        self.nodes = {node.name: node for node in graph_def.node}

    def before(self, tensors: Iterable[str]) -> dict[str, "NodeDef"]:
        """The nodes whose values `tensors` are made of, their own among them, nearest first."""
        return self._collect(tensors, self.values_of)

    def reached(self, tensors: Iterable[str]) -> dict[str, "NodeDef"]:
        """Return the nodes that `tensors` depend on by data, shapes among it, nearest first."""
        return self._collect(tensors, lambda node: (one for one in node.input if one[0] != "^"))

    def needed(self, tensors: Iterable[str]) -> dict[str, "NodeDef"]:
        """The nodes that run when `tensors` are asked for: those that are only waited for, too."""
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
        """The inputs whose values a node's result depends on."""
        if node.op in _SHAPES:
            return []
        return [one for one in node.input if one[0] != "^" or node.op in _WAITING]

    def after(self, names: Iterable[str]) -> set[str]:
        """The nodes whose values depend on those of the nodes `names`, which are among them."""
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
        """The node that a resource or reference comes from: a variable, a table, or a captured one's placeholder."""
        node = self.nodes.get(node_of(tensor))
        seen = set[str]()
        while node is not None and node.op in _PASSING and node.name not in seen and node.input:
            seen.add(node.name)
            node = self.nodes.get(node_of(node.input[0]))
        return node_of(tensor) if node is None else node.name

    def back(self, tensor: str, passing: frozenset[str]) -> "Iterator[NodeDef]":
        """Nodes that `tensor` is made of: through operations of `passing`, and those that it comes to, once each."""
        waiting, seen = [node_of(tensor)], set[str]()
        while waiting:
            node = self.nodes.get(waiting.pop())
            if node is None or node.name in seen:
                continue
            seen.add(node.name)
            yield node
            if node.op in passing:
                waiting += [node_of(one) for one in node.input if one[0] != "^"]
