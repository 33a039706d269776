"""Finds variables and tables that a signature reads although neither the checkpoint nor an initialiser assigns them.

TensorFlow loads such a SavedModel, and then every request to the signature fails. The search finds only reads that
certainly happen, and counts every operation that may assign a value as one that does.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from tpuserve_formats.safety.graph import Body, Graph, Node
from tpuserve_formats.safety.reach import needed_nodes, node_of, with_index
from tpuserve_formats.safety.runs import initialisers, signatures, target

# Operations that call functions, with their inputs from this index on.
_CALLS: Final = {
    "BatchFunction": 0, "PartitionedCall": 0, "StatefulPartitionedCall": 0, "TPUPartitionedCall": 0,
    "StatelessWhile": 0, "While": 0, "Case": 1, "If": 1, "StatelessCase": 1, "StatelessIf": 1,
}  # fmt: skip
_BRANCHES: Final = frozenset({"Case", "If", "StatelessCase", "StatelessIf"})
_LOOPS: Final = frozenset({"StatelessWhile", "While"})
# Operations that fail unless their first input, a handle, has a value.
_READS: Final = frozenset(
    {"AssignAddVariableOp", "AssignSubVariableOp", "LookupTableFind", "LookupTableFindV2", "ReadVariableOp"}
    | {"ResourceGather", "ResourceGatherNd"}
)
_NEUTRAL: Final = frozenset(
    {"DisableCopyOnRead", "IsVariableInitialized", "LookupTableSize", "LookupTableSizeV2", "VarIsInitializedOp"}
    | {"VariableShape"}
)
# Operations that return a handle. With the handle of a reference variable, those without `Ref` return its value.
_PASSING: Final = frozenset({"Enter", "Identity", "RefEnter", "RefIdentity"})
_SWITCHES: Final = frozenset({"RefSwitch", "Switch"})
_MERGES: Final = frozenset({"Merge", "RefMerge"})
_CHOOSING: Final = _SWITCHES | _MERGES
_READS_REFERENCE: Final = frozenset({"Enter", "Identity", "Switch"})
# The shape of an input may be known without its value.
_SHAPES: Final = frozenset({"OnesLike", "Rank", "Shape", "ShapeN", "Size", "ZerosLike"})
_ASSIGN_NOTHING: Final = _READS | _NEUTRAL | _PASSING | _CHOOSING
# Begins of the names of operations that assign to their first input.
_ASSIGNS: Final = ("Assign", "InitializeTable", "LookupTableI", "Resource")
_MAX_DEPTH: Final = 64
# Maximum number of steps of a search, for each node of the graph and for any graph. A step takes less than 1 us. Graphs
# of real models need fewer than ten for each node.
_STEPS_OF_NODE: Final = 20
_STEPS_OF_GRAPH: Final = 1 << 17
_MOST_SHOWN: Final = 5
_LONGEST_NAME: Final = 100

_REFERENCE, _ARGUMENT, _INPUT = "reference variable", "argument", "input"
_KINDS: Final = {
    "VarHandleOp": "variable", "Variable": _REFERENCE, "VariableV2": _REFERENCE, "HashTable": "table",
    "HashTableV2": "table",
}  # fmt: skip


class State(NamedTuple):
    """A variable or a table of the graph. Within the search also an argument of a function."""

    kind: str
    name: str


_ANY: Final = State("any", "")


def find_unassigned(graph: Graph, *, restores: bool = True) -> dict[str, tuple[State, ...]]:
    """Return what each signature reads and nothing assigns. Other signatures are not in the result.

    `restores` is False for a SavedModel without the files of its variables. Takes about 10 us for each node; blocks.
    The search ends without a result if a graph takes much longer, as a forged one may.
    """
    try:
        found = _find(graph, restores=restores)
    except _TooManyStepsError:
        return {}
    # Tables are shared under made-up names. The node has the name that its author gave it.
    given = {node.shared_name: name for name, node in graph.main.nodes.items() if _KINDS.get(node.op) == "table"}
    return {
        name: tuple(sorted(one._replace(name=given.get(one.name, one.name)) for one in states))
        for name, states in found.items()
        if states
    }


def _find(graph: Graph, *, restores: bool) -> dict[str, set[State]]:
    bodies = [graph.main, *graph.functions.values()]
    steps = _STEPS_OF_GRAPH + _STEPS_OF_NODE * sum(len(body.nodes) for body in bodies)
    search, runs = _Search(graph, steps), signatures(graph.rest)
    restoration = [target(graph.rest.saver_def.restore_op_name)] if restores else []
    assigned = search.assigned([*restoration, *initialisers(graph.rest)], ())
    # Almost every search ends here.
    if all(
        assigned.issuperset(_made_by(body, node))
        for body in bodies
        for node in body.nodes.values()
        if node.op in _KINDS
    ):
        return {}
    for run in runs.values():
        assigned |= search.assigned(run.fetched, run.fed)
    if _ANY in assigned:
        return {}
    return {name: search.read(run.fetched, run.fed) - assigned for name, run in runs.items()}


def describe_unassigned(found: Mapping[str, tuple[State, ...]]) -> str:
    """Return a text such as `signature 'serving_default' reads the variable 'dense/kernel'`, with a few names each."""
    return " and ".join(f"signature {name!r} reads {_list(states)}" for name, states in found.items())


def explain_unassigned(found: Mapping[str, tuple[State, ...]]) -> str:
    """Return a sentence without a full stop, or "" if nothing is found."""
    return f"{describe_unassigned(found)}, which neither the checkpoint nor an initialiser assigns" if found else ""


def _list(states: tuple[State, ...]) -> str:
    kinds = sorted({one.kind.rpartition(" ")[2] for one in states})
    return " and ".join(_of_kind(kind, [one.name for one in states if one.kind.endswith(kind)]) for kind in kinds)


def _of_kind(kind: str, names: list[str]) -> str:
    more = f" and {len(names) - _MOST_SHOWN} more" if len(names) > _MOST_SHOWN else ""
    shown = ", ".join(repr(name[:_LONGEST_NAME]) for name in names[:_MOST_SHOWN])
    return f"the {kind}{'s' if len(names) > 1 else ''} {shown}{more}"


class _TooManyStepsError(Exception):
    """The search would take more steps than its limit."""


@dataclass(slots=True)
class _Search:
    """Reads and assignments in the graph. Those of a function are found once, in terms of its arguments.

    `steps_left` bounds the search. All methods raise _TooManyStepsError.
    """

    graph: Graph
    steps_left: int
    _read: dict[tuple[str, str], frozenset[State]] = field(default_factory=dict)
    _assigned: dict[str, frozenset[State]] = field(default_factory=dict)
    _sources: dict[str, dict[str, tuple[str, bool]]] = field(default_factory=dict)
    _depth: int = 0

    def read(self, tensors: Iterable[str], fed: Collection[str]) -> set[State]:
        """Return what the main graph reads to compute `tensors`."""
        return self._read_for(self.graph.main, tensors, fed)

    def assigned(self, roots: Iterable[str], fed: Collection[str]) -> set[State]:
        """Return what the main graph may assign in a run."""
        main = self.graph.main
        return self._assigned_by(main, [main.nodes[name] for name in needed_nodes(main, roots, fed)])

    def _read_for(self, body: Body, tensors: Iterable[str], fed: Collection[str]) -> set[State]:
        """Return what is read to compute `tensors` of a body, and the arguments that they need."""
        found, seen, pending = set[State](), set[str](), list(tensors)
        while pending:
            tensor = pending.pop()
            if tensor in seen or with_index(tensor) in fed:
                continue
            seen.add(tensor)
            node = body.nodes.get(node_of(tensor))
            if node is not None:
                self._spend(1 + len(node.inputs))
                states, needed = self._step(body, node, tensor)
                found |= states
                pending += needed
            elif body.name:
                found.add(State(_INPUT, tensor))
        return found

    def _step(self, body: Body, node: Node, tensor: str) -> tuple[set[State], Iterable[str]]:
        """Return what a node reads itself, and the inputs that its output `tensor` needs."""
        data = _data(node)
        if functions := self._called(node):
            if not self._is_call(node):
                return set(), data
            states = self._read_by_call(body, node, functions, _output(node, tensor))
            needed = [one.name for one in states if one.kind == _INPUT]
            return {one for one in states if one.kind != _INPUT}, [*data[: _CALLS.get(node.op, 0)], *needed]
        if node.op in _SHAPES:
            return set(), ()
        if node.op in _MERGES:  # of a loop, or of branches of which only one runs
            return set(), data if any(_is_next(body, one) for one in data) else ()
        if node.op in _READS:
            return {one for one in self._handles(body, *data[:1]) if one.kind != _REFERENCE}, data
        if node.op in _READS_REFERENCE:
            return {one for one in self._handles(body, *data[:1]) if one.kind == _REFERENCE}, data
        return set(), data

    def _read_by_call(self, body: Body, node: Node, functions: list[Body], output: str) -> set[State]:
        """Return what a call reads for one output, with the tensors that it needs as inputs."""
        parts = list[set[State]]()
        for function in functions:
            # A loop's condition, and its body if the loop has one variable, have one output.
            states = self._read_in(function, "0" if node.op in _LOOPS and len(function.returns) == 1 else output)
            given = _given(node, function)
            self._spend(len(states) + len(given))
            part = {one for one in states if one.kind not in (_ARGUMENT, _INPUT)}
            part |= {State(_INPUT, given[one.name]) for one in states if one.kind == _INPUT and one.name in given}
            for one in states:
                if one.kind == _ARGUMENT and one.name in given:
                    part.update(self._handles(body, given[one.name]))
            parts.append(part)
        return set.intersection(*parts) if node.op in _BRANCHES else set[State]().union(*parts)

    def _read_in(self, body: Body, output: str) -> frozenset[State]:
        """Return what a function reads for one output, by its name or number."""
        self._spend(len(body.returns))
        name = dict(zip(map(str, range(len(body.returns))), body.returns, strict=True)).get(output, output)
        key = (body.name, name)
        if key not in self._read:
            self._read[key] = frozenset()  # for functions that call themselves, which TensorFlow refuses
            if self._depth < _MAX_DEPTH and name in body.returns and not body.has_lists:
                self._depth += 1
                self._read[key] = frozenset(self._read_for(body, [body.returns[name]], ()))
                self._depth -= 1
        return self._read[key]

    def _assigned_by(self, body: Body, nodes: Iterable[Node]) -> set[State]:
        found = set[State]()
        for node in nodes:
            self._spend(1 + len(node.inputs))
            if functions := self._called(node):
                found |= self._assigned_by_call(body, node, functions)
            elif node.op not in _ASSIGN_NOTHING:
                # An unknown operation may assign to every handle that it gets.
                handles = [set(self._handles(body, tensor, any_branch=True)) for tensor in _data(node)]
                found = found.union(*handles)
                if node.op.startswith(_ASSIGNS) and not any(handles[:1]):
                    found.add(_ANY)
        return found

    def _assigned_by_call(self, body: Body, node: Node, functions: list[Body]) -> set[State]:
        found = set[State]()
        if not self._is_call(node):
            found = found.union(*(self._handles(body, tensor, any_branch=True) for tensor in _data(node)))
        for function in functions:
            given = _given(node, function)
            assigned = self._assigned_in(function)
            self._spend(len(assigned) + len(given))
            for one in assigned:
                if one.kind != _ARGUMENT:
                    found.add(one)
                elif self._is_call(node):
                    handles = set(self._handles(body, given[one.name], any_branch=True)) if one.name in given else set()
                    found |= handles or {_ANY}
        return found

    def _assigned_in(self, body: Body) -> frozenset[State]:
        if body.name not in self._assigned:
            if self._depth >= _MAX_DEPTH or body.has_lists:
                return frozenset({_ANY})
            self._assigned[body.name] = frozenset()  # as for reads
            self._depth += 1
            self._assigned[body.name] = frozenset(self._assigned_by(body, body.nodes.values()))
            self._depth -= 1
        return self._assigned[body.name]

    def _handles(self, body: Body, *tensors: str, any_branch: bool = False) -> Iterator[State]:
        """Yield the variables, tables and arguments whose handles `tensors` are, or may be with `any_branch`."""
        seen, pending = set[tuple[str, bool]](), [(tensor, False) for tensor in tensors]
        while pending:
            passed, is_value = pending.pop()
            tensor, became_value = self._source(body, passed)
            is_value |= became_value
            if (tensor, is_value) in seen:
                continue
            seen.add((tensor, is_value))
            node = body.nodes.get(node_of(tensor))
            self._spend(1 if node is None else 1 + len(node.inputs))
            if node is None:
                if tensor in body.handles:
                    yield State(_ARGUMENT, tensor)
            elif any_branch and node.op in _CHOOSING:
                pending += [(one, is_value or not node.op.startswith("Ref")) for one in _data(node)]
            elif not (is_value and _KINDS.get(node.op) == _REFERENCE):
                yield from _made_by(body, node)

    def _source(self, body: Body, tensor: str) -> tuple[str, bool]:
        """Return the tensor that operations pass on as `tensor`, and whether it is the value of a reference."""
        known = self._sources.setdefault(body.name, {})
        path = list[tuple[str, bool]]()
        while tensor not in known:
            node = body.nodes.get(node_of(tensor))
            data = _data(node) if node is not None and node.op in _PASSING else []
            known[tensor] = tensor, False  # the result for a cycle, which TensorFlow refuses
            if node is None or not data:
                break
            path.append((tensor, not node.op.startswith("Ref")))
            tensor = data[0]
            self._spend(1 + len(data))
        source, is_value = known[tensor]
        for passed, becomes_value in reversed(path):
            is_value |= becomes_value
            known[passed] = source, is_value
        return source, is_value

    def _spend(self, steps: int) -> None:
        self.steps_left -= steps
        if self.steps_left < 0:
            raise _TooManyStepsError

    def _called(self, node: Node) -> list[Body]:
        functions = self.graph.functions
        return [functions[name] for name in dict.fromkeys((node.op, *node.functions)) if name in functions]

    def _is_call(self, node: Node) -> bool:
        """Return whether the arguments of the called functions are the inputs of `node`."""
        return node.op in _CALLS or node.op in self.graph.functions


def _made_by(body: Body, node: Node) -> Iterator[State]:
    """Yield the variable, table or other resource that a node makes. A name in a function needs to be a shared one."""
    kind = _KINDS.get(node.op, "" if _data(node) or node.op == "Const" else "resource")
    name = node.variable if node.op == "VarHandleOp" else node.shared_name or ("" if body.name else node.name)
    if kind and name:
        yield State(kind, name)


def _given(node: Node, function: Body) -> dict[str, str]:
    """Return the inputs of a call by the names of the function's arguments."""
    return dict(zip(function.arguments, _data(node)[_CALLS.get(node.op, 0) :], strict=False))


def _data(node: Node) -> list[str]:
    return [one for one in node.inputs if not one.startswith("^")]


def _is_next(body: Body, tensor: str) -> bool:
    node = body.nodes.get(node_of(tensor))
    return node is not None and node.op in ("NextIteration", "RefNextIteration")


def _output(node: Node, tensor: str) -> str:
    """Return the number or name of a call's output from `call`, `call:1`, `call:output:1` or `call:name:0`."""
    _, *parts = tensor.split(":")
    if len(parts) == 2:
        return parts[1] if node.op in _CALLS else parts[0]
    return parts[0] if parts else "0"
