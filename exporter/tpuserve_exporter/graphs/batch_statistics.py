"""Finds averages over the rows of a batch in a flat graph, such as those of a batch norm in training mode.

Maxima, softmaxes and products over rows do not count, because models that rank a list also have them at inference.
"""

from typing import TYPE_CHECKING

from tpuserve_exporter.graphs.graph_walk import Walk, node_of
from tpuserve_exporter.graphs.row_axes import RowAxes

if TYPE_CHECKING:
    from tensorflow.core.framework.node_def_pb2 import NodeDef

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
