"""Drops operations that only report or check values in training. The graph computes the same without them."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from tpuserve_exporter.sources.graph_operations import pass_on, replace_operation

if TYPE_CHECKING:
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
