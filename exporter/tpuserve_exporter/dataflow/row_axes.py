"""Which dimensions of a graph's tensors carry the rows of a batch: those whose size changes with the number of rows."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    import tensorflow as tf
    from tensorflow.core.framework.graph_pb2 import GraphDef

# Sizes of inputs by the names of their placeholders; the first is the rows'.
Sizes: TypeAlias = Mapping[str, tuple[int | None, ...]]
# Numbers of rows to infer shapes for. Neither is a factor of the other, nor of what dimensions usually are.
_ROWS = (7, 11)


class RowAxes:
    """What shape inference finds of a flat graph for two numbers of rows. Nothing is run."""

    def __init__(self, graph_def: "GraphDef", sizes: Sizes) -> None:
        """`sizes` are of the inputs that have rows. Raises ValueError where the graph takes no other number of rows."""
        self._graphs = [_import(graph_def, {name: (rows, *dims[1:]) for name, dims in sizes.items()}) for rows in _ROWS]

    def find(self, tensor: str) -> frozenset[int] | None:
        """The axes of `tensor` that carry rows; None where its shape is unknown."""
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
        """The integers of a constant tensor; None where it is no constant."""
        import tensorflow as tf

        found = self._graphs[0].get_tensor_by_name(tensor if ":" in tensor else f"{tensor}:0")
        value = tf.get_static_value(found)
        return None if value is None else [int(one) for one in value.reshape(-1)]

    def _shape(self, graph: "tf.Graph", tensor: str) -> list[int | None] | None:
        shape = graph.get_tensor_by_name(tensor if ":" in tensor else f"{tensor}:0").shape
        return None if shape.rank is None else list(shape.as_list())


def _import(graph_def: "GraphDef", sizes: Sizes) -> "tf.Graph":
    import tensorflow as tf

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
    graph = tf.Graph()
    with graph.as_default():
        tf.graph_util.import_graph_def(sized, name="")
    return graph


def _resize(shape: "tf.compat.v1.TensorShapeProto", sizes: tuple[int | None, ...]) -> None:
    shape.unknown_rank = False
    del shape.dim[:]
    for size in sizes:
        shape.dim.add(size=-1 if size is None else size)
