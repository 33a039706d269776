"""The rules of MLPerf Inference's four scenarios, and their verdict on a run: VALID or INVALID, with reasons.

Durations, counts and percentiles come from LoadGen's mlperf.conf. The statistics come from its early stopping
(loadgen/results.cc and early_stopping.cc of mlcommons/inference), which requires 99 % confidence. The results are not a
submission and not verified.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from tpuserve_formats.price import Price
from tpuserve_loadtests.judgement.exit_codes import EXIT_GATE, EXIT_GENERATOR, EXIT_INTERRUPTED
from tpuserve_loadtests.judgement.search import Searched
from tpuserve_loadtests.judgement.spending import Spending
from tpuserve_loadtests.measurement.measured import Measured
from tpuserve_loadtests.monitoring.watched import Watched
from tpuserve_loadtests.statistics.early_stopping import late_allowed, queries_needed

LEAST_DURATION_S: Final = 600.0
MIN_DURATION: Final = "Min duration satisfied"
GENERATOR: Final = "Load generator kept up"
_OFFLINE_SAMPLES: Final = 24_576
# LoadGen estimates a percentile only from enough queries to allow at least one late query.
_LEAST_LATE: Final = 1
# Rounding tolerance for the measured duration.
_ROUNDING_S: Final = 1e-6


class Scenario(StrEnum):
    SINGLE_STREAM = "SingleStream"
    MULTI_STREAM = "MultiStream"
    SERVER = "Server"
    OFFLINE = "Offline"


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules of one scenario. `percentile` is of query latency, and None if only throughput counts."""

    scenario: Scenario
    percentile: float | None
    min_queries: int
    min_samples: int


RULES: Final = {
    rules.scenario: rules
    for rules in (
        Rules(Scenario.SINGLE_STREAM, 90.0, queries_needed(90.0, _LEAST_LATE), 0),
        Rules(Scenario.MULTI_STREAM, 99.0, queries_needed(99.0, _LEAST_LATE), 0),
        Rules(Scenario.SERVER, 99.0, 0, 0),
        Rules(Scenario.OFFLINE, None, 0, _OFFLINE_SAMPLES),
    )
}


@dataclass(frozen=True, slots=True)
class Constraint:
    """A rule and its result, as a line of `detail` and as `needed` and `found` values."""

    name: str
    satisfied: bool
    detail: str
    needed: str
    found: str


@dataclass(frozen=True, slots=True)
class Result:
    """The verdict on a run.

    `metric` is a percentile estimate in nanoseconds, or samples per second; None if it is unknown.
    `measured_percentile_ns` is the plain percentile, without early stopping.
    """

    rules: Rules
    metric: float | None
    measured_percentile_ns: int | None
    samples: float
    constraints: tuple[Constraint, ...]

    @property
    def valid(self) -> bool:
        return all(constraint.satisfied for constraint in self.constraints)

    @property
    def valid_but_for_duration(self) -> bool:
        """Whether the run keeps all rules except the minimum duration."""
        return all(each.satisfied for each in self.constraints if each.name != MIN_DURATION)

    @property
    def generator_kept_up(self) -> bool:
        """Whether the load generator was not the limit."""
        return all(each.satisfied for each in self.constraints if each.name == GENERATOR)


def judge_mlperf(
    scenario: Scenario,
    measured: Measured,
    rows: float,
    target_latency_ms: float | None = None,
    limits: tuple[str, ...] = (),
) -> Result:
    """Judge a run of queries of `rows` samples by the rules. `limits` are the generator's."""
    rules = RULES[scenario]
    total = measured.total
    samples = total.requests * rows
    percentile_ns = None
    if rules.percentile is not None and (plain_us := total.histogram.percentile_us(rules.percentile)) is not None:
        percentile_ns = plain_us * 1000
    failed = f"{total.failures:,} of {total.requests:,} failed"
    kept_up = "; ".join(limits) or "not the limit"
    constraints = [
        Constraint(
            MIN_DURATION,
            measured.span_s >= LEAST_DURATION_S - _ROUNDING_S,
            f"{measured.span_s:.1f} s of {LEAST_DURATION_S:g} s",
            f"{LEAST_DURATION_S:g} s",
            f"{measured.span_s:.1f} s",
        ),
        _min_queries(rules, total.requests, samples),
        *_latency_constraints(rules, measured, percentile_ns, target_latency_ms),
        # LoadGen has no failed queries: it waits for every response.
        Constraint("All queries answered", not total.failures, failed, "no failures", failed),
        Constraint(GENERATOR, not limits, kept_up, "not the limit", kept_up),
    ]
    return Result(rules, _metric(rules, measured, rows), percentile_ns, samples, tuple(constraints))


def estimate_ns(measured: Measured, percentile: float) -> int | None:
    """Return LoadGen's early-stopping estimate of a percentile in nanoseconds, or None for too few queries."""
    histogram = measured.total.histogram
    discarded = discarded_queries(histogram.count, percentile)
    return None if discarded is None else histogram.value_at_rank(histogram.count - discarded) * 1000


def discarded_queries(queries: int, percentile: float) -> int | None:
    """Return the number of slowest queries that LoadGen's estimate discards, or None for too few queries.

    The number is one fewer than the number of queries that can be late.
    """
    allowed = late_allowed(queries, percentile)
    return allowed - 1 if allowed else None


def _metric(rules: Rules, measured: Measured, rows: float) -> float | None:
    if rules.scenario is Scenario.SERVER:
        return measured.total.requests / measured.span_s if measured.span_s else None
    if rules.percentile is None:
        return measured.rate_per_s * rows
    return estimate_ns(measured, rules.percentile)


def _min_queries(rules: Rules, queries: int, samples: float) -> Constraint:
    counts_samples = rules.min_samples > 0
    count, unit = (samples, "samples") if counts_samples else (float(queries), "queries")
    least = rules.min_samples if counts_samples else rules.min_queries
    found = f"{count:,.0f} {unit}"
    needed = f"{least:,} {unit}" if least else "any number"
    return Constraint("Min queries satisfied", count >= least, f"{found} of {least:,}", needed, found)


def _latency_constraints(
    rules: Rules, measured: Measured, percentile_ns: int | None, target_ms: float | None
) -> list[Constraint]:
    if rules.percentile is None:
        return []
    queries = measured.total.histogram.count
    if target_ms is None:
        discarded = discarded_queries(queries, rules.percentile)
        least = queries_needed(rules.percentile, _LEAST_LATE)
        detail = (
            f"only {queries:,} of {least:,} required queries"
            if discarded is None
            else f"{discarded:,} slowest discarded"
        )
        found = f"{queries:,} queries" if discarded is None else f"{queries:,} queries, {detail}"
        return [Constraint("Early stopping satisfied", discarded is not None, detail, f"{least:,} queries", found)]
    late = measured.total.histogram.count_above(target_ms * 1000)
    least = queries_needed(rules.percentile, late)
    within = percentile_ns is not None and percentile_ns <= target_ms * 1e6
    shown = "no responses" if percentile_ns is None else f"p{rules.percentile:g} {percentile_ns / 1e6:.2f} ms"
    return [
        Constraint(
            "Performance constraints satisfied",
            within,
            f"{shown}, target {target_ms:g} ms",
            f"p{rules.percentile:g} of at most {target_ms:g} ms",
            shown,
        ),
        Constraint(
            "Early stopping satisfied",
            queries >= least,
            f"{late:,} of {queries:,} queries late, {least:,} queries required",
            f"{least:,} queries for {late:,} late ones",
            f"{queries:,} queries, {late:,} late",
        ),
    ]


@dataclass(frozen=True, slots=True)
class MlperfOutcome:
    """The outcome of a run. With `quick`, the verdict ignores the duration.

    `watched` is the run with the server's metrics. `searched` is the preceding search, if any.
    `rows` is the mean number of samples in a query. `price` is that of the server's machine, if known.
    """

    result: Result
    watched: Watched
    quick: bool = False
    searched: Searched | None = None
    rows: float = 1.0
    price: Price | None = None

    @property
    def measured(self) -> Measured:
        (measured,) = self.watched.runs
        return measured

    @property
    def spending(self) -> Spending:
        return Spending(self.measured.rate_per_s, self.rows, self.price, self.watched.energy)

    @property
    def is_kept(self) -> bool:
        """Whether the run keeps the rules; `quick` ignores the rule on its duration."""
        return self.result.valid_but_for_duration if self.quick else self.result.valid

    @property
    def exit_code(self) -> int:
        """The exit code. An interrupted run is INVALID because of its length alone."""
        if not self.result.generator_kept_up:
            return EXIT_GENERATOR
        if self.measured.interruption:
            return EXIT_INTERRUPTED
        return 0 if self.is_kept else EXIT_GATE
