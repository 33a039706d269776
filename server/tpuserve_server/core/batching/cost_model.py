"""CostModel: the cost of a batch of each size on the device, learned at warm-up and, slowly, from every live batch."""

import math
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

# Smallest weight of a run. With it the mean follows a change within about fifty batches.
_LEAST_WEIGHT = 0.02
# Limits for slow outliers, such as a garbage collection or a busy neighbour. For this many runs the spread is unknown,
# and a run counts as at most twice the expected time. Later it counts as at most this many standard deviations late. If
# runs stay that slow, the standard deviation grows and the mean follows.
_TRUSTED_RUNS = 6
_MOST_SPREADS = 4.0
# Weight of a fast outlier. It is large, because nothing makes a run too fast, but the cause of slow runs may have
# ended.
_FAST_WEIGHT = 0.2
# Lower bounds of the standard deviation: a share of the mean, a larger share after few runs, and seconds.
_LEAST_SPREAD = 0.01
_FIRST_SPREAD = 0.1
_LEAST_SPREAD_S = 1e-6
# Largest number of sizes kept. Without buckets a batch has any size, and the line is known well before this limit.
_MOST_SIZES = 1024
# A size that does not run keeps this share of its excess over its lowest mean, from one fit to the next. Otherwise a
# size that a busy neighbour has slowed would never run again, and would seem slow after the neighbour has left.
_MEMORY = 0.99
# Costs are fitted again after at most this many runs, or as many as there are sizes if that is more.
_RUNS_A_FIT = 16


@dataclass(frozen=True, slots=True)
class Cost:
    """Mean duration of a run and its standard deviation, in seconds."""

    mean_s: float
    spread_s: float


@dataclass(frozen=True, slots=True)
class Line:
    """A linear cost: a run takes about `t0_s + per_row_s * rows` seconds. Neither part is negative."""

    t0_s: float
    per_row_s: float

    def at(self, rows: int) -> float:
        """Return the seconds that a run of `rows` rows takes by the line."""
        return self.t0_s + self.per_row_s * rows


@dataclass(frozen=True, slots=True)
class MeasuredCost:
    """The measured cost of a size that has run: mean, standard deviation, fastest run, and number of runs."""

    rows: int
    mean_s: float
    spread_s: float
    fastest_s: float
    runs: int


class _Size:
    """Mean and variance of one size's runs.

    `least_s` is the lowest mean, `rested` the number of runs at the latest fit.
    """

    __slots__ = ("fastest_s", "least_s", "mean_s", "rested", "runs", "variance")

    def __init__(self, run_s: float) -> None:
        self.runs = self.rested = 1
        self.mean_s = self.least_s = self.fastest_s = run_s
        self.variance = 0.0

    def learn(self, run_s: float) -> None:
        """Add a run by West's incremental mean and variance (CACM 22(9), 1979), with a lower bound on its weight."""
        self.runs += 1
        weight = 1.0 / self.runs
        if weight < _LEAST_WEIGHT:
            weight = _LEAST_WEIGHT
        if run_s < self.fastest_s:
            self.fastest_s = run_s
        off_s = run_s - self.mean_s
        if self.runs <= _TRUSTED_RUNS:
            off_s = min(off_s, self.mean_s or off_s)
        elif off_s * off_s > _MOST_SPREADS**2 * self.variance:
            most_s = _MOST_SPREADS * self.spread_s()
            if off_s < -most_s:
                self.mean_s += _FAST_WEIGHT * off_s
                return
            off_s = min(off_s, most_s)
        step_s = weight * off_s
        self.mean_s += step_s
        self.variance = (1.0 - weight) * (self.variance + off_s * step_s)

    def forget(self) -> None:
        """Move the mean towards its lowest value if the size has not run since the last fit. Called at every fit."""
        if self.runs < _TRUSTED_RUNS or self.mean_s < self.least_s:
            self.least_s = self.mean_s
        elif self.rested == self.runs:
            self.mean_s = self.least_s + _MEMORY * (self.mean_s - self.least_s)
        self.rested = self.runs

    def spread_s(self) -> float:
        """Return the standard deviation of a run, in seconds."""
        least = max(_LEAST_SPREAD, _FIRST_SPREAD / self.runs) * self.mean_s
        return max(math.sqrt(self.variance), least, _LEAST_SPREAD_S)


class CostCurve:
    """Costs of one signature by rows. Not thread-safe."""

    __slots__ = ("_costs", "_fit_at", "_line", "_runs", "_sizes")

    def __init__(self) -> None:
        """Start without runs."""
        self._sizes: dict[int, _Size] = {}
        self._runs = 0
        # Values derived from the sizes, and the number of runs at which they are derived again.
        self._fit_at = 0
        self._costs: dict[int, Cost] = {}
        self._line: Line | None = None

    def learn(self, rows: int, run_s: float) -> float:
        """Add a run of `rows` rows that took `run_s` seconds. Return the mean before it, or 0 for the first run."""
        self._runs += 1
        size = self._sizes.get(rows)
        if size is not None:
            expected_s = size.mean_s
            size.learn(run_s)
            return expected_s
        if len(self._sizes) < _MOST_SIZES:
            self._sizes[rows] = _Size(run_s)
            self._fit_at = self._runs
        return 0.0

    def cost(self, rows: int) -> Cost | None:
        """Return the cost of `rows` rows, or None if it is unknown.

        The cost never exceeds that of more rows, because a batch could be padded to them. Otherwise a wrong time at
        warm-up could keep a size from ever running, and so from being corrected.
        """
        if self._runs >= self._fit_at:
            self._fit()
        cost = self._costs.get(rows)
        if cost is not None or self._line is None:
            return cost
        return self._by_line(rows, self._line)

    def line(self) -> Line | None:
        """Return the line through all sizes, or None until two sizes have run."""
        if self._runs >= self._fit_at:
            self._fit()
        return self._line

    def measured(self) -> tuple[MeasuredCost, ...]:
        """Return the measured cost of each size, ascending."""
        return tuple(
            MeasuredCost(rows, size.mean_s, size.spread_s(), size.fastest_s, size.runs)
            for rows, size in sorted(self._sizes.items())
        )

    def _by_line(self, rows: int, line: Line) -> Cost:
        """Return the cost by the line, with the relative standard deviation of the nearest size that has run."""
        nearest = self._costs[min(self._costs, key=lambda known: abs(known - rows))]
        mean_s = line.at(rows)
        return Cost(mean_s, mean_s * nearest.spread_s / nearest.mean_s if nearest.mean_s else 0.0)

    def _fit(self) -> None:
        for size in self._sizes.values():
            size.forget()
        self._costs = _monotone(self._sizes)
        self._line = fit_line([(rows, cost.mean_s) for rows, cost in self._costs.items()])
        # Frequent while little is known, then rare enough for a negligible cost.
        interval = min(max(_RUNS_A_FIT, len(self._sizes)), 1 + self._runs // 4)
        self._fit_at = self._runs + interval


def fit_line(points: Sequence[tuple[int, float]]) -> Line | None:
    """Return the line through (rows, seconds) with neither part negative, or None for fewer than two points.

    The line minimizes the squared relative error. With the absolute error the largest batch alone would decide, because
    its noise exceeds a small batch's cost.
    """
    if len(points) < 2:
        return None
    weights = [1.0 / max(seconds, 1e-9) ** 2 for _, seconds in points]
    total = sum(weights)
    mean_rows = sum(w * rows for w, (rows, _) in zip(weights, points, strict=True)) / total
    mean_s = sum(w * seconds for w, (_, seconds) in zip(weights, points, strict=True)) / total
    rows_s = sum(
        w * (rows - mean_rows) * (seconds - mean_s) for w, (rows, seconds) in zip(weights, points, strict=True)
    )
    rows_rows = sum(w * (rows - mean_rows) ** 2 for w, (rows, _) in zip(weights, points, strict=True))
    per_row_s = max(rows_s / rows_rows, 0.0)
    t0_s = mean_s - per_row_s * mean_rows
    if t0_s >= 0.0:
        return Line(t0_s, per_row_s)
    # A line through the origin: least squares with only a cost for each row.
    squares = sum(w * rows * rows for w, (rows, _) in zip(weights, points, strict=True))
    return Line(0.0, sum(w * rows * seconds for w, (rows, seconds) in zip(weights, points, strict=True)) / squares)


def _monotone(sizes: dict[int, _Size]) -> dict[int, Cost]:
    """Return costs by rows, in descending order of rows. No cost exceeds that of the next larger size."""
    costs: dict[int, Cost] = {}
    above = Cost(math.inf, 0.0)
    for rows in sorted(sizes, reverse=True):
        size = sizes[rows]
        if size.mean_s <= above.mean_s:
            above = Cost(size.mean_s, size.spread_s())
        costs[rows] = above
    return costs


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
        # The fastest run of each signature, whatever its size and lengths.
        self._fastest_s: dict[str, float] = {}

    def learn(self, signature_name: str, rows: int, run_s: float, lengths: tuple[int, ...] = ()) -> float:
        """Add a run of `rows` rows, including padding, that took `run_s` seconds. Cheap: called after each batch.

        The first runs of a size have equal weights, so that a warm-up is a plain average. Later runs change it slowly.
        Return the mean seconds expected before, or 0 for the first run of a size.
        """
        with self._lock:
            curve = self._curves.get((signature_name, lengths))
            if curve is None:
                curve = self._add((signature_name, lengths))
            if run_s < self._fastest_s.get(signature_name, math.inf):
                self._fastest_s[signature_name] = run_s
            return curve.learn(rows, run_s)

    def fastest_s(self, signature_names: Iterable[str]) -> float:
        """Return the seconds of the fastest run of these signatures, or 0 if one of them has not run.

        A slow neighbour changes the means but not this lower bound of what an idle device needs.
        """
        with self._lock:
            return min((self._fastest_s.get(name, 0.0) for name in signature_names), default=0.0)

    def cost(self, signature_name: str, rows: int, lengths: tuple[int, ...] = ()) -> Cost | None:
        """Return the cost of a run of `rows` rows: measured, or by the line, or None if neither is known."""
        with self._lock:
            curve = self._curves.get((signature_name, lengths))
            return None if curve is None else curve.cost(rows)

    def mean_s(self, signature_name: str, rows: int, lengths: tuple[int, ...] = ()) -> float | None:
        """Return the mean seconds of a run of `rows` rows, or None if they are unknown."""
        cost = self.cost(signature_name, rows, lengths)
        return None if cost is None else cost.mean_s

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
