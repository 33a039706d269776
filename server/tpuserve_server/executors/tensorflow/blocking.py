"""Finds operations because of which a run may wait, or take longer than others. An event loop must not run such models.

The shapes of its inputs must decide how long a run takes. The search therefore knows the operations that may occur, and
errs on the safe side for all others: of TensorFlow's operations without state, too, some wait (BatchFunction), write
files (DebugIdentity), or have outputs of any size (RaggedRange).
"""

from collections.abc import Container, Iterable, Mapping
from typing import Final

from tpuserve_server.core.types import Signature
from tpuserve_server.executors.tensorflow.repeatability import READS
from tpuserve_server.executors.tensorflow.run_graph import RunGraph, RunNode

# Operations whose inputs' shapes decide their duration. No list has a loop or a branch.
_BY_SHAPE: Final = frozenset(
    {
        # Structure.
        "Const", "EnsureShape", "ExpandDims", "Identity", "IdentityN", "NoOp", "PartitionedCall", "Placeholder",
        "PlaceholderWithDefault", "PreventGradient", "Rank", "Reshape", "Shape", "ShapeN", "Size", "Squeeze",
        "StatefulPartitionedCall", "StopGradient",
        # Parts of arrays, and their order.
        "Concat", "ConcatV2", "Gather", "GatherNd", "GatherV2", "MatrixBandPart", "Pack", "Reverse", "ReverseV2",
        "Slice", "Split", "SplitV", "StridedSlice", "TopK", "TopKV2", "Transpose", "Unpack",
        # Numbers, one by one.
        "Abs", "Acos", "Add", "AddN", "AddV2", "Asin", "Atan", "Atan2", "BiasAdd", "BiasAddV1", "BitwiseAnd",
        "BitwiseOr", "BitwiseXor", "Cast", "Ceil", "CheckNumerics", "ClipByValue", "Cos", "Cosh", "Div", "DivNoNan",
        "Elu", "Equal", "Erf", "Erfc", "Exp", "Expm1", "Floor", "FloorDiv", "FloorMod", "Greater", "GreaterEqual",
        "Inv", "IsFinite", "IsInf", "IsNan", "LeakyRelu", "Less", "LessEqual", "Log", "Log1p", "LogicalAnd",
        "LogicalNot", "LogicalOr", "Maximum", "Minimum", "Mod", "Mul", "MulNoNan", "Neg", "NotEqual", "OnesLike",
        "Pow", "RealDiv", "Reciprocal", "Relu", "Relu6", "Rint", "Round", "Rsqrt", "Select", "SelectV2", "Selu",
        "Sigmoid", "Sign", "Sin", "Sinh", "Softplus", "Softsign", "Sqrt", "Square", "SquaredDifference", "Sub", "Tan",
        "Tanh", "TruncateDiv", "Xlog1py", "Xlogy", "ZerosLike",
        # Sums and products.
        "All", "Any", "ArgMax", "ArgMin", "AvgPool", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3", "Conv2D",
        "Conv3D", "Cumprod", "Cumsum", "DepthwiseConv2dNative", "Einsum", "FusedBatchNorm", "FusedBatchNormV2",
        "FusedBatchNormV3", "L2Loss", "LogSoftmax", "MatMul", "Max", "MaxPool", "Mean", "Min", "Prod", "Softmax", "Sum",
        # A signature with strings runs on its thread. Others of the version may run on the loop.
        "ParseExample", "ParseExampleV2",
    }
)  # fmt: skip
# Operations with an output whose size these inputs decide. They must be constants.
_BY_SIZE: Final[Mapping[str, tuple[int, ...]]] = {
    "BroadcastTo": (1,),
    "Fill": (0,),
    "LinSpace": (2,),
    "MirrorPad": (1,),
    "OneHot": (1,),
    "Pad": (1,),
    "PadV2": (1,),
    "Range": (0, 1, 2),
    "ResizeBilinear": (1,),
    "ResizeNearestNeighbor": (1,),
    "Tile": (1,),
}


def may_block(graph: RunGraph, signatures: Iterable[Signature]) -> bool:
    """Return whether a run of a signature may wait, or take longer than others with the same shapes."""
    nodes = (node for signature in signatures for node in graph.run_by(signature))
    return any(node.is_compiled or _may_block(node, graph.functions) for node in nodes)


def _may_block(node: RunNode, functions: Container[str]) -> bool:
    if node.op in _BY_SHAPE or node.op in READS or node.op in functions:
        return False
    sizes = _BY_SIZE.get(node.op)
    return sizes is None or not all(map(node.is_constant, sizes))
