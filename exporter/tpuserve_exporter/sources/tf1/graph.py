"""The served part of a TF1 graph: placeholders, output tensors, and the variables between them.

Both kinds of TF1 source produce it: the graph of a builder, and the graph of a `.meta` file after surgery.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from tpuserve_exporter.errors import SourceUnreadable, reason_of
from tpuserve_exporter.graphs.graph_walk import check_operations, drop_unused_functions, is_variable, node_of
from tpuserve_exporter.models.served_function import ServedFunction
from tpuserve_exporter.sources.tf1.name_based import GraphVariable, RestoredValues, Slice, read_variable
from tpuserve_exporter.terms.samples import count_rows, take_rows
from tpuserve_exporter.terms.signature import Signature, Tensors

if TYPE_CHECKING:
    import tensorflow as tf
    from tensorflow.core.framework.graph_pb2 import GraphDef
    from tensorflow.core.framework.variable_pb2 import VariableDef

_PLACEMENT = ("_class", "_output_shapes", "_xla_inferred_shapes")
# Import scope, so that no node's name collides with the name of an argument.
_SCOPE = "graph"


@dataclass(frozen=True, slots=True)
class V1Graph:
    """A graph that contains only the nodes that `fetches` need. `feeds` are its placeholders, by input name.

    An input that no output depends on has no placeholder. `parts` are the slices of partitioned variables, by name.
    """

    graph_def: "GraphDef"
    inputs: "Mapping[str, tf.TensorSpec]"
    feeds: Mapping[str, str]
    fetches: Mapping[str, str]
    parts: Mapping[str, Slice] = field(default_factory=dict)

    def variables(self) -> list[GraphVariable]:
        """Return the graph's variables. Raises SourceUnreadable if a variable's shape is unknown."""
        variables = [read_variable(node) for node in self.graph_def.node if is_variable(node)]
        return [replace(one, part=self.parts.get(one.name)) for one in variables]

    def serve(self, values: RestoredValues) -> ServedFunction:
        """Return the graph as a function of its inputs, with variables of these values. Raises SourceUnreadable."""
        import tensorflow as tf

        # Values are read one by one, so that memory holds at most one value in addition to the variables.
        variables = {
            one.name: tf.Variable(values.read(one.name), dtype=one.dtype, name=one.name) for one in self.variables()
        }
        graph_def = self._without_variables()
        resources = {one.name for one in self.variables() if one.is_resource}

        def import_graph(*arguments: tf.Tensor) -> list[tf.Tensor]:
            graph = tf.compat.v1.get_default_graph()
            values = dict(zip(self.inputs, arguments, strict=True))
            mapped = {tensor: values[name] for name, tensor in self.feeds.items()}
            for name, variable in variables.items():
                graph.watch_variable(variable)  # else it is captured, but not saved
                mapped[f"{name}:0"] = graph.capture(variable.handle) if name in resources else variable.read_value()
            outputs: list[tf.Tensor] = tf.graph_util.import_graph_def(
                graph_def, input_map=mapped, return_elements=list(self.fetches.values()), name=_SCOPE
            )
            return outputs

        # A tf.function would add control dependencies between nodes in and out of TensorFlow 1 loops.
        try:
            wrapped = tf.compat.v1.wrap_function(import_graph, list(self.inputs.values()))
        except (TypeError, ValueError) as error:
            raise SourceUnreadable(f"cannot import the graph: {reason_of(error)}") from error

        def call(**inputs: tf.Tensor) -> dict[str, tf.Tensor]:
            outputs = wrapped(*(inputs[name] for name in self.inputs))
            return dict(zip(self.fetches, outputs, strict=True))

        return ServedFunction(self.inputs, call, list(variables.values()))

    def _without_variables(self) -> "GraphDef":
        """Return the graph without fed placeholders and without variables."""
        kept = type(self.graph_def)()
        kept.CopyFrom(self.graph_def)
        del kept.node[:]
        fed = {tensor.removesuffix(":0") for tensor in self.feeds.values()}
        kept.node.extend(node for node in self.graph_def.node if not is_variable(node) and node.name not in fed)
        return kept


class SessionReference:
    """Answers of the source graph in a session, with restored variables, as TensorFlow 1 runs it.

    `rows`, if given, is the only batch size that the graph takes. Requests then run in batches of that size. The
    last batch is padded.
    """

    def __init__(self, graph: V1Graph, values: RestoredValues, rows: int | None = None) -> None:
        self._graph = graph
        self._values = values
        self._rows = rows
        self._session: tf.compat.v1.Session | None = None

    def run(self, signature: Signature, inputs: Tensors) -> Tensors:
        """Return the outputs by name. The graph has only one signature, so `signature` is ignored."""
        return self.answer(inputs)

    def answer(self, inputs: Tensors) -> Tensors:
        """Return the outputs by name. Raises tf.errors.OpError if the graph does."""
        if self._session is None:
            self._session = self._open()
        if self._rows is None:
            return self._run_once(self._session, inputs)
        count = count_rows(inputs)
        parts = [self._run_once(self._session, part) for part in _batches(inputs, self._rows)]
        return {name: np.concatenate([part[name] for part in parts])[:count] for name in self._graph.fetches}

    def close(self) -> None:
        """Free the memory of the variables."""
        if self._session is not None:
            self._session.close()
            self._session = None

    def _run_once(self, session: "tf.compat.v1.Session", inputs: Tensors) -> Tensors:
        feeds = {f"{_SCOPE}/{tensor}": inputs[name] for name, tensor in self._graph.feeds.items()}
        fetches = {name: f"{_SCOPE}/{tensor}" for name, tensor in self._graph.fetches.items()}
        outputs: Tensors = session.run(fetches, feeds)
        return outputs

    def _open(self) -> "tf.compat.v1.Session":
        import tensorflow as tf

        graph = tf.Graph()
        with graph.as_default():
            tf.graph_util.import_graph_def(self._graph.graph_def, name=_SCOPE)
            assigned = [self._assign(graph, one) for one in self._graph.variables()]
        session = tf.compat.v1.Session(graph=graph)
        for name, value, assign in assigned:
            session.run(assign, {value: self._values.read(name).numpy()})
        return session

    def _assign(self, graph: "tf.Graph", variable: GraphVariable) -> "tuple[str, tf.Tensor, tf.Operation]":
        import tensorflow as tf

        value = tf.compat.v1.placeholder(variable.dtype, variable.shape)
        node = graph.get_tensor_by_name(f"{_SCOPE}/{variable.name}:0")
        raw = tf.raw_ops.AssignVariableOp if variable.is_resource else tf.raw_ops.Assign
        target = {"resource" if variable.is_resource else "ref": node}
        assign = raw(**target, value=value)
        return variable.name, value, getattr(assign, "op", assign)


def _batches(inputs: Tensors, rows: int) -> Iterator[Tensors]:
    """Yield batches of `rows`. Pad the last one by repeating its last row."""
    for start in range(0, count_rows(inputs), rows):
        part = take_rows(inputs, slice(start, start + rows))
        lacking = rows - count_rows(part)
        yield {name: np.concatenate([value, np.repeat(value[-1:], lacking, axis=0)]) for name, value in part.items()}


def cut_graph(
    graph_def: "GraphDef",
    inputs: "Mapping[str, tf.TensorSpec]",
    feeds: Mapping[str, str],
    fetches: Mapping[str, str],
    variables: "Iterable[VariableDef]" = (),
) -> V1Graph:
    """Return the part of `graph_def` that `fetches` need, without device placements. Changes `graph_def`.

    `variables` describe the slices of partitioned variables. Raises SourceUnreadable or CannotLower for operations that
    cannot run here.
    """
    import tensorflow as tf

    nodes = [node_of(tensor) for tensor in fetches.values()]
    for node in graph_def.node:
        # These attributes hold old placements, references to removed nodes, and shapes from before the inputs changed.
        for attribute in _PLACEMENT:
            node.attr.pop(attribute, None)
        node.device = ""
    part = tf.compat.v1.graph_util.extract_sub_graph(graph_def, list(dict.fromkeys(nodes)))
    drop_unused_functions(part)
    check_operations(part)
    there = {node.name for node in part.node}
    reached = {name: tensor for name, tensor in feeds.items() if node_of(tensor) in there}
    parts = {
        one.variable_name.removesuffix(":0"): Slice.read(one.save_slice_info_def)
        for one in variables
        if one.save_slice_info_def.full_name
    }
    return V1Graph(part, dict(inputs), reached, dict(fetches), parts)


def variable_names(graph_def: "GraphDef") -> list[str]:
    """Return the names of all variables of a graph, served or not."""
    return [node.name for node in graph_def.node if is_variable(node)]
