"""A TF1 graph cut down to what is served: placeholders in, tensors out, and the variables in between.

Both kinds of TF1 source come to one: a graph that a builder made, and the one of a `.meta` file after surgery.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from tpuserve_exporter.errors import SourceUnreadable, reason_of
from tpuserve_exporter.models.served_function import ServedFunction
from tpuserve_exporter.samples.samples import count_rows, take_rows
from tpuserve_exporter.signature import Signature, Tensors
from tpuserve_exporter.sources.graph_operations import check_operations, drop_unused_functions, is_variable
from tpuserve_exporter.sources.tf1.graph_variable import GraphVariable, Slice, read_variable
from tpuserve_exporter.sources.tf1.name_based import RestoredValues

if TYPE_CHECKING:
    import tensorflow as tf
    from tensorflow.core.framework.graph_pb2 import GraphDef
    from tensorflow.core.framework.variable_pb2 import VariableDef

_PLACEMENT = ("_class", "_output_shapes", "_xla_inferred_shapes")
# What a graph is imported under, so that no node of it meets the name of an argument.
_SCOPE = "graph"


@dataclass(frozen=True, slots=True)
class V1Graph:
    """`graph_def` holds what `fetches` need and no more. `feeds` are its placeholders, by the input's name.

    An input that no output depends on has no placeholder. `parts` are variables that are parts of others, by name.
    """

    graph_def: "GraphDef"
    inputs: "Mapping[str, tf.TensorSpec]"
    feeds: Mapping[str, str]
    fetches: Mapping[str, str]
    parts: Mapping[str, Slice] = field(default_factory=dict)

    def variables(self) -> list[GraphVariable]:
        """Raises SourceUnreadable for one whose shape the graph does not say."""
        variables = [read_variable(node) for node in self.graph_def.node if is_variable(node)]
        return [replace(one, part=self.parts.get(one.name)) for one in variables]

    def serve(self, values: RestoredValues) -> ServedFunction:
        """The graph as a function of its inputs, over variables with these values. Raises SourceUnreadable."""
        import tensorflow as tf

        # One after the other: no more than one value is in memory beside the variables.
        variables = {
            one.name: tf.Variable(values.read(one.name), dtype=one.dtype, name=one.name) for one in self.variables()
        }
        graph_def = self._without_variables()
        resources = {one.name for one in self.variables() if one.is_resource}

        def import_graph(*arguments: tf.Tensor) -> list[tf.Tensor]:
            graph = tf.compat.v1.get_default_graph()
            given = dict(zip(self.inputs, arguments, strict=True))
            mapped = {tensor: given[name] for name, tensor in self.feeds.items()}
            for name, variable in variables.items():
                graph.watch_variable(variable)  # or it would be captured, and not be written
                mapped[f"{name}:0"] = graph.capture(variable.handle) if name in resources else variable.read_value()
            outputs: list[tf.Tensor] = tf.graph_util.import_graph_def(
                graph_def, input_map=mapped, return_elements=list(self.fetches.values()), name=_SCOPE
            )
            return outputs

        # A tf.function would put what is in TensorFlow 1's loops in order with what is outside of them.
        try:
            wrapped = tf.compat.v1.wrap_function(import_graph, list(self.inputs.values()))
        except (TypeError, ValueError) as error:
            raise SourceUnreadable(f"the graph cannot be taken over: {reason_of(error)}") from error

        def call(**inputs: tf.Tensor) -> dict[str, tf.Tensor]:
            outputs = wrapped(*(inputs[name] for name in self.inputs))
            return dict(zip(self.fetches, outputs, strict=True))

        return ServedFunction(self.inputs, call, list(variables.values()))

    def _without_variables(self) -> "GraphDef":
        """The graph without what is given to it. A fetched variable is read by a node of its own."""
        kept = type(self.graph_def)()
        kept.CopyFrom(self.graph_def)
        del kept.node[:]
        fed = {tensor.removesuffix(":0") for tensor in self.feeds.values()}
        kept.node.extend(node for node in self.graph_def.node if not is_variable(node) and node.name not in fed)
        return kept


class SessionReference:
    """The source graph's own answers: in a session, over variables restored into it, as TensorFlow 1 runs it.

    `rows`, if given, is the one size of batch that the graph takes: what is asked is asked in batches of it, the last
    one filled up.
    """

    def __init__(self, graph: V1Graph, values: RestoredValues, rows: int | None = None) -> None:
        self._graph = graph
        self._values = values
        self._rows = rows
        self._session: tf.compat.v1.Session | None = None

    def run(self, signature: Signature, inputs: Tensors) -> Tensors:
        """Outputs by name. `signature` is the one there is."""
        return self.answer(inputs)

    def answer(self, inputs: Tensors) -> Tensors:
        """Outputs by name. Raises tf.errors.OpError where the graph does."""
        if self._session is None:
            self._session = self._open()
        if self._rows is None:
            return self._run_once(self._session, inputs)
        asked = count_rows(inputs)
        parts = [self._run_once(self._session, part) for part in _batches(inputs, self._rows)]
        return {name: np.concatenate([part[name] for part in parts])[:asked] for name in self._graph.fetches}

    def close(self) -> None:
        """Give the variables' memory back."""
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
    """`rows` at a time; where rows are lacking, the last is repeated."""
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
    """The part of `graph_def` that `fetches` need, placed nowhere; `graph_def` is changed. `variables` tell of parts.

    Raises SourceUnreadable and CannotLower for operations that cannot be run.
    """
    import tensorflow as tf

    nodes = [tensor.split(":")[0] for tensor in fetches.values()]
    for node in graph_def.node:
        # Where it was to run, which other nodes are gone, and what shapes it had before the inputs were replaced.
        for attribute in _PLACEMENT:
            node.attr.pop(attribute, None)
        node.device = ""
    part = tf.compat.v1.graph_util.extract_sub_graph(graph_def, list(dict.fromkeys(nodes)))
    drop_unused_functions(part)
    check_operations(part)
    there = {node.name for node in part.node}
    reached = {name: tensor for name, tensor in feeds.items() if tensor.split(":")[0] in there}
    parts = {
        one.variable_name.removesuffix(":0"): Slice.read(one.save_slice_info_def)
        for one in variables
        if one.save_slice_info_def.full_name
    }
    return V1Graph(part, dict(inputs), reached, dict(fetches), parts)


def variable_names(graph_def: "GraphDef") -> list[str]:
    """All variables of a graph, served or not."""
    return [node.name for node in graph_def.node if is_variable(node)]
