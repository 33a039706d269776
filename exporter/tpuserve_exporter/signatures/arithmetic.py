"""Arithmetic operations of TensorFlow and StableHLO by name, as numpy functions."""

from collections.abc import Callable, Mapping

import numpy as np

from tpuserve_exporter.signatures.pixel_values import PixelValues
from tpuserve_exporter.terms.signature import Array

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
