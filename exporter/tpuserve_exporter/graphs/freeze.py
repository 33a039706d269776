"""Turns a source's function into one that gives the same answers with less work per request."""

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tpuserve_exporter.graphs.flat_graph import FlatGraph, flatten
from tpuserve_exporter.graphs.graph_walk import drop_unused_functions, node_of, pass_on, replace_operation
from tpuserve_exporter.graphs.scale_folding import Folding, ScaleFolder, apply_folding
from tpuserve_exporter.graphs.weight_values import WeightValues
from tpuserve_exporter.models.served_function import ServedFunction
from tpuserve_exporter.terms.signature import Array

if TYPE_CHECKING:
    import tensorflow as tf
    from tensorflow.core.framework.graph_pb2 import GraphDef
    from tensorflow.core.framework.node_def_pb2 import NodeDef


# These operations return their input.
_PASSING = frozenset({"CheckNumerics", "CheckNumericsV2", "Print", "DebugIdentity", "DebugIdentityV2"})
# These return their input too. Every trace has them, so the count of dropped operations omits them.
_GRADIENTS = frozenset({"StopGradient", "PreventGradient"})
_FRAMES = frozenset({"Enter", "Exit", "NextIteration"})
_SUMMARIES = ("ScalarSummary", "HistogramSummary", "ImageSummary", "AudioSummary", "TensorSummary", "MergeSummary")


def drop_training_operations(graph_def: "GraphDef") -> dict[str, int]:
    """Remove assertions, prints, NaN checks and summaries, also in functions. Return the number of each.

    Also remove control inputs, because no remaining operation has side effects. If the graph has TensorFlow 1
    loops they stay, because they place nodes in a loop.
    """
    dropped: Counter[str] = Counter()
    _drop(graph_def.node, dropped)
    for function in graph_def.library.function:
        gone = _drop(function.node_def, dropped)
        for key in [key for key, name in function.control_ret.items() if name in gone]:
            del function.control_ret[key]
            function.signature.control_output.remove(key)
    if not any(node.op in _FRAMES for node in graph_def.node):
        for node in graph_def.node:
            _set_inputs(node, [name for name in node.input if not name.startswith("^")])
    _rename_functions(graph_def)
    return dict(dropped)


def _rename_functions(graph_def: "GraphDef") -> None:
    """Rename changed functions, because TensorFlow already knows the source's functions by their names."""
    functions = graph_def.library.function
    names = {function.signature.name: f"{function.signature.name}_frozen" for function in functions}
    for function in functions:
        function.signature.name = names[function.signature.name]
    for node in (*graph_def.node, *(node for function in functions for node in function.node_def)):
        node.op = names.get(node.op, node.op)
        for value in node.attr.values():
            for called in (value.func, *value.list.func) if value.HasField("func") else value.list.func:
                called.name = names.get(called.name, called.name)


def _drop(nodes: "Sequence[NodeDef]", dropped: Counter[str]) -> set[str]:
    """Remove nodes without effect. Return their names; no node waits for them any more."""
    gone = {node.name for node in nodes if _only_reports(node.op)}
    for node in nodes:
        if node.name in gone or node.op in _PASSING:
            dropped[node.op] += 1
        if node.name in gone:
            replace_operation(node, "NoOp", ())
        elif node.op in _PASSING | _GRADIENTS:
            controls = [name for name in node.input if name.startswith("^")]
            pass_on(node, next(name for name in node.input if name not in controls), node.attr["T"].type, *controls)
        if any(name.removeprefix("^") in gone for name in node.input):
            _set_inputs(node, [name for name in node.input if name.removeprefix("^") not in gone])
    return gone


def _only_reports(operation: str) -> bool:
    return operation in ("Assert", "PrintV2") or operation.removesuffix("V2").removeprefix("Write") in _SUMMARIES


def _set_inputs(node: "NodeDef", inputs: Iterable[str]) -> None:
    names = list(inputs)
    del node.input[:]
    node.input.extend(names)


@dataclass(frozen=True, slots=True)
class Frozen:
    """The frozen function, and the numbers of scales folded into kernels, values computed, and operations dropped."""

    function: ServedFunction
    folded: int
    computed: int
    dropped: Mapping[str, int]


def freeze(function: ServedFunction) -> Frozen:
    """Fold, compute and drop what is possible. The given function keeps its variables.

    Raises CannotLower if the function cannot be frozen, or BuilderFailed if it cannot be traced.
    """
    flat = flatten(function)
    dropped = drop_training_operations(flat.graph_def)
    flat = _prune(_rename(flat, _passed_on(flat.graph_def.node)))
    made = _MadeVariables()
    flat, folded = _fold(flat, made)
    flat, computed = _compute(flat, made)
    return Frozen(_serve(function, flat, made), folded, computed, dropped)


@dataclass(slots=True)
class _MadeVariables:
    """New variables, by placeholder. Equal values share one variable."""

    variables: "dict[str, tf.Variable]" = field(default_factory=dict)
    _by_content: "dict[str, tf.Variable]" = field(default_factory=dict)
    _names: set[str] = field(default_factory=set)

    def make(self, value: Array, name: str) -> str:
        """Return the name of a placeholder for a variable of this value. Name the variable like `name`."""
        import tensorflow as tf

        content = np.ascontiguousarray(value).reshape(-1).view(np.uint8).data
        key = f"{value.dtype}{value.shape}{hashlib.sha256(content).hexdigest()}"
        if key not in self._by_content:
            self._by_content[key] = tf.Variable(value, trainable=False, name=self._free_name(name))
        placeholder = f"frozen_{len(self.variables)}"
        self.variables[placeholder] = self._by_content[key]
        return placeholder

    def _free_name(self, name: str) -> str:
        names = (name if number == 0 else f"{name}_{number}" for number in range(len(self._names) + 1))
        free = next(one for one in names if one not in self._names)
        self._names.add(free)
        return free


def _fold(flat: FlatGraph, made: _MadeVariables) -> tuple[FlatGraph, int]:
    values = WeightValues(flat)
    count, renamed = 0, dict[str, str]()
    for folding in ScaleFolder(values, list(flat.fetches.values())).fold():
        renamed |= _apply(folding, values, flat.graph_def, made)
        count += 1
    return _prune(_rename(flat, renamed)), count


def _apply(folding: Folding, values: WeightValues, graph_def: "GraphDef", made: _MadeVariables) -> dict[str, str]:
    """Change the folded nodes. Return the tensors that other tensors replace."""
    name = values.name_of(folding.scaled.kernel)
    kernel = made.make(folding.kernel, f"{name}/folded")
    shift = None
    if folding.shift is not None:
        dtype = values.tensor(folding.scaled.last.name).dtype.as_numpy_dtype
        shift = made.make(folding.shift.astype(dtype), f"{name}/shift")
        _add_placeholder(graph_def, shift, made)
    _add_placeholder(graph_def, kernel, made)
    return apply_folding(folding, kernel, shift)


def _compute(flat: FlatGraph, made: _MadeVariables) -> tuple[FlatGraph, int]:
    """Compute what depends only on variables, and replace it by the values where other nodes use it."""
    values = WeightValues(flat)
    taken = [name for node in values.nodes.values() if not values.is_known(node.name) for name in node.input]
    wanted = [name for name in dict.fromkeys([*taken, *flat.fetches.values()]) if name[0] != "^"]
    renamed = {
        name: made.make(value, f"{values.name_of(name)}/computed")
        for name, value in values.compute(name for name in wanted if values.is_computed(name))
    }
    for placeholder in renamed.values():
        _add_placeholder(flat.graph_def, placeholder, made)
    return _prune(_rename(flat, renamed)), len(renamed)


def _add_placeholder(graph_def: "GraphDef", name: str, made: _MadeVariables) -> None:
    node = graph_def.node.add(name=name, op="Placeholder")
    node.attr["dtype"].type = made.variables[name].dtype.as_datatype_enum
    node.attr["shape"].shape.CopyFrom(made.variables[name].shape.as_proto())


def _passed_on(nodes: "Iterable[NodeDef]") -> dict[str, str]:
    found = dict[str, str]()
    for node in nodes:
        if node.op in ("Identity", "IdentityN"):
            for index, value in enumerate(name for name in node.input if name[0] != "^"):
                found[f"{node.name}:{index}" if index else node.name] = value
    return found


def _rename(flat: FlatGraph, renamed: Mapping[str, str]) -> FlatGraph:
    """Replace each tensor in `renamed` in the inputs of all nodes and in the fetches."""

    def resolve(name: str) -> str:
        name = name.removesuffix(":0")
        while name in renamed:
            name = renamed[name].removesuffix(":0")
        return name

    for node in flat.graph_def.node:
        names = [resolve(name) for name in node.input]
        del node.input[:]
        node.input.extend(names)
    return replace(flat, fetches={name: resolve(tensor) for name, tensor in flat.fetches.items()})


def _prune(flat: FlatGraph) -> FlatGraph:
    """Return the graph with only the nodes, functions and captures that its outputs need."""
    import tensorflow as tf

    wanted = [node_of(tensor) for tensor in flat.fetches.values()]
    part = tf.compat.v1.graph_util.extract_sub_graph(flat.graph_def, list(dict.fromkeys(wanted)))
    there = {node.name for node in part.node}
    part.library.CopyFrom(flat.graph_def.library)
    drop_unused_functions(part)
    variables = {name: one for name, one in flat.variables.items() if name in there}
    captures = {name: one for name, one in flat.captures.items() if name in there}
    return replace(flat, graph_def=part, variables=variables, captures=captures)


def _serve(function: ServedFunction, flat: FlatGraph, made: _MadeVariables) -> ServedFunction:
    """Return the graph as a function of its inputs, with the remaining variables and the new ones."""
    import tensorflow as tf

    there = {node.name for node in flat.graph_def.node}
    new = {name: variable for name, variable in made.variables.items() if name in there}

    def import_graph(*arguments: "tf.Tensor") -> "list[tf.Tensor]":
        graph = tf.compat.v1.get_default_graph()
        feeds = {flat.feeds[name]: value for name, value in zip(function.inputs, arguments, strict=True)}
        for variable in new.values():
            graph.watch_variable(variable)
        feeds |= {name: variable.read_value() for name, variable in new.items()}
        return flat.import_into(graph, feeds, list(flat.fetches.values()))

    # A tf.function would add control dependencies between nodes in and out of TensorFlow 1 loops.
    wrapped = tf.compat.v1.wrap_function(import_graph, list(function.inputs.values()))

    def call(**inputs: "tf.Tensor") -> "dict[str, tf.Tensor]":
        outputs = wrapped(*(inputs[name] for name in function.inputs))
        return dict(zip(flat.fetches, outputs, strict=True))

    kept = [*flat.variables.values(), *new.values()]
    trackables = [*_distinct(kept), *_tables(function.trackables, flat)]
    return ServedFunction(function.inputs, call, trackables, function.ragged)


def _distinct(things: Sequence[Any]) -> list[Any]:
    return list({id(one): one for one in things}.values())


def _tables(trackables: Sequence[Any], flat: FlatGraph) -> list[Any]:
    """Return the lookup tables and similar objects of the graph: owners of captured handles, except variables."""
    import tensorflow as tf

    handles = [one for name, one in flat.captures.items() if name not in flat.variables]
    things = [thing for root in trackables for thing in tf.train.TrackableView(root).descendants()]
    return _distinct([one for one in things if any(getattr(one, "resource_handle", None) is each for each in handles)])
