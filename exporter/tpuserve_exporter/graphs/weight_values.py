"""Finds tensors of a graph that depend only on its weights, and computes their values."""

from collections.abc import Iterable, Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from typing import TYPE_CHECKING, Any

import numpy as np

from tpuserve_exporter.graphs.flat_graph import FlatGraph
from tpuserve_exporter.graphs.graph_walk import node_of
from tpuserve_exporter.terms.signature import Array

if TYPE_CHECKING:
    import tensorflow as tf
    from tensorflow.core.framework.node_def_pb2 import NodeDef

# Size in bytes up to which a value may be larger than its variables, for example in a wider dtype.
_SMALL = 1 << 16
_AT_A_TIME = 1 << 26
_READ = "ReadVariableOp"
_FRAMES = frozenset({"Enter", "Exit", "Merge", "Switch", "NextIteration", "LoopCond", "RefEnter", "RefSwitch"})


class WeightValues:
    """The tensors of one graph that depend only on weights. The graph must not change while an instance is in use.

    A large value that takes more bytes than its variables does not count, so that int8 weights stay int8.
    """

    def __init__(self, flat: FlatGraph) -> None:
        import tensorflow as tf

        self._flat = flat
        self.nodes = {node.name: node for node in flat.graph_def.node}
        self._imported = tf.compat.v1.wrap_function(self._import, [])
        self.order = list(self._sort())
        self.made_of: dict[str, frozenset[str]] = {}
        for node in self.order:
            sources = self._sources(node)
            if sources is not None:
                self.made_of[node.name] = sources

    def follows(self, tensor: str) -> bool:
        """Return whether the tensor depends on variables, and only on variables and constants."""
        return bool(self.made_of.get(node_of(tensor)))

    def is_computed(self, tensor: str) -> bool:
        """Return whether the tensor depends only on variables and is not itself a variable's value."""
        return self.follows(tensor) and self.nodes[node_of(tensor)].op != _READ

    def is_known(self, tensor: str) -> bool:
        """Return whether the tensor is a constant or depends only on variables."""
        return node_of(tensor) in self.made_of

    def tensor(self, name: str) -> "tf.Tensor":
        """Return the tensor, with its dtype and shape if known."""
        node, _, index = name.partition(":")
        return self._imported.graph.get_tensor_by_name(f"graph/{node}:{index or 0}")

    def shape(self, name: str) -> list[int | None] | None:
        shape = self.tensor(name).shape
        return None if shape.rank is None else shape.as_list()

    def compute(self, names: Iterable[str]) -> Iterator[tuple[str, Array]]:
        """Yield names and values in parts of about 64 MB. Each part runs the graph once, so larger parts are faster."""
        for part in self._divide(dict.fromkeys(names)):
            computed = self._imported.prune([], [self.tensor(name) for name in part])()
            yield from zip(part, (np.asarray(value.numpy()) for value in computed), strict=True)

    def _divide(self, names: Iterable[str]) -> Iterator[list[str]]:
        part, size = list[str](), 0
        for name in names:
            tensor = self.tensor(name)
            size += _size_of(tensor)
            part.append(name)
            if size > _AT_A_TIME:
                yield part
                part, size = [], 0
        if part:
            yield part

    def name_of(self, tensor: str) -> str:
        """Return the variable's name if the tensor depends on one variable, else the node's name."""
        sources = self.made_of[node_of(tensor)]
        return self._flat.names[min(sources)] if len(sources) == 1 else node_of(tensor)

    def _import(self) -> None:
        import tensorflow as tf

        self._flat.import_into(tf.compat.v1.get_default_graph(), {}, [])

    def _sort(self) -> "Iterator[NodeDef]":
        """Yield the nodes in topological order, without nodes of TensorFlow 1 loops and nodes that depend on them."""
        waits = {name: {node_of(one) for one in node.input if one[0] != "^"} for name, node in self.nodes.items()}
        while True:
            try:
                yield from (self.nodes[name] for name in TopologicalSorter(waits).static_order())
            except CycleError as error:
                for name in error.args[1]:
                    waits.pop(name, None)
                for before in waits.values():
                    before.difference_update(error.args[1])
            else:
                return

    def _sources(self, node: "NodeDef") -> frozenset[str] | None:
        """Return the variables that a node depends on, or None if it also depends on anything else."""
        values = [name for name in node.input if name[0] != "^"]
        if node.op == "Const" or self._is_captured_value(node.name):
            return frozenset()
        if node.op == _READ and node_of(values[0]) in self._flat.variables:
            return frozenset({node_of(values[0])})
        if not values or not all(map(self.is_known, values)) or not _is_pure(node):
            return None
        sources = frozenset[str]().union(*(self.made_of[node_of(name)] for name in values))
        return sources if not sources or self._is_smaller(node, sources) else None

    def _is_captured_value(self, name: str) -> bool:
        """Return whether a capture is a tensor, and not the handle of a variable or a table."""
        captured = self._flat.captures.get(name)
        return captured is not None and _is_number(captured.dtype)

    def _is_smaller(self, node: "NodeDef", sources: frozenset[str]) -> bool:
        outputs = self._imported.graph.get_operation_by_name(f"graph/{node.name}").outputs
        if not all(one.shape.is_fully_defined() and _is_number(one.dtype) for one in outputs):
            return False
        size = sum(map(_size_of, outputs))
        return size <= max(_SMALL, sum(_size_of(self._flat.variables[name]) for name in sources))


def _size_of(tensor: "tf.Tensor | tf.Variable") -> int:
    return int(tensor.shape.num_elements() * tensor.dtype.size)


def _is_number(dtype: "tf.DType") -> bool:
    return bool(dtype.is_floating or dtype.is_integer or dtype.is_complex or dtype.is_bool)


def _is_pure(node: "NodeDef") -> bool:
    """Return whether the node always computes the same result from the same inputs, and calls no function."""
    from tensorflow.python.framework import op_def_registry

    definition = op_def_registry.get(node.op)
    if definition is None or definition.is_stateful or node.op in _FRAMES:
        return False
    return not any(value.HasField("func") or value.list.func for value in node.attr.values())


def count_uses(nodes: "Mapping[str, NodeDef]") -> "dict[str, list[tuple[NodeDef, int]]]":
    """Return the nodes that use each tensor, with the number of the input, by tensor."""
    uses: dict[str, list[tuple[Any, int]]] = {}
    for node in nodes.values():
        for index, name in enumerate(node.input):
            if name[0] != "^":
                uses.setdefault(name, []).append((node, index))
    return uses
