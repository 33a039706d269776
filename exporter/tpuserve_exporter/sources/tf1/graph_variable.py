"""A variable of a TF1 graph, and its place in a checkpoint."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tpuserve_exporter.errors import SourceUnreadable
from tpuserve_exporter.graphs.graph_operations import RESOURCE_VARIABLE

if TYPE_CHECKING:
    import tensorflow as tf
    from tensorflow.core.framework.node_def_pb2 import NodeDef
    from tensorflow.core.framework.variable_pb2 import SaveSliceInfoDef


@dataclass(frozen=True, slots=True)
class Slice:
    """Position of a part in a partitioned variable. A checkpoint holds the whole variable."""

    full_shape: str
    whole_shape: tuple[int, ...]
    spec: str

    @classmethod
    def read(cls, info: "SaveSliceInfoDef") -> "Slice":
        """Return the slice. `spec` has RestoreV2's format: `20 4 0,10:0,4` is the first half of [20, 4]."""
        offsets = ":".join(f"{start},{size}" for start, size in zip(info.var_offset, info.var_shape, strict=True))
        full_shape = " ".join(str(size) for size in info.full_shape)
        return cls(info.full_name, tuple(info.full_shape), f"{full_shape} {offsets}")


@dataclass(frozen=True, slots=True)
class GraphVariable:
    """One variable of a graph. `name` is its node's name, and its name in a checkpoint unless it is a `part`."""

    name: str
    dtype: "tf.DType"
    shape: tuple[int, ...]
    is_resource: bool
    part: Slice | None = None

    @property
    def stored_name(self) -> str:
        return self.part.full_shape if self.part else self.name

    @property
    def stored_shape(self) -> tuple[int, ...]:
        return self.part.whole_shape if self.part else self.shape


def read_variable(node: "NodeDef") -> GraphVariable:
    """Read a variable's node. Raises SourceUnreadable if the node has no complete shape."""
    import tensorflow as tf

    shape = tf.TensorShape(node.attr["shape"].shape)
    if not shape.is_fully_defined():
        raise SourceUnreadable(f"the shape of the graph's variable {node.name} is unknown")
    dtype = tf.dtypes.as_dtype(node.attr["dtype"].type)
    return GraphVariable(node.name, dtype, tuple(shape.as_list()), node.op == RESOURCE_VARIABLE)
