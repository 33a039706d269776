"""Thresholds of a run (`p99<=20ms`, `rate<500`), and the early end of a load that can no longer pass."""

import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import NormalDist
from typing import Any, Final, Self

from tpuserve_formats.counted import counted
from tpuserve_loadtests.arrivals.load import Load
from tpuserve_loadtests.measurement.measured import Measured, Part
from tpuserve_loadtests.measurement.recorder import ITL, TTFT, Counts, Tally
from tpuserve_loadtests.rendering.report import Case
from tpuserve_loadtests.requests.workload import simplified
from tpuserve_loadtests.statistics.early_stopping import (
    CONFIDENCE,
    late_allowed,
    late_probability,
    requests_needed,
    share_unseen,
    upper_bound_us,
)
from tpuserve_loadtests.statistics.histogram import LatencyHistogram

_COMPARED: Final[dict[str, Callable[[float, float], bool]]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
}
_MS: Final = {"us": 0.001, "ms": 1.0, "s": 1000.0}
_THRESHOLD: Final = re.compile(
    rf"(?:(?P<selector>.+)\.)?(?P<metric>(?:(?:{TTFT}|{ITL})_)?p\d{{1,2}}(?:\.\d+)?|"
    r"max|mean|rate|goodput|error_rate|wrong_rate|wrong)\s*(?P<relation><=|>=|<|>)\s*"
    r"(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>us|ms|s|%|/s)?"
)
EXAMPLES: Final = (
    "'p99>20ms', 'small.p99>20ms', '*.error_rate>1%', 'max>1s', 'mean>5ms', 'error_rate>0.1%', 'rate<500' or 'wrong>0'"
)
_SHARE: Final = ("", "%")
# The selector of each line.
EACH: Final = "*"
# The smallest share of the requests with which a line decides about a gate without a selector.
_LEAST_SHARE_OF_LINE: Final = 0.01
_DEVIATIONS: Final = NormalDist().inv_cdf(CONFIDENCE)
# Metrics except latencies, with their units.
_UNITS: Final = {"rate": ("", "/s"), "goodput": ("", "/s"), "error_rate": _SHARE, "wrong_rate": _SHARE, "wrong": ("",)}


@dataclass(frozen=True, slots=True)
class Threshold:
    """A comparison of a figure with a value: a latency in milliseconds, a share, a rate per second or a count.

    `selector` names the lines of the table whose requests it judges: `*` for each line, or empty for all together.
    """

    text: str
    metric: str
    relation: str
    value: float
    selector: str = ""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a threshold. Raises ValueError for an invalid text or unit."""
        found = _THRESHOLD.fullmatch(text.strip())
        if found is None:
            raise ValueError(f"{text!r} is not a threshold. Write a threshold such as {EXAMPLES}.")
        metric, unit = found["metric"], found["unit"] or ""
        units = _UNITS.get(metric, tuple(_MS))
        if unit not in units:
            wanted = " or ".join(unit or "no unit" for unit in units)
            raise ValueError(f"{text!r} has a wrong unit: {metric} needs {wanted}, as in {EXAMPLES}.")
        scale = 0.01 if unit == "%" else _MS.get(unit, 1.0)
        return cls(text, metric, found["relation"], float(found["number"]) * scale, found["selector"] or "")

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
    def series(self) -> str:
        """TTFT or ITL if the metric is a percentile of this series of streamed responses, else empty."""
        return next((name for name in (TTFT, ITL) if self.metric.startswith(name)), "")

    @property
    def upper(self) -> bool:
        """Whether the comparison holds for values above the limit."""
        return self.relation in (">", ">=")

    @property
    def opposite(self) -> "Threshold":
        """The threshold that holds exactly when this one does not."""
        relation = {"<=": ">", "<": ">=", ">=": "<", ">": "<="}[self.relation]
        return replace(self, text=self.text.replace(self.relation, relation), relation=relation)

    @property
    def limit(self) -> str:
        """The comparison without its metric, such as `> 20 ms`."""
        found = _THRESHOLD.fullmatch(self.text.strip())
        assert found is not None  # `parse` checked it
        unit = found["unit"] or ""
        return f"{self.relation} {found['number']}{unit if unit in ('', '/s') else f' {unit}'}"

    @property
    def name(self) -> str:
        """The metric with its selector."""
        return f"{self.selector}.{self.metric}" if self.selector else self.metric

    def figure(self, part: Part, within_ms: float = math.inf) -> float | None:
        """Return the figure of a part of a run, or None if the server answered no request.

        The goodput counts the good responses within `within_ms`.
        """
        tally, histogram = part.tally, part.tally.histogram
        if self.metric == "rate":
            return part.rate_per_s
        if self.metric == "goodput":
            return Goodput.of(part, within_ms).rate_per_s
        if self.metric == "error_rate":
            return tally.failures / tally.requests if tally.requests else None
        if self.is_of_checks:
            rate = tally.wrong_rate
            return rate if rate is None or self.metric == "wrong_rate" else float(tally.wrong)
        if self.series:
            found = tally.series.get(self.series, LatencyHistogram())
            series_us = found.percentile_us(float(self.metric.rpartition("p")[2]))
            return None if series_us is None else series_us / 1000
        if self.percentile is not None:
            return tally.percentile_ms(self.percentile)
        latency_us = histogram.max_us or None if self.metric == "max" else histogram.mean_us()
        return None if latency_us is None else latency_us / 1000

    def shortfall(self, tally: Tally) -> str:
        """Return why so few requests cannot show that the gate passes; empty if they can.

        A percentile needs a bound that keeps the limit with 99 % confidence. A share needs so many requests that a
        single failure does not exceed the limit. The other metrics need no more than a figure.
        """
        if not self.upper or not self.value:
            return ""
        if self.percentile:
            requests, late = tally.requests, tally.late(self.value)
            allowed = late_allowed(requests, self.percentile)
            if allowed is not None and late <= allowed:
                return ""
            bound_us = upper_bound_us(tally.histogram, self.percentile, tally.failures)
            bound = "no bound" if bound_us is None else f"at most {bound_us / 1000:.2f} ms"
            needed = requests_needed(self.percentile, late, requests)
        elif self.metric in ("error_rate", "wrong_rate"):
            requests = (self.is_of_checks and tally.checked) or tally.requests
            needed = math.ceil(1 / self.value - 1e-6)
            if requests >= needed or not requests:
                return ""
            bound = f"at most {100 * share_unseen(requests):.2g} %"
        else:
            return ""
        wanted = f"about {needed:,} are needed" if needed else "the share of late ones is at its limit"
        return f"{counted(requests, 'request')} can show {bound} with 99 % confidence, and {wanted}"

    def is_broken_by(self, tally: Tally) -> bool:
        """Return whether requests show with 99 % confidence that they break an upper limit."""
        requests, failures = tally.requests, tally.failures
        if not self.upper or not requests:
            return False
        if self.percentile:
            in_time_allowed = late_allowed(requests, 100 - self.percentile)
            return in_time_allowed is not None and requests - tally.late(self.value) <= in_time_allowed
        if self.metric == "error_rate" and self.value < 1:
            # A share of 0 needs no confidence: one failure breaks it.
            is_rare = self.value > 0 and late_probability(requests, requests - failures, self.value) > 1 - CONFIDENCE
            return failures > self.value * requests and not is_rare
        if self.metric == "mean" and (mean_us := tally.histogram.mean_us()) is not None:
            error_us = tally.histogram.deviation_us() / math.sqrt(tally.histogram.count)
            return tally.histogram.count > 1 and mean_us - _DEVIATIONS * error_us > self.value * 1000
        return False

    def is_true_of(self, figure: float) -> bool:
        return _COMPARED[self.relation](figure, self.value)

    def show(self, figure: float | None) -> str:
        if figure is None:
            return "unknown (no responses, or too many failures)"
        if self.metric in ("error_rate", "wrong_rate"):
            return f"{100 * figure:.3g} %"
        if self.metric == "wrong":
            return counted(round(figure), "response")
        return f"{figure:.2f} ms" if self.is_latency else f"{figure:,.1f}/s"

    def __str__(self) -> str:
        return self.text


def latency_limit_ms(gates: Iterable[Threshold]) -> float:
    """Return the latency within which a good response counts for the goodput: the lowest limit of a percentile."""
    limits = (gate.value for gate in gates if gate.upper and gate.percentile is not None and not gate.selector)
    return min(limits, default=math.inf)


@dataclass(frozen=True, slots=True)
class Goodput:
    """The rate of the good responses within a latency limit in milliseconds. Late and failed requests do not count."""

    rate_per_s: float
    within_ms: float

    @classmethod
    def of(cls, part: Part, within_ms: float) -> Self:
        good = part.tally.requests - part.tally.late(within_ms)
        return cls(good / part.seconds if part.seconds else 0.0, within_ms)

    @property
    def limit(self) -> str:
        return f"within {self.within_ms:g} ms"


@dataclass(frozen=True, slots=True)
class GateResult:
    """The result of a gate: failed, or not enough evidence for the reason in `shortfall`, or passed.

    `line` is the line of the table that decided, or empty for all requests.
    """

    gate: Threshold
    figure: float | None
    failed: bool
    shortfall: str = ""
    line: str = ""

    @classmethod
    def of(cls, gate: Threshold, figure: float | None, shortfall: str = "", line: str = "") -> Self:
        """Judge a gate, which fails if it is true of its figure, or if it has no figure."""
        failed = figure is None or gate.is_true_of(figure)
        return cls(gate, figure, failed, "" if failed else shortfall, line)

    @property
    def condition(self) -> str:
        """The gate in words: gates are conditions of failure, and `p99>20ms` alone reads as the wish."""
        return f"fails if {self.gate.name} {self.gate.limit}"

    @property
    def finding(self) -> str:
        """The figure with the limit, such as `p99 8.09 ms, fails if > 20 ms`."""
        shortfall = f"; {self.shortfall}" if self.shortfall else ""
        line = f" of {self.line}" if self.line else ""
        return f"{self.gate.name}{line} {self.gate.show(self.figure)}, fails if {self.gate.limit}{shortfall}"

    @property
    def outcome(self) -> str:
        return "failed" if self.failed else "not enough" if self.shortfall else "passed"

    @property
    def case(self) -> Case:
        """The report's test case, whose name is true if it passes."""
        name, words = f"{self.gate.name} {self.gate.opposite.limit}", str(self)
        return Case(name, words if self.failed else "", error=words if self.shortfall else "")

    def as_document(self) -> dict[str, Any]:  # plain values of several types
        return {
            "gate": str(self.gate),
            "figure": self.figure,
            "failed": self.failed,
            "line": self.line,
            "shortfall": self.shortfall,
        }

    def __str__(self) -> str:
        return f"{self.outcome}: {self.finding}"


@dataclass(frozen=True, slots=True)
class Lines:
    """The lines of the table, as gates select them.

    `words` are the words that select each line, in simplified form. `named` are the lines of each part that a scenario
    lists.
    """

    words: Mapping[str, frozenset[str]] = field(default_factory=dict)
    named: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def check(self, gates: Sequence[Threshold], steps: Sequence[str] = ()) -> None:
        """Raise ValueError for a gate that selects no line and no step."""
        for gate in gates:
            if gate.selector not in ("", EACH, *steps) and not self._selected(gate, list(self.words)):
                known = ", ".join([*self.words, *steps])
                raise ValueError(f"{gate} selects no line. The lines are: {known}. Write {EACH} for each line.")

    def results(self, gates: Sequence[Threshold], measured: Measured) -> tuple[GateResult, ...]:
        """Judge gates on a run.

        A gate without a selector judges all requests. It also fails if a part shows with 99 % confidence that it breaks
        the limit: a part of a scenario, or a line or step with at least 1 % of the requests. Percentiles and means omit
        a slow start.
        """
        parts, settled = self._parts(measured), measured.settled
        of_settled = self._parts(settled) if settled is not measured else parts
        return tuple(
            self._result(gate, gates, settled, of_settled)
            if gate.percentile is not None or gate.metric == "mean"
            else self._result(gate, gates, measured, parts)
            for gate in gates
        )

    def _result(
        self, gate: Threshold, gates: Sequence[Threshold], measured: Measured, parts: Sequence[Part]
    ) -> GateResult:
        def judge(part: Part) -> GateResult:
            return GateResult.of(
                gate, gate.figure(part, latency_limit_ms(gates)), gate.shortfall(part.tally), part.name
            )

        result = max(map(judge, self.judged(gate, measured)), key=_worst)
        if not gate.selector and not result.failed:
            broken = [judge(part) for part in parts if gate.is_broken_by(part.tally)]
            return max(broken, key=_worst, default=result)
        return result

    def judged(self, gate: Threshold, measured: Measured) -> list[Part]:
        """Return the parts of a run that a gate judges, without a name if there is only one."""
        if not gate.selector:
            return [measured.whole]
        if gate.selector == EACH:
            return [measured.part(line, [line]) for line in measured.recorder.lines]
        steps = [part for part in measured.steps() if simplified(part.name) == simplified(gate.selector)]
        part = steps[0] if steps else measured.part("", self._selected(gate, measured.recorder.lines))
        return [replace(part, name="")]

    def broken(self, gate: Threshold, measured: Measured) -> list[Part]:
        """Return the parts that show with 99 % confidence that they break a gate without a selector."""
        return [] if gate.selector else [part for part in self._parts(measured) if gate.is_broken_by(part.tally)]

    def _selected(self, gate: Threshold, lines: Sequence[str]) -> list[str]:
        selector = simplified(gate.selector)
        return [line for line in lines if selector in (simplified(line), *self.words.get(line, ()))]

    def _parts(self, measured: Measured) -> list[Part]:
        named = [measured.part(name, lines) for name, lines in self.named.items()]
        of_lines = [measured.part(line, [line]) for line in measured.recorder.lines]
        least = _LEAST_SHARE_OF_LINE * measured.total.requests
        return named + [part for part in (*of_lines, *measured.steps()) if part.tally.requests >= least]


def _worst(result: GateResult) -> tuple[bool, bool, float]:
    return result.failed, bool(result.shortfall), math.inf if result.figure is None else result.figure


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
        for gate in (gate for gate in self.gates if not gate.selector):
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
    return tuple(
        gate
        for gate in gates
        if gate.upper and not gate.selector and (gate.percentile is not None or gate.metric == "max")
    )


def limits_us(gates: tuple[Threshold, ...]) -> tuple[float, ...]:
    """Return the latency limits that a load must count for `Hopeless`.

    They exceed the gates by 0.1 %, because histograms round by that much.
    """
    return tuple(gate.value * 1000 * 1.001 for gate in latency_gates(gates))
