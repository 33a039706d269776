"""CostModel: what a batch of each size costs on the device, learned at warm-up and, slowly, from every live batch."""

import threading
from dataclasses import dataclass
from typing import TypeAlias

from tpuserve_server.core.cost_curve import Cost, CostCurve, Line, MeasuredCost

__all__ = ["Cost", "CostModel", "CurveSnapshot", "Line", "MeasuredCost"]

# A signature, and the padded lengths of its inputs.
_Key: TypeAlias = tuple[str, tuple[int, ...]]
# More curves than signatures times sequence buckets ever make: lengths that nobody bounds must not fill the memory.
_MOST_CURVES = 1024


@dataclass(frozen=True, slots=True)
class CurveSnapshot:
    """What is known of one signature at one tuple of padded lengths: each measured size, ascending, and the line."""

    signature_name: str
    lengths: tuple[int, ...]
    line: Line | None
    costs: tuple[MeasuredCost, ...]

    def shown(self, most: int) -> tuple[MeasuredCost, ...]:
        """The sizes to show to people: all, or the powers of two among them where there are more than `most`."""
        if len(self.costs) <= most:
            return self.costs
        return tuple(cost for cost in self.costs if cost.rows & (cost.rows - 1) == 0)


class CostModel:
    """Costs of one version's batches. Safe from any thread: `_lock` guards everything, and is held for microseconds."""

    def __init__(self) -> None:
        """Nothing is known yet."""
        self._lock = threading.Lock()
        self._curves: dict[_Key, CostCurve] = {}

    def learn(self, signature_name: str, rows: int, run_s: float, lengths: tuple[int, ...] = ()) -> float:
        """A run of `rows` rows, padding among them, took `run_s` seconds. Cheap: the device thread calls it each time.

        The first runs of a size count alike, so that a warm-up is a plain average; later ones move it slowly. Returns
        the seconds that were expected of this size before, 0 if it is the first of it.
        """
        with self._lock:
            curve = self._curves.get((signature_name, lengths))
            if curve is None:
                curve = self._add((signature_name, lengths))
            return curve.learn(rows, run_s)

    def cost(self, signature_name: str, rows: int, lengths: tuple[int, ...] = ()) -> Cost | None:
        """What a run of `rows` rows costs: as measured, else by the line; None if neither is known."""
        with self._lock:
            curve = self._curves.get((signature_name, lengths))
            return None if curve is None else curve.cost(rows)

    def line(self, signature_name: str, lengths: tuple[int, ...] = ()) -> Line | None:
        """The line through the measured sizes; None until two are."""
        with self._lock:
            curve = self._curves.get((signature_name, lengths))
            return None if curve is None else curve.line()

    def snapshot(self) -> tuple[CurveSnapshot, ...]:
        """Everything that is known, by signature in the order of their first runs."""
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
