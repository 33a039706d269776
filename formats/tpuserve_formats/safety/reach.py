"""Reach: the nodes that one run of a graph may execute, and where the names of the files that they read come from.

A run is the restoration of variables, the initialisation, or a signature. TensorFlow's loader gives the first two the
names of the version's own files, as fed tensors (cc/saved_model/loader.cc and loader_util.cc).
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from tpuserve_formats.safety.graph import Body, Graph, Node

# Operations that call their function with their inputs from this index on.
_CALLS: Final = {
    "Case": 1, "If": 1, "PartitionedCall": 0, "StatefulPartitionedCall": 0, "StatelessCase": 1, "StatelessIf": 1,
}  # fmt: skip
_PASSING: Final = "Identity"
_READ, _ASSIGN, _IS_INITIALIZED = "ReadVariableOp", "AssignVariableOp", "VarIsInitializedOp"


class Origin(StrEnum):
    """The origin of a string."""

    VERSION = "a file of the version, named by the loader"
    ASSETS = "the directory of the version's assets"
    EMPTY = "an empty string in the graph"
    OTHER = "anything else, such as a request or a constant"


@dataclass(slots=True)
class Reach:
    """The nodes of one run, or of several. `fed` has the origin of each tensor that any of them feeds, as `node:0`.

    `nodes` are the reached nodes of the graph, by name. `arguments` are the origins of the inputs of each reached
    function, joined over all its calls.
    """

    graph: Graph
    fed: Mapping[str, Origin]
    nodes: dict[str, Node] = field(default_factory=dict)
    arguments: dict[str, list[Origin]] = field(default_factory=dict)
    _changed: list[str] = field(default_factory=list)
    # Handles of variables that hold only names of the version's files; None: not computed yet.
    _own: set[str] | None = None

    def run(self, roots: Iterable[str], cut: Collection[str]) -> None:
        """Add a run from `roots`: tensors to fetch, and `^node` for nodes to run. It feeds the tensors `cut`.

        Ends, even if functions call themselves.
        """
        needed = [name for name in needed_nodes(self.graph.main, roots, cut) if name not in self.nodes]
        self.nodes |= {name: self.graph.main.nodes[name] for name in needed}
        self._follow(self.graph.main, [self.nodes[name] for name in needed])
        self._follow_changed()

    def call(self, name: str, origins: Sequence[Origin]) -> None:
        """Add a call of a function. Origins of its last arguments may be missing."""
        if name in self.graph.functions:
            count = len(self.graph.functions[name].arguments)
            self._join(name, [*origins, *[Origin.OTHER] * count][:count])
            self._follow_changed()

    def bodies(self) -> Iterator[tuple[Body, Iterable[Node]]]:
        """Yield the graph with its reached nodes, and each reached function with all its nodes."""
        yield self.graph.main, self.nodes.values()
        for name in self.arguments:
            yield self.graph.functions[name], self.graph.functions[name].nodes.values()

    def origin(self, body: Body, node: Node, index: int) -> Origin:
        """Return the origin of an input of a node."""
        data = [tensor for tensor in node.inputs if not tensor.startswith("^")][: index + 1]
        if index >= len(data) or not all(_is_single(body, tensor) for tensor in data):
            return Origin.OTHER
        end = body.nodes.get(node_of(data[index]))
        is_fed = not body.name and with_index(data[index]) in self.fed
        if end is None or not end.removes or is_fed or end.op in self.graph.functions or end.name in body.arguments:
            return self._trace(body, data[index])
        return self._origin_without_end(body, end)

    def _origin_without_end(self, body: Body, node: Node) -> Origin:
        """Return the origin of the result of a node that removes the name of an asset from its input.

        Decision Forests find the directory of their model so. No asset may be in a separate directory, and only one
        name is removed, which ends with `done`. Otherwise, the rest of the path could lead out of the version.
        """
        names = [one.filename for one in self.graph.rest.asset_file_def]
        is_name = node.removes in names and node.removes.endswith("done") and not any("/" in one for one in names)
        if not is_name or not node.inputs or not _is_single(body, node.inputs[0]):
            return Origin.OTHER
        return Origin.ASSETS if self._trace(body, node.inputs[0]) is Origin.VERSION else Origin.OTHER

    def _follow(self, body: Body, nodes: Iterable[Node]) -> None:
        """Pass the origins of the arguments to every function that the nodes may call."""
        for node in nodes:
            for name in self._called_by(node):
                self._join(name, self._passed(body, node, name))

    def _follow_changed(self) -> None:
        while self._changed:
            body = self.graph.functions[self._changed.pop()]
            self._follow(body, body.nodes.values())

    def _called_by(self, node: Node) -> Iterator[str]:
        functions = self.graph.functions
        for name in (node.op, *node.functions):
            if name in functions:
                yield name
                if functions[name].interchangeable:
                    yield from (
                        other.name
                        for other in functions.values()
                        if other.interchangeable == functions[name].interchangeable
                    )

    def _passed(self, body: Body, node: Node, name: str) -> list[Origin]:
        first = 0 if node.op == name else _CALLS.get(node.op)
        count = len(self.graph.functions[name].arguments)
        if first is None or self.graph.functions[name].has_lists:
            return [Origin.OTHER] * count
        return [self.origin(body, node, first + index) for index in range(count)]

    def _join(self, name: str, passed: list[Origin]) -> None:
        known = self.arguments.get(name)
        joined = (
            passed if known is None else [a if a == b else Origin.OTHER for a, b in zip(known, passed, strict=True)]
        )
        if joined != known:
            self.arguments[name] = joined
            self._changed.append(name)

    def _trace(self, body: Body, tensor: str) -> Origin:
        for _ in body.nodes:
            if not body.name and with_index(tensor) in self.fed:
                return self.fed[with_index(tensor)]
            node = body.nodes.get(node_of(tensor))
            if body.name and tensor in body.arguments and node is None:
                return self.arguments[body.name][body.arguments.index(tensor)]
            # A node with the name of an argument is ambiguous.
            if node is None or node.op in self.graph.functions or node.name in body.arguments:
                return Origin.OTHER
            if node.is_empty_text:
                return Origin.EMPTY
            if node.op == _READ and not body.name and self._holds_own_file(node):
                return Origin.VERSION
            if node.op != _PASSING or not node.inputs or not _is_single(body, node.inputs[0]):
                return Origin.OTHER
            tensor = node.inputs[0]
        return Origin.OTHER

    def _holds_own_file(self, read: Node) -> bool:
        """Return whether the graph assigns only names of the version's files to a variable, and functions none at all.

        TensorFlow 2 keeps the path of an asset in such a variable.
        """
        if self._own is None:
            main = self.graph.main.nodes
            handles = {node.name: node.variable for node in main.values() if node.variable}
            others = {node.variable for one in self.graph.functions.values() for node in one.nodes.values()}
            for node in main.values():
                others |= {handles.get(node_of(tensor), "") for tensor in node.inputs if not self._keeps(node)}
            self._own = {name for name, variable in handles.items() if variable not in others}
        return bool(read.inputs) and node_of(read.inputs[0]) in self._own

    def _keeps(self, user: Node) -> bool:
        """Return whether a node that uses a variable only reads it, or assigns the name of a file of the version."""
        if user.op == _ASSIGN and len(user.inputs) > 1:
            return self.fed.get(with_index(user.inputs[1])) is Origin.VERSION
        return user.op in (_READ, _IS_INITIALIZED) and user.op not in self.graph.functions


def needed_nodes(main: Body, roots: Iterable[str], cut: Collection[str]) -> Iterator[str]:
    """Yield the name of every node that a run from `roots` may execute. Arguments as for `Reach.run`.

    A fed tensor replaces its node, except for the node's other outputs.
    """
    seen, pending = set[str](), list(roots)
    while pending:
        tensor = pending.pop()
        name = node_of(tensor)
        if name in seen or name not in main.nodes or with_index(tensor) in cut:
            continue
        seen.add(name)
        yield name
        pending += main.nodes[name].inputs


def _is_single(body: Body, tensor: str) -> bool:
    """Return whether a name in a node's inputs is one tensor. In a function, it may be a list, or an empty one.

    The name `node:out` is the list of all tensors of an output (tensorflow/core/framework/function.cc).
    """
    if not body.name:
        return True
    return tensor.count(":") == 2 if ":" in tensor else tensor in body.arguments and not body.has_lists


def node_of(tensor: str) -> str:
    """Return the node's name from a tensor name in another node's inputs: `node`, `node:1`, `node:out:0` or `^node`."""
    return tensor.removeprefix("^").partition(":")[0]


def with_index(tensor: str) -> str:
    """Return `node:0` for `node`. A control input `^node` stays, because a feed does not replace it."""
    return tensor if ":" in tensor or tensor.startswith("^") else f"{tensor}:0"
