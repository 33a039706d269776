"""Operations of a SavedModel that OpenVINO runs as TensorFlow does.

OpenVINO converts more operations, but drops TensorFlow's checks of values: it ignores assertions, returns zeros for an
index out of range, and converts random operations and changes of variables to constants. Only operations whose outcome
depends on their inputs alone, and which fail for no values, are listed here.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from tpuserve_formats.safety.graph import Graph, Node
from tpuserve_server.core.types import Signature
from tpuserve_server.executors.tensorflow.run_graph import needed_nodes

_EQUAL: Final = frozenset(
    {
        # Structure, calls and variables.
        "Const", "Identity", "IdentityN", "NoOp", "PartitionedCall", "Placeholder", "PlaceholderWithDefault",
        "ReadVariableOp", "Snapshot", "StatefulPartitionedCall", "StopGradient", "VarHandleOp", "VariableV2",
        # Shapes.
        "BroadcastTo", "Cast", "Concat", "ConcatV2", "DepthToSpace", "ExpandDims", "Fill", "MirrorPad", "OnesLike",
        "Pack", "Pad", "PadV2", "Range", "Rank", "Reshape", "ReverseV2", "Shape", "ShapeN", "Size", "Slice",
        "SpaceToDepth", "Split", "SplitV", "Squeeze", "StridedSlice", "Tile", "Transpose", "Unpack", "ZerosLike",
        # Arithmetic without division of integers.
        "Abs", "Add", "AddN", "AddV2", "Ceil", "ClipByValue", "Cos", "Erf", "Exp", "Expm1", "Floor", "Inv", "Log",
        "Log1p", "Maximum", "Minimum", "Mul", "Neg", "Pow", "RealDiv", "Reciprocal", "Rint", "Round", "Rsqrt",
        "Sigmoid", "Sign", "Sin", "Softplus", "Softsign", "Sqrt", "Square", "SquaredDifference", "Sub", "Tanh",
        # Comparisons and choices.
        "ArgMax", "ArgMin", "Equal", "Greater", "GreaterEqual", "Less", "LessEqual", "LogicalAnd", "LogicalNot",
        "LogicalOr", "NotEqual", "Select", "SelectV2",
        # Reductions.
        "All", "Any", "Cumsum", "Max", "Mean", "Min", "Prod", "Sum",
        # Layers.
        "AvgPool", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3", "BiasAdd", "Conv2D", "Conv2DBackpropInput",
        "Conv3D", "DepthwiseConv2dNative", "Einsum", "Elu", "FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3",
        "LRN", "LeakyRelu", "LogSoftmax", "MatMul", "MaxPool", "Relu", "Relu6", "ResizeBilinear",
        "ResizeNearestNeighbor", "Selu", "Softmax",
    }
)  # fmt: skip
# Equal if their indices, the second input, are constants: such as those that read a dimension of a shape.
_LOOKUPS: Final = frozenset({"Gather", "GatherNd", "GatherV2"})


def find_different(graph: Graph, signature: Signature) -> str:
    """Return the name of an operation of the signature that OpenVINO may run differently; empty for none."""
    for nodes in _bodies(graph, signature):
        for node in nodes.values():
            is_equal = node.op in _EQUAL or node.op in graph.functions
            if not is_equal and not (node.op in _LOOKUPS and _has_constant_indices(node, nodes)):
                return node.op
    return ""


def _bodies(graph: Graph, signature: Signature) -> Iterator[Mapping[str, Node]]:
    """Yield the nodes that a run of the signature may execute: those of the graph, and of each called function."""
    main = {node.name: node for node in needed_nodes(graph.main.nodes, signature)}
    yield main
    pending = [main]
    seen = set[str]()
    while pending:
        called = {name for node in pending.pop().values() for name in (node.op, *node.functions)}
        for name in called & graph.functions.keys() - seen:
            seen.add(name)
            pending.append(graph.functions[name].nodes)
            yield pending[-1]


def _has_constant_indices(node: Node, nodes: Mapping[str, Node]) -> bool:
    inputs = [name.partition(":")[0] for name in node.inputs if not name.startswith("^")]
    return len(inputs) > 1 and inputs[1] in nodes and nodes[inputs[1]].op == "Const"
