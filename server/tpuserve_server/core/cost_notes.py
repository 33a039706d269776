"""Describes the costs of a version's batches for people."""

from collections.abc import Sequence

from tpuserve_server.core.cost_model import CostModel, CurveSnapshot
from tpuserve_server.core.counted import counted

# A model may have dozens of signatures, and a signature dozens of lengths.
_MOST_LINES = 8
_MOST_SIZES = 8


def describe_costs(costs: CostModel) -> Sequence[str]:
    """Return a line for each signature that has run, with the current costs of its sizes and the fitted line."""
    curves = costs.snapshot()
    lines = [_describe(curve) for curve in curves[:_MOST_LINES]]
    if len(curves) > _MOST_LINES:
        lines.append(
            f"{len(curves) - _MOST_LINES} more signatures or lengths: see the metric tpuserve_batch_cost_seconds"
        )
    return lines


def _describe(curve: CurveSnapshot) -> str:
    lengths = f" at length {' x '.join(map(str, curve.lengths))}" if curve.lengths else ""
    sizes = ", ".join(
        f"{counted(cost.rows, 'row')} in {_ms(cost.mean_s)} ± {_ms(cost.spread_s)}" for cost in curve.shown(_MOST_SIZES)
    )
    line = "" if curve.line is None else f"; about {_ms(curve.line.t0_s)} + {_ms(curve.line.per_row_s)} per row"
    return f"{curve.signature_name}{lengths}: {sizes}{line}"


def _ms(seconds: float) -> str:
    """Format milliseconds with three significant digits and no exponent."""
    ms = float(f"{seconds * 1000:.3g}")
    return f"{ms:.6f}".rstrip("0").rstrip(".") + " ms"
