"""Verdicts of a comparison of two versions, from one difference per round and figure.

Consecutive requests are correlated, for instance by a queue or a pause, but rounds are nearly independent. Runs of A
and B alternate, so a disturbance affects both runs of a round. Each round therefore gives one value of each figure: the
logarithm of the ratio of B to A. Equal versions make its distribution symmetric, so Student's t interval keeps its
confidence with few rounds.

All figures together raise a false alarm in at most 1 - CONFIDENCE of comparisons without a difference (Bonferroni). The
tenths of both distributions are figures, too: the shift function of Doksum (1974), in the form for pairs of Rousselet,
Pernet & Wilcox, "Beyond differences in means" (European Journal of Neuroscience, 2017). "Same" needs another proof:
each figure has an upper limit with 95 % confidence. All figures must pass, so these limits need no correction (Berger,
"Multiparameter hypothesis testing", Technometrics 1982).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cache
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tpuserve_loadtests.statistics.early_stopping import queries_needed
from tpuserve_loadtests.statistics.histogram import Counts

# Confidence that no figure of equal versions differs. B is called worse in half of the false alarms.
CONFIDENCE: Final = 0.98
# Confidence that a figure is below its `at_worst`.
_WORST_CONFIDENCE: Final = 0.95
LEAST_EFFECT: Final = 0.05
PERCENTILES: Final = (50.0, 90.0, 99.0, 99.9)
DISTRIBUTION: Final = "distribution"
RATE: Final = "rate"
_OF_ALL: Final = ("mean", *(f"p{p:g}" for p in PERCENTILES))
# The figures that a JUnit report lists before the first round.
FIGURES: Final = (*_OF_ALL, DISTRIBUTION)
_OF_LINES: Final = ("mean", "p50", "p99")
_TENTHS: Final = 10
# p99.9 of 12,000 requests is the 12th slowest request, which varies several times as much as p99.
_LEAST_EFFECTS: Final = {"p99.9": 4}
# Smallest share of failed requests that counts, and smallest difference of these shares.
LEAST_FAILED: Final = 0.001
# A figure is unclear if a deterioration of this many least effects is possible.
_UNCLEAR_FROM: Final = 3
# A percentile needs enough requests to permit this many late ones. With fewer, it is that of single requests.
_LEAST_LATE: Final = 5
# The smallest share of the requests that makes a line count.
LEAST_LINE: Final = 0.01

_Floats: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Sample:
    """A run, or a line of it: latencies in microseconds with their counts, responses in `seconds`, failed requests."""

    latencies_us: Counts
    counts: Counts
    completed: int
    seconds: float
    failures: int = 0

    @property
    def requests(self) -> int:
        return int(self.counts.sum()) + self.failures


@dataclass(frozen=True, slots=True)
class Round:
    """Consecutive runs of A and B, and of each line that both have, by its name."""

    a: Sample
    b: Sample
    lines: Mapping[str, tuple[Sample, Sample]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Ratio:
    """The geometric means of A's and B's rounds, their ratio B / A, and its interval with all figures' confidence."""

    a: float
    b: float
    ratio: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Difference:
    """A share of A and of B (0 to 1), the difference B - A, and its interval."""

    a: float
    b: float
    difference: float
    low: float
    high: float


class Verdict(StrEnum):
    """A verdict on B, compared with A.

    UNCLEAR means that no difference was found, but a difference of several least effects is possible. FAILING means
    that requests fail, without a clear difference in their share.
    """

    BETTER = "better"
    SAME = "same"
    WORSE = "worse"
    UNCLEAR = "unclear"
    FAILING = "failing"


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure's ratio (B / A) and verdict. `scarce` means that it has too few requests for a verdict.

    `at_worst` is the factor by which B may be worse, with 95 % confidence: 1.1 is 10 % worse. `part` is the tenth of
    the distribution that differs most.
    """

    name: str
    ratio: Ratio
    verdict: Verdict
    scarce: bool
    at_worst: float = 1.0
    part: str = ""


@dataclass(frozen=True, slots=True)
class Failures:
    """The shares of failed requests, and the verdict on B's."""

    shares: Difference
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Comparison:
    """All judged figures, and the failures, which are None if a side sent no request.

    B is worse if any figure is; otherwise failing if requests fail; otherwise unclear or better if any figure is.
    `rate` is the ratio of the throughputs, which an open load does not judge. `omitted` are figures that have too few
    requests, or that fall among the failed ones.
    """

    figures: tuple[Figure, ...]
    least_effect: float
    failures: Failures | None = None
    rate: Ratio | None = None
    omitted: tuple[str, ...] = ()

    @property
    def verdict(self) -> Verdict:
        found = {figure.verdict for figure in self.figures}
        if self.failures is not None:
            found.add(self.failures.verdict)
        order = (Verdict.WORSE, Verdict.FAILING, Verdict.UNCLEAR, Verdict.BETTER)
        return next((verdict for verdict in order if verdict in found), Verdict.SAME)


def compare(rounds: Sequence[Round], least_effect: float = LEAST_EFFECT, *, is_open: bool = False) -> Comparison:
    """Compare the versions over at least two rounds.

    A figure differs if its interval excludes 1 and its ratio exceeds the least effect (0.05: 5 %). A p99 with too few
    requests is unclear. The share of failed requests differs if its interval excludes 0 and the difference exceeds
    LEAST_FAILED.
    """
    logs = _log_figures(rounds)
    rate = np.array([[_log_rate(each) for each in (one.a, one.b)] for one in rounds])
    if not is_open:
        logs[RATE] = rate
    known = {name: values for name, values in logs.items() if np.isfinite(values).all()}
    # The failures are one figure more.
    confidence = 1 - (1 - CONFIDENCE) / (len(known) + 1)
    requests = min(sum(one.a.requests for one in rounds), sum(one.b.requests for one in rounds))
    found = {
        name: _judge(name, values, least_effect, confidence, is_scarce=requests < _requests_needed(name))
        for name, values in known.items()
    }
    tenths = [found.pop(name) for name in _tenths() if name in found]
    omitted = [name for name in logs if name not in known and name not in _tenths()]
    omitted += [name for name, figure in found.items() if _is_vague(figure)]
    figures = [figure for name, figure in found.items() if name not in omitted]
    is_unclear = any(figure.verdict is Verdict.UNCLEAR for figure in figures)
    figures += _distribution(tenths, may_be_unclear=is_unclear)
    shares = _failure_shares(rounds, confidence)
    failures = None if shares is None else judge_failures(shares)
    of_rate = _ratio(rate, confidence) if np.isfinite(rate).all() else None
    return Comparison(tuple(figures), least_effect, failures, of_rate, tuple(omitted))


def judge_rates(a: tuple[float, float], b: tuple[float, float], least_effect: float = LEAST_EFFECT) -> Figure:
    """Judge the highest rates that hold, each between a rate that holds and the next one, which does not.

    A rate of 0 means that none holds, and an infinite one that no higher rate was tried.
    """
    ratio = Ratio(a[0], b[0], _quotient(b[0], a[0]), _quotient(b[0], a[1]), _quotient(b[1], a[0]))
    at_worst = _quotient(a[1], b[0])
    return Figure(RATE, ratio, _verdict(RATE, ratio, at_worst, 1 + least_effect), False, at_worst)


def _quotient(dividend: float, divisor: float) -> float:
    return dividend / divisor if divisor else math.inf if dividend else 1.0


def judge_failures(shares: Difference) -> Failures:
    """Judge the shares of failed requests. They are the same only if hardly any request fails."""
    if shares.low > 0 and shares.difference >= LEAST_FAILED:
        return Failures(shares, Verdict.WORSE)
    if shares.high < 0 and shares.difference <= -LEAST_FAILED:
        return Failures(shares, Verdict.BETTER)
    is_failing = max(shares.a, shares.b) >= LEAST_FAILED
    return Failures(shares, Verdict.FAILING if is_failing else Verdict.SAME)


def _log_figures(rounds: Sequence[Round]) -> dict[str, _Floats]:
    """Return the logarithms of the figures by name, float64[rounds, 2], and NaN where a run has no such figure."""
    names = (*_OF_ALL, *_tenths())
    of_all = np.array([[_logs(each) for each in (one.a, one.b)] for one in rounds])
    found = {name: of_all[:, :, at] for at, name in enumerate(names)}
    total = sum(one.a.requests + one.b.requests for one in rounds)
    lines = [name for name in rounds[0].lines if all(name in one.lines for one in rounds)]
    for line in lines if len(lines) > 1 else ():
        pairs = [one.lines[line] for one in rounds]
        requests = [sum(pair[side].requests for pair in pairs) for side in range(2)]
        if sum(requests) < LEAST_LINE * total:
            continue
        of_line = np.array([[_logs(each) for each in pair] for pair in pairs])
        enough = [name for name in _OF_LINES if min(requests) >= _requests_needed(name)]
        found |= {f"{line}.{name}": of_line[:, :, names.index(name)] for name in enough}
    return found


def _logs(sample: Sample) -> _Floats:
    """Return logarithms of the mean, of percentiles, and of the tenths' geometric means. Failed requests are late."""
    total = int(sample.counts.sum())
    if not total:
        return np.full(len(_OF_ALL) + _TENTHS, np.nan)
    logs, ends = np.log(sample.latencies_us), np.cumsum(sample.counts)
    # Rounding can put the product slightly above a whole number, as in LatencyHistogram.
    ranks = np.ceil(sample.requests * np.array(PERCENTILES) / 100 - 1e-6)
    at = np.minimum(np.searchsorted(ends, np.maximum(ranks, 1)), len(ends) - 1)
    percentiles = np.where(ranks <= total, logs[at], np.nan)
    mean = math.log(float(np.average(sample.latencies_us, weights=sample.counts)))
    places, sums = np.append(0, ends), np.append(0, np.cumsum(sample.counts * logs))
    tenths = np.diff(np.interp(np.linspace(0, total, _TENTHS + 1), places, sums)) * _TENTHS / total
    return np.concatenate([[mean], percentiles, tenths])


@cache
def _tenths() -> tuple[str, ...]:
    step = 100 // _TENTHS
    return tuple(f"p{step * at} to p{step * (at + 1)}" for at in range(_TENTHS))


def _log_rate(sample: Sample) -> float:
    # Half a response stands for none, which has no logarithm.
    return math.log(max(sample.completed, 0.5) / sample.seconds) if sample.seconds > 0 else math.nan


def _requests_needed(name: str) -> int:
    return queries_needed(float(name[1:]), _LEAST_LATE) if name in _OF_ALL[1:] else 0


def _is_vague(figure: Figure) -> bool:
    """Return whether a figure that need not be known is unclear. The mean, p50 and p99 of all requests must be."""
    of_line_tail = figure.name.endswith(".p99") and figure.verdict is Verdict.UNCLEAR
    return of_line_tail or (figure.scarce and figure.name != "p99")


def _ratio(logs: _Floats, confidence: float) -> Ratio:
    low, high = _interval(logs[:, 1] - logs[:, 0], confidence)
    a, b = logs.mean(axis=0)
    return Ratio(math.exp(a), math.exp(b), math.exp(b - a), _factor(low), _factor(high))


def _judge(name: str, logs: _Floats, least_effect: float, confidence: float, *, is_scarce: bool) -> Figure:
    ratio = _ratio(logs, confidence)
    least = 1 + least_effect * _LEAST_EFFECTS.get(name, 1)
    # Both ends of a 90 % interval are limits with 95 % confidence.
    low, high = _interval(logs[:, 1] - logs[:, 0], 2 * _WORST_CONFIDENCE - 1)
    at_worst = _factor(-low if name == RATE else high)
    verdict = Verdict.UNCLEAR if is_scarce else _verdict(name, ratio, at_worst, least)
    return Figure(name, ratio, verdict, is_scarce, at_worst)


def _verdict(name: str, ratio: Ratio, at_worst: float, least: float) -> Verdict:
    higher = ratio.low > 1 and ratio.ratio >= least
    lower = ratio.high < 1 and ratio.ratio <= 1 / least
    if higher or lower:
        return Verdict.BETTER if higher == (name == RATE) else Verdict.WORSE
    return Verdict.UNCLEAR if at_worst > 1 + _UNCLEAR_FROM * (least - 1) else Verdict.SAME


def _distribution(tenths: Sequence[Figure], *, may_be_unclear: bool) -> list[Figure]:
    """Return the tenth that is surest to be worse, else to be better, else the one that differs most.

    A tenth alone is not unclear, because the other figures decide how much must be known.
    """
    worse = [each for each in tenths if each.verdict is Verdict.WORSE]
    better = [each for each in tenths if each.verdict is Verdict.BETTER]
    if worse or better:
        shown = max(worse, key=lambda each: each.ratio.low) if worse else min(better, key=lambda each: each.ratio.high)
        return [replace(shown, name=DISTRIBUTION, part=shown.name)]
    most = sorted(tenths, key=lambda each: abs(math.log(each.ratio.ratio)))[-1:]
    return [
        replace(each, name=DISTRIBUTION, part=each.name, verdict=each.verdict if may_be_unclear else Verdict.SAME)
        for each in most
    ]


def _failure_shares(rounds: Sequence[Round], confidence: float) -> Difference | None:
    """Return the mean shares of requests that failed, or None if a run sent no request."""
    if not all(one.a.requests and one.b.requests for one in rounds):
        return None
    shares = np.array([[each.failures / each.requests for each in (one.a, one.b)] for one in rounds])
    low, high = _interval(shares[:, 1] - shares[:, 0], confidence)
    a, b = map(float, shares.mean(axis=0))
    return Difference(a, b, b - a, low, high)


def _interval(values: _Floats, confidence: float) -> tuple[float, float]:
    """Return Student's t interval of the mean."""
    mean, size = float(values.mean()), len(values)
    width = _quantile(confidence, size - 1) * float(values.std(ddof=1)) / math.sqrt(size)
    return mean - width, mean + width


def _factor(log: float) -> float:
    # The interval of a few rounds can be astronomically wide.
    return math.exp(min(log, 700.0))


@cache
def _quantile(confidence: float, freedom: int) -> float:
    """Return the t for which |T| <= t has this probability, by bisection."""
    low, high = 0.0, 1.0
    while _within(high, freedom) < confidence:
        high *= 2
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if _within(middle, freedom) < confidence else (low, middle)
    return high


def _within(t: float, freedom: int) -> float:
    """Return P(|T| <= t) of Student's distribution (Abramowitz & Stegun 26.7.3 and 26.7.4)."""
    angle = math.atan(t / math.sqrt(freedom))
    odd = freedom % 2
    terms, term = 0.0, math.cos(angle) if odd else 1.0
    for power in range(1 + odd, freedom, 2):
        terms += term
        term *= math.cos(angle) ** 2 * power / (power + 1)
    return 2 / math.pi * (angle + math.sin(angle) * terms) if odd else math.sin(angle) * terms
