"""Lets TPU graphs take any batch size. Such graphs are built for one size and contain it in their reshapes."""

import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from tpuserve_exporter.errors import OptionConflict, reason_of
from tpuserve_exporter.graphs.batch_statistics import import_graph
from tpuserve_exporter.graphs.graph_walk import node_of
from tpuserve_exporter.sources.tf1.graph import SessionReference, V1Graph
from tpuserve_exporter.terms.signature import Array

if TYPE_CHECKING:
    from collections.abc import Mapping

    import tensorflow as tf
    from tensorflow.core.framework.graph_pb2 import GraphDef
    from tensorflow.core.framework.node_def_pb2 import NodeDef

    from tpuserve_exporter.sources.tf1.name_based import RestoredValues


def free_reshapes(graph: V1Graph, rows: int) -> tuple[V1Graph, bool]:
    """Return the graph with reshapes that infer their first dimension, and whether any reshape changed.

    A changed reshape had a fixed first dimension, `rows` or a multiple. Its other dimensions have their sizes for
    a batch of `rows`, so nothing changes for such a batch.
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
        target = tf.make_ndarray(constants[node_of(node.input[1])].attr["value"].tensor)
        if shape.is_fully_defined() and shape.rank and target[0] != -1 and shape[0] % rows == 0:
            constant = freed.node.add(name=f"{node.name}/rows_as_they_are", op="Const")
            constant.attr["dtype"].type = tf.as_dtype(target.dtype).as_datatype_enum
            constant.attr["value"].tensor.CopyFrom(tf.make_tensor_proto([-1, *shape[1:]], dtype=target.dtype))
            node.input[1] = constant.name
            changed = True
    return replace(graph, graph_def=freed), changed


def free_row_counts(graph: V1Graph, rows: int) -> tuple[V1Graph, bool]:
    """Return the graph with each `tf.shape(x)[0]` computed from an input again, and whether there were any.

    In a graph built for batches of `rows`, TensorFlow writes that number instead of `tf.shape(x)`.
    """
    freed = type(graph.graph_def)()
    freed.CopyFrom(graph.graph_def)
    nodes = {node.name: node for node in freed.node}
    feed = next((graph.feeds[name] for name, spec in graph.inputs.items() if _has_free_rows(graph, name, spec)), None)
    changed = False
    for node in list(freed.node):
        if feed is not None and node.op == "StridedSlice" and _takes_row_count(node, nodes, rows):
            shape = freed.node.add(name=f"{node.name}/rows_as_they_are", op="Shape", input=[node_of(feed)])
            shape.attr["T"].CopyFrom(nodes[node_of(feed)].attr["dtype"])
            shape.attr["out_type"].CopyFrom(node.attr["T"])
            node.input[0] = shape.name
            changed = True
    return replace(graph, graph_def=freed), changed


def _has_free_rows(graph: V1Graph, name: str, spec: "tf.TensorSpec") -> bool:
    return name in graph.feeds and bool(spec.shape.rank) and spec.shape[0] is None


def _takes_row_count(node: "NodeDef", nodes: "Mapping[str, NodeDef]", rows: int) -> bool:
    """Return whether `node` takes the first number, `rows`, of a constant whose name starts with Shape."""
    import tensorflow as tf

    taken = [nodes[node_of(one)] for one in node.input]
    if any(one.op != "Const" for one in taken) or not node_of(node.input[0]).rpartition("/")[2].startswith("Shape"):
        return False
    shape, begin, end, _ = (tf.make_ndarray(one.attr["value"].tensor) for one in taken)
    return bool(shape.size and shape[0] == rows and begin.tolist() == [0] and end.tolist() == [1])


def check_runs(graph: V1Graph, values: "RestoredValues", rows: int) -> None:
    """Run the graph. Raises OptionConflict if it runs with `rows` rows, but not with another number.

    Shape inference does not see into loops, so only a run shows this.
    """
    import tensorflow as tf

    if any(spec.dtype == tf.string for spec in graph.inputs.values()):
        return  # a graph may refuse any generated string
    with contextlib.closing(SessionReference(graph, values)) as model:
        try:
            model.answer(_zeros(graph, rows))
        except tf.errors.OpError:
            return
        try:
            model.answer(_zeros(graph, rows + 1))
        except tf.errors.OpError as error:
            raise _only_for(graph, rows, error) from error


def _zeros(graph: V1Graph, rows: int) -> dict[str, Array]:
    """Return zeros for each input, with `rows` rows and size 1 in every other free dimension."""
    zeros = {}
    for name, spec in graph.inputs.items():
        first, *others = spec.shape.as_list() or [1]
        shape = [rows if first is None else first, *(size or 1 for size in others)] if spec.shape.rank else []
        zeros[name] = np.zeros(shape, spec.dtype.as_numpy_dtype)
    return zeros


def _only_for(graph: V1Graph, rows: int, error: Exception) -> OptionConflict:
    inputs = " ".join(
        f"--input '{name}:{spec.dtype.name}{[rows, *spec.shape[1:]]}'" for name, spec in graph.inputs.items()
    )
    return OptionConflict(f"the graph works only for batches of {rows} ({reason_of(error)}). Use {inputs}")


def check_free(graph: V1Graph, rows: int) -> None:
    """Raise OptionConflict if the graph's shapes conflict for a batch size other than `rows`."""
    for other in (rows + 1, rows * 2 + 1):
        try:
            import_graph(_with_rows(graph, other))
        except ValueError as error:
            raise _only_for(graph, rows, error) from error


def _with_rows(graph: V1Graph, rows: int) -> "GraphDef":
    """Return the graph for batches of `rows`."""
    fixed = type(graph.graph_def)()
    fixed.CopyFrom(graph.graph_def)
    placeholders = {node_of(tensor) for tensor in graph.feeds.values()}
    for node in fixed.node:
        if node.name in placeholders and node.attr["shape"].shape.dim and node.attr["shape"].shape.dim[0].size == -1:
            node.attr["shape"].shape.dim[0].size = rows
    return fixed
