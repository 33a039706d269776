"""CostCurve: how long runs of one signature take, by their number of rows. Pure arithmetic; threads are its owner's."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

# A run's weight never falls below this: what is known moves over to a change within some fifty batches.
_LEAST_WEIGHT = 0.02
# From this run on, one that took far longer than expected (a collection of garbage, a neighbour) counts as this many
# spreads late. If it stays so slow, the spread widens with each, and the mean follows. Before, when nobody knows the
# spread, it counts as twice what is expected at most.
_TRUSTED_RUNS = 6
_MOST_SPREADS = 4.0
# One so much faster is believed sooner: nothing makes a run too fast, but what made others slow may be gone.
_FAST_WEIGHT = 0.2
# A spread is at least this share of the mean, and after few runs more: nobody knows it from one.
_LEAST_SPREAD = 0.01
_FIRST_SPREAD = 0.1
_LEAST_SPREAD_S = 1e-6
# Sizes that are kept. Without buckets a batch has any size; by then the line has long been known.
_MOST_SIZES = 1024
# What a size that is not run keeps of what it cost more than at its best, from one fit to the next. Without that a size
# that a neighbour has made dear would not be chosen, and so stay dear, when the neighbour has long gone.
_MEMORY = 0.99
# What is derived is derived anew after this many runs, or as many as there are sizes.
_RUNS_A_FIT = 16


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds that a run takes on average, and their standard deviation from run to run."""

    mean_s: float
    spread_s: float


@dataclass(frozen=True, slots=True)
class Line:
    """A run takes about `t0_s + per_row_s * rows` seconds; neither is negative."""

    t0_s: float
    per_row_s: float

    def at(self, rows: int) -> float:
        """Seconds that a run of `rows` rows takes by the line."""
        return self.t0_s + self.per_row_s * rows


@dataclass(frozen=True, slots=True)
class MeasuredCost:
    """A size that has been run, its cost as it was measured, its fastest run, and how often it was."""

    rows: int
    mean_s: float
    spread_s: float
    fastest_s: float
    runs: int


class _Size:
    """Mean and variance of one size's runs. `least_s` is the least mean there was, `rested` after how many runs."""

    __slots__ = ("fastest_s", "least_s", "mean_s", "rested", "runs", "variance")

    def __init__(self, run_s: float) -> None:
        self.runs = self.rested = 1
        self.mean_s = self.least_s = self.fastest_s = run_s
        self.variance = 0.0

    def learn(self, run_s: float) -> None:
        """West's incremental mean and variance (CACM 22(9), 1979), with a weight that stops falling."""
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
        """Called with every fit: if it has not run since the last, forget a little of how slow it is now."""
        if self.runs < _TRUSTED_RUNS or self.mean_s < self.least_s:
            self.least_s = self.mean_s
        elif self.rested == self.runs:
            self.mean_s = self.least_s + _MEMORY * (self.mean_s - self.least_s)
        self.rested = self.runs

    def spread_s(self) -> float:
        """Standard deviation of a run, in seconds."""
        least = max(_LEAST_SPREAD, _FIRST_SPREAD / self.runs) * self.mean_s
        return max(math.sqrt(self.variance), least, _LEAST_SPREAD_S)


class CostCurve:
    """Costs of one signature by rows. Not safe for threads."""

    __slots__ = ("_costs", "_fit_at", "_line", "_runs", "_sizes")

    def __init__(self) -> None:
        """Nothing has run."""
        self._sizes: dict[int, _Size] = {}
        self._runs = 0
        # What is derived from the sizes, and the number of runs at which that is to be done again.
        self._fit_at = 0
        self._costs: dict[int, Cost] = {}
        self._line: Line | None = None

    def learn(self, rows: int, run_s: float) -> float:
        """A run of `rows` rows took `run_s` seconds. Returns the mean that was expected, 0 if it is the first."""
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
        """The cost of `rows` rows, made sane: never above that of more rows, as they could be padded to it.

        A slip of the clock at warm-up could otherwise keep a size from ever being run, and so from being corrected.
        """
        if self._runs >= self._fit_at:
            self._fit()
        cost = self._costs.get(rows)
        if cost is not None or self._line is None:
            return cost
        return self._by_line(rows, self._line)

    def line(self) -> Line | None:
        """The line through all sizes; None until two have run."""
        if self._runs >= self._fit_at:
            self._fit()
        return self._line

    def measured(self) -> tuple[MeasuredCost, ...]:
        """Each size, ascending, as it was measured."""
        return tuple(
            MeasuredCost(rows, size.mean_s, size.spread_s(), size.fastest_s, size.runs)
            for rows, size in sorted(self._sizes.items())
        )

    def _by_line(self, rows: int, line: Line) -> Cost:
        """With the relative spread of the nearest size that has run."""
        nearest = self._costs[min(self._costs, key=lambda known: abs(known - rows))]
        mean_s = line.at(rows)
        return Cost(mean_s, mean_s * nearest.spread_s / nearest.mean_s if nearest.mean_s else 0.0)

    def _fit(self) -> None:
        for size in self._sizes.values():
            size.forget()
        self._costs = _monotone(self._sizes)
        self._line = fit_line([(rows, cost.mean_s) for rows, cost in self._costs.items()])
        # Often while little is known, then seldom enough to cost nothing beside the runs.
        interval = min(max(_RUNS_A_FIT, len(self._sizes)), 1 + self._runs // 4)
        self._fit_at = self._runs + interval


def fit_line(points: Sequence[tuple[int, float]]) -> Line | None:
    """The line through (rows, seconds) by least squares of the relative error, neither part negative; None for a point.

    Relative, because otherwise the largest batch alone decides, whose noise is greater than a small one's cost.
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
    # Through the origin: the least squares where there is nothing but rows.
    squares = sum(w * rows * rows for w, (rows, _) in zip(weights, points, strict=True))
    return Line(0.0, sum(w * rows * seconds for w, (rows, seconds) in zip(weights, points, strict=True)) / squares)


def _monotone(sizes: dict[int, _Size]) -> dict[int, Cost]:
    """Costs by rows, descending in rows, none above that of the next larger."""
    costs: dict[int, Cost] = {}
    above = Cost(math.inf, 0.0)
    for rows in sorted(sizes, reverse=True):
        size = sizes[rows]
        if size.mean_s <= above.mean_s:
            above = Cost(size.mean_s, size.spread_s())
        costs[rows] = above
    return costs
