"""Thresholds of a run (`p99<=20ms`, `rate<500`), and the early end of a load that can no longer pass."""

import operator
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final, Self

from tpuserve_loadtests.arrivals.load import Load
from tpuserve_loadtests.measurement.measured import Measured
from tpuserve_loadtests.measurement.recorder import Counts, Tally
from tpuserve_loadtests.rendering.report import Case

_COMPARED: Final[dict[str, Callable[[float, float], bool]]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
}
_MS: Final = {"us": 0.001, "ms": 1.0, "s": 1000.0}
_THRESHOLD: Final = re.compile(
    r"(?P<metric>p\d{1,2}(?:\.\d+)?|max|mean|rate|error_rate|wrong_rate|wrong)(?P<relation><=|>=|<|>)"
    r"(?P<number>\d+(?:\.\d+)?)(?P<unit>us|ms|s|%|/s)?"
)
EXAMPLES: Final = "'p99>20ms', 'max>1s', 'mean>5ms', 'error_rate>0.1%', 'rate<500' or 'wrong>0'"
_SHARE: Final = ("", "%")
# Metrics except latencies, with their units.
_UNITS: Final = {"rate": ("", "/s"), "error_rate": _SHARE, "wrong_rate": _SHARE, "wrong": ("",)}


@dataclass(frozen=True, slots=True)
class Threshold:
    """A comparison of a figure with a value: a latency in milliseconds, a share, a rate per second or a count."""

    text: str
    metric: str
    relation: str
    value: float

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a threshold. Raises ValueError for an invalid text or unit."""
        found = _THRESHOLD.fullmatch(text.replace(" ", ""))
        if found is None:
            raise ValueError(f"{text!r} is not a threshold. Write a threshold such as {EXAMPLES}.")
        metric, unit = found["metric"], found["unit"] or ""
        units = _UNITS.get(metric, tuple(_MS))
        if unit not in units:
            wanted = " or ".join(unit or "no unit" for unit in units)
            raise ValueError(f"{text!r} has a wrong unit: {metric} needs {wanted}, as in {EXAMPLES}.")
        scale = 0.01 if unit == "%" else _MS.get(unit, 1.0)
        return cls(text, metric, found["relation"], float(found["number"]) * scale)

    @property
    def is_latency(self) -> bool:
        """Whether the value is a latency in milliseconds."""
        return self.metric not in _UNITS

    @property
    def is_of_checks(self) -> bool:
        return self.metric in ("wrong", "wrong_rate")

    @property
    def percentile(self) -> float | None:
        """The percentile (0 to 100) of the metric, or None for another metric."""
        return float(self.metric[1:]) if re.fullmatch(r"p[\d.]+", self.metric) else None

    @property
    def upper(self) -> bool:
        """Whether the comparison holds for values above the limit."""
        return self.relation in (">", ">=")

    @property
    def opposite(self) -> "Threshold":
        """The threshold that holds exactly when this one does not."""
        relation = {"<=": ">", "<": ">=", ">=": "<", ">": "<="}[self.relation]
        return replace(self, text=self.text.replace(self.relation, relation), relation=relation)

    def figure(self, measured: Measured) -> float | None:
        """Return the figure of a run, or None if the server answered no request, or no response was checked."""
        if self.metric == "rate":
            return measured.rate_per_s
        if self.metric == "error_rate":
            return measured.error_rate if measured.total.requests else None
        if self.is_of_checks:
            return _of_checks(self.metric, measured.total)
        histogram = measured.total.histogram
        if self.percentile is not None:
            return measured.total.percentile_ms(self.percentile)
        latency_us = histogram.max_us or None if self.metric == "max" else histogram.mean_us()
        return None if latency_us is None else latency_us / 1000

    def is_true_of(self, figure: float) -> bool:
        return _COMPARED[self.relation](figure, self.value)

    def show(self, figure: float | None) -> str:
        if figure is None:
            return "no response was compared" if self.is_of_checks else "no responses"
        if self.metric in ("error_rate", "wrong_rate"):
            return f"{100 * figure:.3g} %"
        if self.metric == "wrong":
            return f"{figure:,.0f} wrong"
        return f"{figure:.2f} ms" if self.is_latency else f"{figure:,.1f}/s"

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class GateResult:
    gate: Threshold
    figure: float | None
    failed: bool

    @classmethod
    def of(cls, gate: Threshold, figure: float | None) -> Self:
        """Judge a gate, which fails if it is true of its figure, or if it has no figure."""
        return cls(gate, figure, figure is None or gate.is_true_of(figure))

    @property
    def case(self) -> Case:
        """The report's test case."""
        return Case(str(self.gate), str(self) if self.failed else "")

    def as_document(self) -> dict[str, Any]:  # plain values of several types
        return {"gate": str(self.gate), "figure": self.figure, "failed": self.failed}

    def __str__(self) -> str:
        return f"{self.gate}: {'failed' if self.failed else 'passed'}, {self.gate.show(self.figure)}"


def gate_results(gates: tuple[Threshold, ...], measured: Measured) -> tuple[GateResult, ...]:
    return tuple(GateResult.of(gate, gate.figure(measured)) for gate in gates)


def _of_checks(metric: str, total: Tally) -> float | None:
    if not total.checked:
        return None
    return float(total.wrong) if metric == "wrong" else total.wrong / total.checked


# Factor for the estimated number of requests of a closed load, which can turn out too low.
_CLOSED_MARGIN = 2.0
# Factor for the random number of requests of an open load. A mean of 1,000 requests exceeds 1,100 once in 1,000 runs.
_OPEN_MARGIN = 1.1
# Smallest measured share of a run for an estimate.
_LEAST_SHARE = 0.2


@dataclass(frozen=True, slots=True)
class Hopeless:
    """Watcher of one load, whose `limits_us` correspond to `latency_gates` in order."""

    gates: tuple[Threshold, ...]
    load: Load

    def why(self, elapsed_s: float, counts: Counts) -> str:
        """Return the gate that the run can no longer pass, or an empty string."""
        most = self._most_requests(elapsed_s, counts)
        if most is None:
            return ""
        late = dict(zip(latency_gates(self.gates), counts.late, strict=True))
        for gate in self.gates:
            if gate.metric == "error_rate" and gate.upper and counts.failures > gate.value * most:
                return f"stopped early: {gate} is certain after {counts.failures:,} failures"
            if gate.metric == "wrong" and gate.upper and counts.wrong > gate.value:
                return f"stopped early: {gate} is certain"
            if gate in late and late[gate] > most * (0.0 if gate.percentile is None else 1 - gate.percentile / 100):
                return f"stopped early: {gate} is certain after {late[gate]:,} late responses"
        return ""

    def further(self, began_s: float, before: Counts) -> Callable[[float, Counts], str]:
        """Return `why` for a later part of the load.

        The part began `began_s` seconds after the start of the warm-up. `before` holds the counts until then.
        """
        return lambda elapsed_s, counts: self.why(began_s + elapsed_s, before + counts)

    def _most_requests(self, elapsed_s: float, counts: Counts) -> float | None:
        planned = self._planned_requests(elapsed_s, counts)
        if not self.load.requests:
            return planned
        return self.load.requests if planned is None else min(planned, self.load.requests)

    def _planned_requests(self, elapsed_s: float, counts: Counts) -> float | None:
        offered = self.load.offered_per_s
        if offered is not None:
            return offered * self.load.seconds * (1.0 if self.load.trace else _OPEN_MARGIN)
        share = (elapsed_s - self.load.warm_up_s) / self.load.seconds
        return _CLOSED_MARGIN * counts.requests / share if share >= _LEAST_SHARE else None


class Outage:
    """Watcher of one load for a server whose requests all fail for a while."""

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        # When the last success arrived or no request had failed since it, with the counts at that time.
        self._since_s, self._successes, self._failures = 0.0, 0, 0

    def why(self, elapsed_s: float, counts: Counts) -> str:
        """Return a reason once every request of `patience_s` seconds failed, or else an empty string."""
        successes = counts.requests - counts.failures
        if successes > self._successes or counts.failures == self._failures:
            self._since_s, self._successes, self._failures = elapsed_s, successes, counts.failures
        is_over = elapsed_s - self._since_s >= self._patience_s
        return f"stopped early: every request failed for {self._patience_s:g} s" if is_over else ""


def latency_gates(gates: tuple[Threshold, ...]) -> tuple[Threshold, ...]:
    """Return the gates that limit the number of late responses: percentiles and the largest latency."""
    return tuple(gate for gate in gates if gate.upper and (gate.percentile is not None or gate.metric == "max"))


def limits_us(gates: tuple[Threshold, ...]) -> tuple[float, ...]:
    """Return the latency limits that a load must count for `Hopeless`.

    They exceed the gates by 0.1 %, because histograms round by that much.
    """
    return tuple(gate.value * 1000 * 1.001 for gate in latency_gates(gates))
