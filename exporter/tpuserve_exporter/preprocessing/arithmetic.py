"""Arithmetic operations by the names that TensorFlow and StableHLO have for them, as numpy computes them."""

from collections.abc import Callable, Mapping

import numpy as np

from tpuserve_exporter.signature import Array

# Of an image and a constant. The sign is how a reader sees them: `* 0.00392157`.
BINARY: Mapping[str, tuple[str, Callable[[Array, Array], Array]]] = {
    **dict.fromkeys(("Mul", "stablehlo.multiply"), ("*", np.multiply)),
    **dict.fromkeys(("Sub", "stablehlo.subtract"), ("-", np.subtract)),
    **dict.fromkeys(("Add", "AddV2", "BiasAdd", "stablehlo.add"), ("+", np.add)),
    **dict.fromkeys(("RealDiv", "Div", "DivNoNan", "stablehlo.divide"), ("/", np.divide)),
}
# Of constants alone.
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
# Their first operand, with its elements elsewhere or in another dtype; of an image also part of it, or more of it.
PASSING = frozenset(
    {"Identity", "IdentityN", "Cast", "Reshape", "ExpandDims", "Squeeze", "BroadcastTo", "Tile", "EnsureShape"}
    | {"StopGradient", "PreventGradient", "CheckNumerics", "Snapshot", "XlaSharding"}
    | {f"stablehlo.{name}" for name in ("convert", "reshape", "dynamic_reshape", "broadcast_in_dim", "transpose")}
    | {"stablehlo.dynamic_broadcast_in_dim", "stablehlo.optimization_barrier"}
)


def compute_constant(operation: str, operands: list[Array]) -> Array | None:
    """The value of an operation on constants; None for operations that are not arithmetic."""
    if operation in PASSING:
        return operands[0]
    function = _OF_CONSTANTS.get(operation)
    if function is None:
        return None
    with np.errstate(all="ignore"):
        try:
            return np.asarray(function(*operands))
        except ValueError:  # shapes that only a reshape before would have made to fit
            return None


def describe_constant(value: Array) -> str:
    """`0.00392157`, or `0.406..0.485`."""
    low, high = float(np.min(value)), float(np.max(value))
    return f"{low:.6g}" if low == high else f"{low:.6g}..{high:.6g}"
