"""A source's computation as one flat graph: without function calls, and with a name for each capture."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tpuserve_exporter.errors import BuilderFailed, CannotLower, reason_of
from tpuserve_exporter.graphs.changing_operations import is_write
from tpuserve_exporter.graphs.graph_walk import drop_unused_functions
from tpuserve_exporter.models.served_function import ServedFunction
from tpuserve_exporter.models.weights_check import named_variables

if TYPE_CHECKING:
    import tensorflow as tf
    from tensorflow.core.framework.graph_pb2 import GraphDef
    from tensorflow.core.framework.node_def_pb2 import NodeDef

_CALLS = frozenset({"PartitionedCall", "StatefulPartitionedCall"})
_LOWERED = "_lower_using_switch_merge"
_PROGRAM = "XlaCallModule"


@dataclass(slots=True)
class FlatGraph:
    """A flat graph. Callers may change `graph_def`. `feeds` are placeholders by input, `fetches` tensors by output.

    `captures` are the tensors behind the other placeholders: handles of variables and tables, and values. For captures
    that are variables, `variables` has the variable and `names` the framework's name of it.
    """

    graph_def: "GraphDef"
    feeds: Mapping[str, str]
    fetches: Mapping[str, str]
    captures: "Mapping[str, tf.Tensor]"
    variables: "Mapping[str, tf.Variable]"
    names: Mapping[str, str] = field(default_factory=dict)

    def import_into(
        self, graph: "tf.Graph", values: "Mapping[str, tf.Tensor]", fetched: Sequence[str]
    ) -> "list[tf.Tensor]":
        """Import the graph into the function under construction, with `given` values for the other placeholders."""
        import tensorflow as tf

        there = {node.name for node in self.graph_def.node}
        mapped = {f"{name}:0": value for name, value in values.items() if name in there}
        for name, captured in self.captures.items():
            if name in self.variables and name in there:
                graph.watch_variable(self.variables[name])  # else it is captured, but not saved
            if name in there:
                mapped[f"{name}:0"] = graph.capture(captured)
        part = type(self.graph_def)()
        part.CopyFrom(self.graph_def)
        del part.node[:]  # a replaced placeholder would stay and require a value
        part.node.extend(node for node in self.graph_def.node if f"{node.name}:0" not in mapped)
        tensors: list[tf.Tensor] = tf.graph_util.import_graph_def(
            part, input_map=mapped, return_elements=[_with_number(name) for name in fetched], name="graph"
        )
        return tensors


def flatten(function: ServedFunction) -> FlatGraph:
    """Trace `function`, and replace calls by the bodies of the called functions.

    Raises CannotLower if the graph is a StableHLO program or changes its variables, or BuilderFailed if it cannot be
    traced.
    """
    import tensorflow as tf

    names = list[str]()

    def call(*tensors: tf.Tensor) -> list[tf.Tensor]:
        outputs = function.call(**dict(zip(function.inputs, tensors, strict=True)))
        names[:] = outputs
        return list(outputs.values())

    try:
        traced = tf.function(call, autograph=False).get_concrete_function(*function.inputs.values())
    except (TypeError, ValueError, tf.errors.OpError) as error:
        raise BuilderFailed(f"cannot trace the model: {reason_of(error)}") from error
    graph_def = traced.graph.as_graph_def()
    drop_unused_functions(graph_def)
    _check(graph_def)
    if any(node.op in _CALLS for node in graph_def.node):
        graph_def = _inline(traced)
    placeholders = [tensor.op.name for tensor in traced.inputs]
    count = len(function.inputs)
    captures = dict(zip(placeholders[count:], traced.captured_inputs, strict=True))
    variables = {
        name: variable
        for name, handle in captures.items()
        for variable in traced.variables
        if variable.handle is handle
    }
    return FlatGraph(
        graph_def,
        dict(zip(function.inputs, placeholders[:count], strict=True)),
        dict(zip(names, (tensor.name.removesuffix(":0") for tensor in traced.outputs), strict=True)),
        captures,
        variables,
        _name(variables, function.trackables),
    )


def _with_number(tensor: str) -> str:
    return tensor if ":" in tensor else f"{tensor}:0"


def _name(variables: "Mapping[str, tf.Variable]", trackables: Sequence[Any]) -> dict[str, str]:
    known = {id(variable): name for name, variable in named_variables(trackables)}
    return {name: known.get(id(one), one.name.removesuffix(":0")) for name, one in variables.items()}


def _inline(traced: "tf.types.experimental.ConcreteFunction") -> "GraphDef":
    from tensorflow.python.framework.convert_to_constants import _run_inline_graph_optimization

    graph_def: GraphDef = _run_inline_graph_optimization(traced, lower_control_flow=False, aggressive_inlining=True)
    drop_unused_functions(graph_def)
    # Only the inlining needed loops as functions.
    for node in _all_nodes(graph_def):
        if _LOWERED in node.attr:
            node.attr[_LOWERED].b = True
    return graph_def


def _check(graph_def: "GraphDef") -> None:
    nodes = list(_all_nodes(graph_def))
    if any(node.op == _PROGRAM for node in nodes):
        raise CannotLower(
            "--freeze does not apply: the model is a StableHLO program (from JAX or PyTorch), whose batch norms "
            "only its compiler sees. Omit --freeze, or fold the batch norms before the export"
        )
    written = [f"{node.name} ({node.op})" for node in nodes if is_write(node)]
    if written:
        raise CannotLower(
            f"--freeze does not apply: the model changes variables when it is called: {', '.join(written[:5])}. If a "
            "batch norm is in training mode, call it with training=False. Otherwise omit --freeze"
        )


def _all_nodes(graph_def: "GraphDef") -> "Iterator[NodeDef]":
    yield from graph_def.node
    for function in graph_def.library.function:
        yield from function.node_def
