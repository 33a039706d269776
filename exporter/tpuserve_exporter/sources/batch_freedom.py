"""Graphs for TPUs are built for one size of batch, and write it into their reshapes: here they are made to take any."""

from dataclasses import replace
from typing import TYPE_CHECKING

from tpuserve_exporter.errors import OptionConflict, reason_of
from tpuserve_exporter.sources.tpu_surgery import node_of
from tpuserve_exporter.sources.v1_graph import V1Graph

if TYPE_CHECKING:
    import tensorflow as tf
    from tensorflow.core.framework.graph_pb2 import GraphDef


def free_reshapes(graph: V1Graph, rows: int) -> tuple[V1Graph, bool]:
    """The graph with reshapes to `[rows, ...]`, or a multiple, that take what there is; and whether there were any.

    The rest of such a shape is what it was in batches of `rows`: for those, nothing changes.
    """
    import tensorflow as tf

    built = import_graph(_with_rows(graph, rows))
    freed = tf.compat.v1.GraphDef()
    freed.CopyFrom(graph.graph_def)
    constants = {node.name: node for node in freed.node if node.op == "Const"}
    changed = False
    for node in list(freed.node):
        if node.op != "Reshape" or node_of(node.input[1]) not in constants:
            continue
        shape = built.get_tensor_by_name(f"{node.name}:0").shape
        asked = tf.make_ndarray(constants[node_of(node.input[1])].attr["value"].tensor)
        if shape.is_fully_defined() and shape.rank and asked[0] != -1 and shape[0] % rows == 0:
            constant = freed.node.add(name=f"{node.name}/rows_as_they_are", op="Const")
            constant.attr["dtype"].type = tf.as_dtype(asked.dtype).as_datatype_enum
            constant.attr["value"].tensor.CopyFrom(tf.make_tensor_proto([-1, *shape[1:]], dtype=asked.dtype))
            node.input[1] = constant.name
            changed = True
    return replace(graph, graph_def=freed), changed


def check_free(graph: V1Graph, rows: int) -> None:
    """Raises OptionConflict where the graph's shapes do not go together in batches of another size than `rows`."""
    for other in (rows + 1, rows * 2 + 1):
        try:
            import_graph(_with_rows(graph, other))
        except ValueError as error:
            inputs = " ".join(
                f"--input '{name}:{spec.dtype.name}{[rows, *spec.shape[1:]]}'" for name, spec in graph.inputs.items()
            )
            raise OptionConflict(
                f"the graph is built for batches of {rows} alone ({reason_of(error)}): serve it so, {inputs}"
            ) from error


def import_graph(graph_def: "GraphDef") -> "tf.Graph":
    """A graph, for the shapes in it. Raises ValueError where they do not go together."""
    import tensorflow as tf

    graph = tf.Graph()
    with graph.as_default():
        tf.graph_util.import_graph_def(graph_def, name="")
    return graph


def _with_rows(graph: V1Graph, rows: int) -> "GraphDef":
    """Its graph for batches of `rows`."""
    fixed = type(graph.graph_def)()
    fixed.CopyFrom(graph.graph_def)
    placeholders = {node_of(tensor) for tensor in graph.feeds.values()}
    for node in fixed.node:
        if node.name in placeholders and node.attr["shape"].shape.dim and node.attr["shape"].shape.dim[0].size == -1:
            node.attr["shape"].shape.dim[0].size = rows
    return fixed
