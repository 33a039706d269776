"""CostModel: the cost of a batch of each size on the device, learned at warm-up and, slowly, from every live batch."""

import threading
from dataclasses import dataclass
from typing import TypeAlias

from tpuserve_server.core.cost_curve import Cost, CostCurve, Line, MeasuredCost

__all__ = ["Cost", "CostModel", "CurveSnapshot", "Line", "MeasuredCost"]

# A signature, and the padded lengths of its inputs.
_Key: TypeAlias = tuple[str, tuple[int, ...]]
# More than signatures times sequence buckets. Without this limit unbounded lengths would fill the memory.
_MOST_CURVES = 1024


@dataclass(frozen=True, slots=True)
class CurveSnapshot:
    """The known costs of one signature and one tuple of padded lengths: each measured size, ascending, and the line."""

    signature_name: str
    lengths: tuple[int, ...]
    line: Line | None
    costs: tuple[MeasuredCost, ...]

    def shown(self, most: int) -> tuple[MeasuredCost, ...]:
        """Return the sizes to display: all, or only the powers of two if there are more than `most`."""
        if len(self.costs) <= most:
            return self.costs
        return tuple(cost for cost in self.costs if cost.rows & (cost.rows - 1) == 0)


class CostModel:
    """Costs of one version's batches. Thread-safe: `_lock` guards all fields, and is held for microseconds."""

    def __init__(self) -> None:
        """Start without known costs."""
        self._lock = threading.Lock()
        self._curves: dict[_Key, CostCurve] = {}

    def learn(self, signature_name: str, rows: int, run_s: float, lengths: tuple[int, ...] = ()) -> float:
        """Add a run of `rows` rows, including padding, that took `run_s` seconds. Cheap: called after each batch.

        The first runs of a size have equal weights, so that a warm-up is a plain average. Later runs change it slowly.
        Return the mean seconds expected before, or 0 for the first run of a size.
        """
        with self._lock:
            curve = self._curves.get((signature_name, lengths))
            if curve is None:
                curve = self._add((signature_name, lengths))
            return curve.learn(rows, run_s)

    def cost(self, signature_name: str, rows: int, lengths: tuple[int, ...] = ()) -> Cost | None:
        """Return the cost of a run of `rows` rows: measured, or by the line, or None if neither is known."""
        with self._lock:
            curve = self._curves.get((signature_name, lengths))
            return None if curve is None else curve.cost(rows)

    def line(self, signature_name: str, lengths: tuple[int, ...] = ()) -> Line | None:
        """Return the line through the measured sizes, or None until there are two."""
        with self._lock:
            curve = self._curves.get((signature_name, lengths))
            return None if curve is None else curve.line()

    def snapshot(self) -> tuple[CurveSnapshot, ...]:
        """Return all known costs by signature, in the order of their first runs."""
        with self._lock:
            return tuple(
                CurveSnapshot(name, lengths, curve.line(), curve.measured())
                for (name, lengths), curve in self._curves.items()
            )

    def _add(self, key: _Key) -> CostCurve:
        curve = CostCurve()
        if len(self._curves) < _MOST_CURVES:
            self._curves[key] = curve
        return curve
