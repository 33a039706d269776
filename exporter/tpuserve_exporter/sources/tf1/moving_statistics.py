"""Finds the variable that keeps the moving average of a statistic, by its updates and not by its name.

An update is `v -= (v - s) * (1 - decay)` in any form: AssignSub, AssignAdd, Assign or AssignMovingAvg, possibly through
a biased average.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tpuserve_exporter.graphs.batch_statistics import is_norm
from tpuserve_exporter.graphs.graph_operations import is_variable
from tpuserve_exporter.graphs.graph_walk import Walk, node_of

if TYPE_CHECKING:
    from tensorflow.core.framework.graph_pb2 import GraphDef
    from tensorflow.core.framework.node_def_pb2 import NodeDef

_UPDATES = frozenset({"Assign", "AssignSub", "AssignAdd"})
_UPDATES |= {"AssignVariableOp", "AssignSubVariableOp", "AssignAddVariableOp"}
# Operations between the statistic and the variable in an update.
_PASSED = frozenset({"Sub", "Add", "AddV2", "AddN", "Mul", "RealDiv", "Div", "Identity", "Cast", "Reshape", "Squeeze"})
_PASSED |= {"ExpandDims", "StopGradient", "Switch", "Merge", "Select", "SelectV2", "IdentityN", "Enter", *_UPDATES}
_READS = frozenset({"ReadVariableOp", "Identity", "Enter", "Switch", "Cast", "RefSwitch"})


@dataclass(frozen=True, slots=True)
class Average:
    """`variable` keeps the moving average of the tensor `statistic`, which depends on inputs."""

    statistic: str
    variable: str


def find_averages(graph_def: "GraphDef", fetched: Sequence[str]) -> list[Average]:
    """Return the moving averages of tensors that the nodes `fetched` depend on."""
    walk = Walk(graph_def)
    served = walk.before(fetched)
    inputs = [node.name for node in graph_def.node if node.op.startswith("Placeholder")]
    return list(_Updates(walk, set(served), walk.after(inputs)).find())


def find_served_updates(graph_def: "GraphDef", fetched: Sequence[str]) -> "list[NodeDef]":
    """Return the updates of moving averages whose results the nodes `fetched` depend on."""
    walk = Walk(graph_def)
    updates = _Updates(walk, set(), set())
    return [
        node
        for node in walk.before(fetched).values()
        if node.op in ("Assign", "AssignSub", "AssignAdd") and updates.reads_itself(node)
    ]


class _Updates:
    """The updates of one graph. The outputs depend on `served` nodes, and `fed` nodes depend on inputs."""

    def __init__(self, walk: Walk, served: set[str], fed: set[str]) -> None:
        self._walk = walk
        self._served = served
        self._fed = fed

    def find(self) -> Iterator[Average]:
        updates = [node for node in self._walk.nodes.values() if node.op in _UPDATES and len(node.input) > 1]
        found: dict[str, str] = {}
        read: dict[str, set[str]] = {}
        for node in updates:
            variable = self._walk.root(node.input[0])
            statistics, variables = self._follow(node.input[1])
            if variable not in self._walk.nodes or not is_variable(self._walk.nodes[variable]):
                continue
            read.setdefault(variable, set()).update(variables)
            if len(statistics) == 1 and variable in variables:
                found.setdefault(variable, statistics.pop())
        yield from self._without_biased(found, read)

    def reads_itself(self, update: "NodeDef") -> bool:
        """Return whether the variable's new value depends on its old value."""
        return self._walk.root(update.input[0]) in self._follow(update.input[1])[1]

    def _without_biased(self, found: dict[str, str], read: dict[str, set[str]]) -> Iterator[Average]:
        """Yield the averages. A biased average starts at zero; the unbiased one computed from it replaces it."""
        for variable, statistic in found.items():
            shape = self._shape(variable)
            unbiased = [
                one
                for one, others in read.items()
                if variable in others
                and one != variable
                and self._shape(one) == shape
                and found.get(one, statistic) == statistic
            ]
            yield Average(statistic, unbiased[0] if unbiased else variable)

    def _shape(self, variable: str) -> bytes:
        shape: bytes = self._walk.nodes[variable].attr["shape"].shape.SerializeToString()
        return shape

    def _follow(self, tensor: str) -> tuple[set[str], set[str]]:
        """Return the nearest served tensors that an update depends on, and the variables that it reads.

        An update that depends on inputs in another way is not a moving average and has no tensors.
        """
        statistics, variables, otherwise = set[str](), set[str](), False
        waiting, seen = [tensor], set[str]()
        while waiting:
            tensor = waiting.pop()
            name = node_of(tensor)
            node = self._walk.nodes.get(name)
            if node is None or tensor in seen:
                continue
            seen.add(tensor)
            if is_variable(node):
                variables.add(name)
            elif node.op.startswith("FusedBatchNorm") and not is_norm(node):
                otherwise = True  # it returns the averages that it got
            elif name in self._fed and name in self._served:
                statistics.add(tensor.removesuffix(":0"))
            elif node.op in _PASSED or node.op in _READS:
                waiting += self._parts(node)
            elif name in self._fed:
                otherwise = True
        return set() if otherwise else statistics, variables

    def _parts(self, node: "NodeDef") -> list[str]:
        """Return the inputs whose values an operation forwards, without conditions and shapes."""
        values = [one for one in node.input if one[0] != "^"]
        if node.op in ("Select", "SelectV2"):
            return values[1:]
        if node.op in ("Switch", "Reshape", "ExpandDims", "RefSwitch"):
            return values[:1]
        return values
