"""Arithmetic that prepares an image: operations on its pixel values, and a walk along them in a TensorFlow graph."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from tpuserve_exporter.graphs.graph_walk import node_of
from tpuserve_exporter.terms.signature import Array

if TYPE_CHECKING:
    import tensorflow as tf
    from tensorflow.core.framework.graph_pb2 import GraphDef
    from tensorflow.core.framework.node_def_pb2 import NodeDef

# Sample values for the arithmetic: the ends of 0..1 and of 0..255.
_POINTS = np.array([[0.0], [1.0], [255.0]])
# Largest magnitude of normalized values: (0 - 0.485) / 0.229 is -2.1, and some models divide by less.
_NORMALISED = 16.0
# Largest magnitude of values minus their mean: 0 - 123.68 to 255 - 103.94.
_CENTRED = 300.0
# A smaller range means that the values are divided twice.
_LEAST_RANGE = 0.05

Operation = Callable[[Array, Array], Array]


@dataclass(frozen=True, slots=True)
class PixelValues:
    """The values 0, 1 and 255, in rows, after the arithmetic so far. Each column is one combination of constants.

    `operations` describe the arithmetic for reports, in the order of the graph.
    """

    values: Array = field(default_factory=lambda: _POINTS)
    operations: tuple[str, ...] = ()

    def apply(self, operation: Operation, constant: Array, described: str) -> "PixelValues":
        """Compute `operation(values, constant)` for the smallest and largest element of the constant.

        An operation that changes no value, such as `+ 0`, adds no description.
        """
        extremes = np.unique([np.min(constant), np.max(constant)]).astype(np.float64)
        with np.errstate(all="ignore"):
            columns = [operation(self.values, one) for one in extremes]
        if all(np.array_equal(one, self.values) for one in columns):
            return self
        return PixelValues(np.concatenate(columns, axis=1), (*self.operations, described))

    @property
    def are_of_bytes(self) -> bool:
        """Whether the arithmetic normalizes or centers values of 0 to 255."""
        return bool(self.operations) and _are_prepared(self.values[[0, 2]])

    @property
    def are_of_units(self) -> bool:
        """Whether the arithmetic normalizes or centers values of 0 to 1, and not those of 0 to 255."""
        moved = np.abs(self.values - _POINTS)[:2].max() >= _LEAST_RANGE
        return bool(moved) and not self.are_of_bytes and _are_prepared(self.values[[0, 1]])


def _are_prepared(ends: Array) -> bool:
    if not np.isfinite(ends).all():
        return False
    largest, ranges = np.abs(ends).max(), np.abs(ends[1] - ends[0])
    is_centred = bool((ends.min(axis=0) <= -_NORMALISED).all()) and largest <= _CENTRED
    return bool((ranges >= _LEAST_RANGE).all()) and (largest <= _NORMALISED or is_centred)


# Operations on an image and a constant. Reports show the sign: `* 0.00392157`.
BINARY: Mapping[str, tuple[str, Callable[[Array, Array], Array]]] = {
    **dict.fromkeys(("Mul", "stablehlo.multiply"), ("*", np.multiply)),
    **dict.fromkeys(("Sub", "stablehlo.subtract"), ("-", np.subtract)),
    **dict.fromkeys(("Add", "AddV2", "BiasAdd", "stablehlo.add"), ("+", np.add)),
    **dict.fromkeys(("RealDiv", "Div", "DivNoNan", "stablehlo.divide"), ("/", np.divide)),
}
# Operations on constants.
_OF_CONSTANTS: Mapping[str, Callable[..., Array]] = {
    **{name: function for name, (_, function) in BINARY.items()},
    **dict.fromkeys(("Maximum", "stablehlo.maximum"), np.maximum),
    **dict.fromkeys(("Minimum", "stablehlo.minimum"), np.minimum),
    **dict.fromkeys(("Pow", "stablehlo.power"), np.power),
    **dict.fromkeys(("Sqrt", "stablehlo.sqrt"), np.sqrt),
    **dict.fromkeys(("Rsqrt", "stablehlo.rsqrt"), lambda value: 1 / np.sqrt(value)),
    **dict.fromkeys(("Neg", "stablehlo.negate"), np.negative),
    **dict.fromkeys(("Reciprocal", "Inv"), np.reciprocal),
    "Square": np.square,
}
# Operations that return their first operand: its elements may move, repeat or change their dtype.
PASSING = frozenset(
    {"Identity", "IdentityN", "Cast", "Reshape", "ExpandDims", "Squeeze", "BroadcastTo", "Tile", "EnsureShape"}
    | {"StopGradient", "PreventGradient", "CheckNumerics", "Snapshot", "XlaSharding"}
    | {f"stablehlo.{name}" for name in ("convert", "reshape", "dynamic_reshape", "broadcast_in_dim", "transpose")}
    | {"stablehlo.dynamic_broadcast_in_dim", "stablehlo.optimization_barrier"}
)


def compute_constant(operation: str, operands: list[Array]) -> Array | None:
    """Compute an operation on constants. Return None if it is not arithmetic."""
    if operation in PASSING:
        return operands[0]
    function = _OF_CONSTANTS.get(operation)
    if function is None:
        return None
    with np.errstate(all="ignore"):
        try:
            return np.asarray(function(*operands))
        except ValueError:  # operands that broadcast only after a reshape, which PASSING skips
            return None


def combine(pixels: PixelValues, operation: str, name: str, constant: Array | None, index: int) -> PixelValues | None:
    """Apply the operation `name` from BINARY to a constant and to pixels, which are operand number `index`.

    Return None for an unknown or empty constant.
    """
    if constant is None or not constant.size:
        return None
    sign, function = BINARY[operation]
    described = f"{name}: {sign} {describe_constant(constant)}"
    return pixels.apply(function if index == 0 else lambda values, one: function(one, values), constant, described)


def describe_constant(value: Array) -> str:
    """Return `0.00392157`, or `0.406..0.485` for several values."""
    low, high = float(np.min(value)), float(np.max(value))
    return f"{low:.6g}" if low == high else f"{low:.6g}..{high:.6g}"


# Operations that read only the shape of an image, or check it.
_SHAPE_ONLY = frozenset({"Shape", "ShapeN", "Size", "Rank", "ZerosLike", "OnesLike", "Assert"})
# Operations that move, crop, pad or resize an image. Constants do not pass through them.
_MOVING = frozenset(
    {"Transpose", "Reverse", "ReverseV2", "StridedSlice", "Slice", "Split", "SplitV", "Unpack", "Pack", "ConcatV2"}
    | {"Concat", "GatherV2", "Pad", "PadV2", "MirrorPad", "CropAndResize", "ScaleAndTranslate"}
    | {"ResizeArea", "ResizeBilinear", "ResizeBicubic", "ResizeNearestNeighbor", "SpaceToDepth"}
)
_NORMS = frozenset({"FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3"})
_MODULE = "XlaCallModule"
# Largest constant that prepares images: a number, one for each channel, or a mean image. Weights are larger.
_MOST_ELEMENTS = 1 << 20

# Continues a walk in a StableHLO module: pixel values, the node, the number of its argument, and its other arguments.
ModuleWalk = Callable[[PixelValues, "NodeDef", int, Callable[[int], Array | None]], "Iterator[PixelValues]"]


@dataclass(frozen=True, slots=True)
class _Part:
    """A graph, or the body of a function. `takers` lists the consumers of each node's tensors by the node's name."""

    nodes: "Mapping[str, NodeDef]"
    takers: "Mapping[str, list[tuple[NodeDef, int]]]"
    arguments: tuple[str, ...] = ()
    returns: tuple[str, ...] = ()

    @classmethod
    def of(cls, nodes: "Sequence[NodeDef]", arguments: Sequence[str] = (), returns: Sequence[str] = ()) -> "_Part":
        takers: dict[str, list[tuple[NodeDef, int]]] = {}
        for node in nodes:
            for index, name in enumerate(node.input):
                if not name.startswith("^"):
                    takers.setdefault(node_of(name), []).append((node, index))
        return cls({node.name: node for node in nodes}, takers, tuple(arguments), tuple(returns))


@dataclass(frozen=True, slots=True)
class _Frame:
    """One call of a part. `call` is the caller's frame and the calling node, or None for the graph."""

    part: _Part
    call: "tuple[_Frame, NodeDef] | None" = None

    def argument(self, tensor: str) -> "tuple[_Frame, str] | None":
        """Return the caller's frame and tensor for an argument, or None for another tensor."""
        name = node_of(tensor)
        if self.call is None or name not in self.part.arguments:
            return None
        caller, node = self.call
        return caller, node.input[self.part.arguments.index(name)]


@dataclass(slots=True)
class GraphWalk:
    """A walk through one graph. `captures` holds values and variable handles by their placeholders' names."""

    graph_def: "GraphDef"
    captures: "Mapping[str, tf.Tensor]"
    walk_module: ModuleWalk
    _functions: dict[str, _Part] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for function in self.graph_def.library.function:
            arguments = [one.name for one in function.signature.input_arg]
            returns = [function.ret[one.name] for one in function.signature.output_arg]
            self._functions[function.signature.name] = _Part.of(function.node_def, arguments, returns)

    def run(self, placeholder: str) -> list[PixelValues]:
        """Return the pixel values at each operation that is not leading arithmetic."""
        return list(self._follow(PixelValues(), _Frame(_Part.of(self.graph_def.node)), placeholder, 0))

    def _follow(self, pixels: PixelValues, frame: _Frame, name: str, output: int) -> Iterator[PixelValues]:
        """Continue from output number `output` of a node, or from an argument of a function."""
        for node, index in frame.part.takers.get(name, ()):
            if _index_of(node.input[index]) == output or name in frame.part.arguments:
                yield from self._through(pixels, frame, node, index)
        for number, returned in enumerate(frame.part.returns):
            if node_of(returned) == name and _index_of(returned) == output and frame.call is not None:
                caller, call = frame.call
                yield from self._follow(pixels, caller, call.name, number)

    def _through(self, pixels: PixelValues, frame: _Frame, node: "NodeDef", index: int) -> Iterator[PixelValues]:
        if node.op in _SHAPE_ONLY:
            return
        if node.op in PASSING or node.op in _MOVING:
            for output in [index] if node.op == "IdentityN" else _all_outputs(node):
                yield from self._follow(pixels, frame, node.name, output)
        elif (called := self._called(node)) is not None:
            yield from self._follow(pixels, _Frame(called, (frame, node)), called.arguments[index], 0)
        elif node.op == _MODULE:
            yield from self.walk_module(pixels, node, index, lambda other: self._constant(frame, node.input[other]))
        elif (changed := self._change(pixels, frame, node, index)) is not None:
            yield from self._follow(changed, frame, node.name, 0)
        else:
            yield pixels

    def _called(self, node: "NodeDef") -> _Part | None:
        if node.op in ("PartitionedCall", "StatefulPartitionedCall"):
            return self._functions.get(node.attr["f"].func.name)
        return self._functions.get(node.op)

    def _change(self, pixels: PixelValues, frame: _Frame, node: "NodeDef", index: int) -> PixelValues | None:
        """Return the values after arithmetic with a constant, or None for any other operation."""
        if node.op in _NORMS and index == 0:
            return self._normalise(pixels, frame, node)
        if node.op not in BINARY:
            return None
        return combine(pixels, node.op, node.name, self._constant(frame, node.input[1 - index]), index)

    def _normalise(self, pixels: PixelValues, frame: _Frame, node: "NodeDef") -> PixelValues | None:
        found = [self._constant(frame, name) for name in node.input[1:5]]
        scale, offset, mean, variance = found
        if scale is None or offset is None or mean is None or variance is None or not mean.size:
            return None
        factor = scale / np.sqrt(variance + node.attr["epsilon"].f)
        described = f"{node.name}: batch norm with a mean of {describe_constant(mean)}"
        scaled = pixels.apply(np.multiply, factor, described)
        moved = scaled.apply(np.add, offset - mean * factor, described)
        return PixelValues(moved.values, tuple(dict.fromkeys(moved.operations)))

    def _constant(self, frame: _Frame, name: str) -> Array | None:
        """Compute a tensor that depends only on constants and variables. Return None for any other tensor."""
        node = frame.part.nodes.get(node_of(name))
        if node is None:
            argument = frame.argument(name)
            return None if argument is None else self._constant(*argument)
        if node.op == "Const":
            return _read_constant(node)
        if node.op == "Placeholder":
            return _read_value(self.captures.get(node.name))
        if node.op == "ReadVariableOp":
            return _read_variable(self._handle(frame, node.input[0]))
        names = [one for one in node.input if not one.startswith("^")]
        operands = [self._constant(frame, one) for one in (names[:1] if node.op in PASSING else names)]
        known = [one for one in operands if one is not None]
        return compute_constant(node.op, known) if known and len(known) == len(operands) else None

    def _handle(self, frame: _Frame, name: str) -> "tf.Tensor | None":
        node = frame.part.nodes.get(node_of(name))
        if node is None:
            argument = frame.argument(name)
            return None if argument is None else self._handle(*argument)
        return self._handle(frame, node.input[0]) if node.op == "Identity" else self.captures.get(node.name)


def _index_of(tensor: str) -> int:
    """Return the output's index: `node` → 0, `node:1` → 1, and in functions `node:output:1` → 1."""
    last = tensor.rpartition(":")[2]
    return int(last) if ":" in tensor and last.isdecimal() else 0


def _all_outputs(node: "NodeDef") -> range:
    """Return the indices of a node's outputs. A node that splits an image has several."""
    count = node.attr["num_split"].i or node.attr["num"].i
    return range(count if node.op in ("Split", "SplitV", "Unpack") and count else 1)


def _read_constant(node: "NodeDef") -> Array | None:
    import tensorflow as tf

    proto = node.attr["value"].tensor
    elements = np.prod([dim.size for dim in proto.tensor_shape.dim], dtype=np.int64)
    return None if elements > _MOST_ELEMENTS else _as_number(tf.make_ndarray(proto))


def _read_value(tensor: "Any") -> Array | None:  # noqa: ANN401 - eager tensors, which TensorFlow does not type
    if tensor is None or tensor.dtype.name == "resource" or (tensor.shape.num_elements() or 0) > _MOST_ELEMENTS:
        return None
    return _as_number(tensor.numpy())


def _read_variable(handle: "Any") -> Array | None:  # noqa: ANN401 - a resource, which TensorFlow does not type
    import tensorflow as tf

    if handle is None:
        return None
    shape, dtype = tf.raw_ops.VariableShape(input=handle).numpy(), handle._handle_data.shape_and_type[0].dtype
    if np.prod(shape, dtype=np.int64) > _MOST_ELEMENTS:
        return None
    return _as_number(tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype).numpy())


def _as_number(value: Array) -> Array | None:
    is_number = value.dtype.kind in "iuf" or value.dtype.name == "bfloat16"
    return value.astype(np.float64) if is_number else None
