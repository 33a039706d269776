"""Replaces function calls by the bodies of the functions."""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from tpuserve_exporter.graphs.graph_walk import node_of

if TYPE_CHECKING:
    from tensorflow.core.framework.function_pb2 import FunctionDef
    from tensorflow.core.framework.graph_pb2 import GraphDef
    from tensorflow.core.framework.node_def_pb2 import NodeDef
    from tensorflow.core.framework.op_def_pb2 import OpDef

_CALLS = frozenset({"PartitionedCall", "StatefulPartitionedCall", "TPUPartitionedCall", "BatchFunction"})
_BRANCHES = frozenset({"If", "StatelessIf", "Case", "StatelessCase"})
_LOOPS = frozenset({"While", "StatelessWhile"})
# Attributes with the functions of a two-sided branch and of a loop. `Case` has a list instead.
_PARTS = ("then_branch", "else_branch", "cond", "body")
# After this many iterations, a value has reached all variables of most loops.
_ITERATIONS = 2
# Attribute of the nodes within a loop, which run more often than once.
REPEATED = "_tpuserve_repeated"


def inline_calls(graph_def: "GraphDef", tensors: Sequence[str]) -> "tuple[GraphDef, list[str]]":
    """Return a copy without calls that computes the same, and the names of `tensors` in it.

    Branches and loops keep their functions.
    """
    inlining = _Inlining(graph_def, control_flow=False)
    return inlining.run(), [inlining.resolve(one) for one in tensors]


def inline_to_analyse(graph_def: "GraphDef", tensors: Sequence[str]) -> "tuple[GraphDef, list[str]]":
    """Return a copy without functions, for analysis only, and the names of `tensors` in it.

    A `Merge` of all sides with the condition as a control input replaces a branch. The first iterations replace a loop,
    and their nodes have the attribute `REPEATED`. A recursive call stays.
    """
    inlining = _Inlining(graph_def, control_flow=True)
    return inlining.run(), [inlining.resolve(one) for one in tensors]


class _Inlining:
    """One pass over one graph. `_renamed` has the replacements for outputs of removed nodes, by tensor."""

    def __init__(self, graph_def: "GraphDef", *, control_flow: bool) -> None:
        self._source = graph_def
        self._functions = {function.signature.name: function for function in graph_def.library.function}
        self._control_flow = control_flow
        self._flat = type(graph_def)()
        self._flat.versions.CopyFrom(graph_def.versions)
        if not control_flow:
            self._flat.library.CopyFrom(graph_def.library)
        self._renamed: dict[str, str] = {}
        self._ends: dict[str, list[str]] = {}
        self._taken = {node.name for node in graph_def.node}

    def run(self) -> "GraphDef":
        for node in self._source.node:
            self._add(node, node.name, frozenset())
        for node in self._flat.node:
            inputs = [end for name in node.input for end in self._resolve(name)]
            del node.input[:]
            node.input.extend(dict.fromkeys(inputs) if all(one[0] == "^" for one in inputs) else inputs)
        return self._flat

    def _add(self, node: "NodeDef", name: str, within: frozenset[str]) -> None:
        """Add `node` under `name`, or the functions that it calls. Its inputs have the names of the flat graph.

        `within` are the functions around the node. A call of one of them stays a call, or inlining would not end.
        """
        called = self._called(node)
        if not called or not within.isdisjoint(called):
            added = self._flat.node.add()
            added.CopyFrom(node)
            added.name = name
        elif node.op in _BRANCHES:
            self._branch(node, called, name, within)
        elif node.op in _LOOPS:
            self._loop(node, name, within)
        else:
            self._call(called[0], name, list(node.input), within)

    def _called(self, node: "NodeDef") -> list[str]:
        """Return the functions that replace `node`: one for a call, all for a branch or a loop."""
        names = [node.op]
        if node.op in _CALLS:
            names = [node.attr["f"].func.name]
        elif self._control_flow and node.op in _BRANCHES | _LOOPS:
            parts = [node.attr[part].func.name for part in _PARTS if part in node.attr]
            names = parts or [one.name for one in node.attr["branches"].list.func]
        return [one for one in names if one in self._functions]

    def _call(self, function: str, name: str, inputs: Sequence[str], within: frozenset[str]) -> None:
        results, ends = self._body(function, name, inputs, within)
        for index, result in enumerate(results):
            self._renamed[_tensor(name, index)] = result
        self._ends[name] = [*results, *ends]

    def _branch(self, node: "NodeDef", functions: Sequence[str], name: str, within: frozenset[str]) -> None:
        condition, *inputs = node.input
        data_inputs = [one for one in inputs if one[0] != "^"]
        results, ends = zip(*(self._body(one, name, data_inputs, within) for one in functions), strict=True)
        self._merge(node, name, results, [condition], [end for one in ends for end in one])

    def _loop(self, node: "NodeDef", name: str, within: frozenset[str]) -> None:
        condition, body = (node.attr[part].func.name for part in ("cond", "body"))
        states, ends, conditions = [[one for one in node.input if one[0] != "^"]], list[str](), list[str]()
        outside = len(self._flat.node)
        for _ in range(_ITERATIONS):
            conditions += self._body(condition, name, states[-1], within)[0]
            state, ended = self._body(body, name, states[-1], within)
            states.append(state)
            ends += ended
        for repeated in self._flat.node[outside:]:
            repeated.attr[REPEATED].b = True
        self._merge(node, name, states, conditions, ends)

    def _merge(
        self, node: "NodeDef", name: str, results: Sequence[Sequence[str]], conditions: Sequence[str], ends: list[str]
    ) -> None:
        """Add one node for each output of a branch or a loop, which may be any of `results`."""
        kinds = node.attr["Tout"].list.type or node.attr["T"].list.type
        for index, merged in enumerate(zip(*results, strict=True)):
            added = self._flat.node.add(name=self._free(f"{name}/merged"), op="Merge")
            added.input.extend([*merged, *(f"^{node_of(one)}" for one in conditions)])
            added.attr["T"].type = kinds[index]
            added.attr["N"].i = len(merged)
            self._renamed[_tensor(name, index)] = added.name
        self._ends[name] = [*(one for result in results for one in result), *ends]

    def _free(self, name: str) -> str:
        """Return `name`, or a similar name that no node has, and reserve it."""
        names = itertools.chain([name], (f"{name}_{number}" for number in itertools.count(1)))
        free: str = next(one for one in names if one not in self._taken)
        self._taken.add(free)
        return free

    def _body(
        self, function: str, name: str, inputs: Sequence[str], within: frozenset[str]
    ) -> tuple[list[str], list[str]]:
        """Add the nodes of `function`, called with `inputs`, below `name`. Return its results and control outputs."""
        body = self._functions[function]
        data_inputs = [one for one in inputs if one[0] != "^"]
        order = [one for one in inputs if one[0] == "^"]
        arguments = dict(zip((one.name for one in body.signature.input_arg), data_inputs, strict=False))
        offsets = {node.name: _offsets(node, self._functions) for node in body.node_def}
        names = {node.name: self._free(f"{name}/{node.name}") for node in body.node_def}

        def resolve(tensor: str) -> str:
            inner, _, rest = tensor.removeprefix("^").partition(":")
            if tensor.startswith("^"):
                return f"^{node_of(arguments[inner]) if inner in arguments else names[inner]}"
            if inner in arguments:
                return str(arguments[inner])
            output, _, index = rest.partition(":")
            return _tensor(names[inner], offsets[inner](output) + int(index or 0))

        for node in body.node_def:
            inner = type(node)()
            inner.CopyFrom(node)
            inner.attr.pop("_class", None)  # the nodes that it names have other names here
            del inner.input[:]
            inner.input.extend([*map(resolve, node.input), *(order if not node.input else ())])
            self._add(inner, names[node.name], within | {function})
        results = [resolve(body.ret[one.name]) for one in body.signature.output_arg]
        return results, [resolve(f"^{end}") for end in body.control_ret.values()]

    def _resolve(self, tensor: str) -> Iterator[str]:
        """Yield the tensors that replace `tensor`. For `^call`, these are all its results and control outputs."""
        if tensor.startswith("^"):
            if tensor[1:] not in self._ends:
                yield tensor
                return
            for end in self._ends[tensor[1:]]:
                yield from (f"^{node_of(one)}" for one in self._resolve(end))
            return
        name = tensor.removesuffix(":0")
        while name in self._renamed:
            name = self._renamed[name].removesuffix(":0")
        yield name

    def resolve(self, tensor: str) -> str:
        """Return the tensor of the flat graph that replaces `tensor`."""
        return next(iter(self._resolve(tensor)))


def _tensor(name: str, index: int) -> str:
    return f"{name}:{index}" if index else name


def _offsets(node: "NodeDef", functions: "Mapping[str, FunctionDef]") -> Callable[[str], int]:
    """Return a function from the name of an output of `node` to the number of its first tensor."""
    from tensorflow.python.framework import op_def_registry

    definition: OpDef | None = functions[node.op].signature if node.op in functions else op_def_registry.get(node.op)
    counts: dict[str, int] = {}
    count = 0
    for output in definition.output_arg if definition is not None else ():
        counts[output.name] = count
        count += _size_of(output, node)
    return lambda name: counts.get(name, 0)


def _size_of(output: "OpDef.ArgDef", node: "NodeDef") -> int:
    if output.number_attr:
        return int(node.attr[output.number_attr].i)
    if output.type_list_attr:
        return len(node.attr[output.type_list_attr].list.type)
    return 1
