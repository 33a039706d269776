"""Finds the dimensions that carry the rows of a batch, and nodes that average over them, as batch norms do in training.

The size of such a dimension changes with the batch size. Maxima, softmaxes and products over rows do not count as
averages, because models that rank a list also have them at inference.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeAlias

from tpuserve_exporter.graphs.graph_walk import Walk, node_of

if TYPE_CHECKING:
    import tensorflow as tf
    from tensorflow.core.framework.graph_pb2 import GraphDef
    from tensorflow.core.framework.node_def_pb2 import NodeDef

# Shapes of inputs by placeholder name, rows first.
Sizes: TypeAlias = Mapping[str, tuple[int | None, ...]]
# Batch sizes for shape inference. Neither divides the other, or usual dimensions.
_ROWS = (7, 11)


class RowAxes:
    """The shapes of a flat graph for two batch sizes. Shape inference finds them without running the graph."""

    def __init__(self, graph_def: "GraphDef", sizes: Sizes) -> None:
        """Infer the shapes for inputs of `sizes`. Raises ValueError if the graph takes only one batch size."""
        self._graphs = [_import(graph_def, {name: (rows, *dims[1:]) for name, dims in sizes.items()}) for rows in _ROWS]

    def find(self, tensor: str) -> frozenset[int] | None:
        """Return the axes of `tensor` that carry rows, or None if its shape is unknown."""
        few, more = (self._shape(graph, tensor) for graph in self._graphs)
        if few is None or more is None or len(few) != len(more):
            return None
        axes = frozenset(axis for axis, size in enumerate(few) if size != more[axis])
        unknown = any(size is None for size in few)
        return axes if axes or not unknown else None

    def rank(self, tensor: str) -> int | None:
        shape = self._shape(self._graphs[0], tensor)
        return None if shape is None else len(shape)

    def constant(self, tensor: str) -> "list[int] | None":
        """Return the integers of a constant tensor, or None for any other tensor."""
        import tensorflow as tf

        found = self._graphs[0].get_tensor_by_name(tensor if ":" in tensor else f"{tensor}:0")
        value = tf.get_static_value(found)
        return None if value is None else [int(one) for one in value.reshape(-1)]

    def _shape(self, graph: "tf.Graph", tensor: str) -> list[int | None] | None:
        shape = graph.get_tensor_by_name(tensor if ":" in tensor else f"{tensor}:0").shape
        return None if shape.rank is None else list(shape.as_list())


def import_graph(graph_def: "GraphDef") -> "tf.Graph":
    """Return a graph with the shapes that TensorFlow infers. Raises ValueError for shapes that do not fit."""
    import tensorflow as tf

    graph = tf.Graph()
    with graph.as_default():
        tf.graph_util.import_graph_def(graph_def, name="")
    return graph


def _import(graph_def: "GraphDef", sizes: Sizes) -> "tf.Graph":
    sized = type(graph_def)()
    sized.CopyFrom(graph_def)
    for node in sized.node:
        node.attr.pop("_output_shapes", None)
        node.attr.pop("_class", None)
        node.device = ""
        if node.name in sizes and node.op in ("Placeholder", "PlaceholderWithDefault"):
            _resize(node.attr["shape"].shape, sizes[node.name])
            if node.op == "PlaceholderWithDefault":
                node.op = "Placeholder"
                node.attr.pop("_output_shapes", None)
                del node.input[:]
    return import_graph(sized)


def _resize(shape: "tf.compat.v1.TensorShapeProto", sizes: tuple[int | None, ...]) -> None:
    shape.unknown_rank = False
    del shape.dim[:]
    for size in sizes:
        shape.dim.add(size=-1 if size is None else size)


_AVERAGES = frozenset({"Mean", "Sum", "EuclideanNorm"})
_NORMS = frozenset({"FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3", "_FusedBatchNormEx"})
_PRODUCTS = frozenset({"MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3", "Einsum", "SparseMatMul"})
# Operations between the exponentials of a softmax and their sum: masks, and operations that keep values.
_OF_SOFTMAX = frozenset({"Mul", "Cast", "Identity", "SelectV2", "Select", "Reshape", "Transpose", "Squeeze"})
_OF_SOFTMAX |= {"ExpandDims", "AddV2", "Add", "Maximum", "RealDiv"}


def is_norm(node: "NodeDef") -> bool:
    """Return whether `node` is a fused batch norm in training mode, which is the default of `is_training`."""
    return node.op in _NORMS and ("is_training" not in node.attr or node.attr["is_training"].b)


class StatisticsFinder:
    """Finds the nodes that average over rows. `axes` is None for a graph that takes only one batch size."""

    def __init__(self, walk: Walk, axes: RowAxes | None, of_rows: set[str]) -> None:
        """Create a finder. The nodes named in `of_rows` have values that depend on the inputs."""
        self._walk = walk
        self._axes = axes
        self._of_rows = of_rows

    def averages_rows(self, node: "NodeDef") -> bool:
        """Return whether `node` averages over rows. If shapes are unknown, assume that rows come first."""
        values = [one for one in node.input if one[0] != "^"]
        of_rows = [one for one in values if node_of(one) in self._of_rows]
        if node.op in _PRODUCTS or node.op == "L2Loss":
            return len(of_rows) == 1 and self._loses_rows(node, of_rows[0])
        if not of_rows or of_rows[0] != values[0]:
            return False
        if node.op in _AVERAGES:
            return self._reduces_rows(values) and not (node.op == "Sum" and self._is_softmax(node))
        return is_norm(node) and self._norms_rows(node, values[0])

    def has_rows(self, tensor: str) -> bool:
        """Return whether a dimension of `tensor` carries rows, or its shape is unknown."""
        axes = self._axes.find(tensor) if self._axes is not None else None
        return axes is None or bool(axes)

    def _reduces_rows(self, values: list[str]) -> bool:
        rows = self._axes.find(values[0]) if self._axes is not None else None
        rank = self._axes.rank(values[0]) if self._axes is not None else None
        reduced = self._constant(values[1])
        if reduced is None:
            return rows is None or bool(rows)
        if rows is None or rank is None:
            # By convention rows come first, so a negative axis is taken for another dimension.
            return 0 in reduced
        return any(axis % rank in rows for axis in reduced if rank)

    def _constant(self, tensor: str) -> list[int] | None:
        if self._axes is not None:
            return self._axes.constant(tensor)
        node = self._walk.nodes.get(node_of(tensor))
        if node is None or node.op != "Const":
            return None
        import tensorflow as tf

        return [int(one) for one in tf.make_ndarray(node.attr["value"].tensor).reshape(-1)]

    def _norms_rows(self, node: "NodeDef", tensor: str) -> bool:
        """Return whether rows are in a dimension other than the channels, which a norm keeps."""
        rows = self._axes.find(tensor) if self._axes is not None else None
        rank = self._axes.rank(tensor) if self._axes is not None else None
        if rows is None or rank is None:
            return True
        layout = node.attr["data_format"].s.decode() or "NHWC"
        channels = 1 if layout.startswith("NC") else rank - 1
        return bool(rows - {channels})

    def _loses_rows(self, node: "NodeDef", tensor: str) -> bool:
        """Return whether `tensor` carries rows and the result of `node` does not."""
        if self._axes is None or self._axes.find(node.name) is None:
            return False
        return bool(self._axes.find(tensor)) and not self._axes.find(node.name)

    def _is_softmax(self, node: "NodeDef") -> bool:
        return any(one.op == "Exp" for one in self._walk.back(node.input[0], _OF_SOFTMAX))
