"""Finds the dimensions of tensors that carry the rows of a batch. Their size changes with the batch size."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    import tensorflow as tf
    from tensorflow.core.framework.graph_pb2 import GraphDef

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
