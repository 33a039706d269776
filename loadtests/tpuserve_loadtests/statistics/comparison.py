"""Verdicts of a comparison of two versions, from confidence intervals by resampling the measurements of both.

Consecutive requests are correlated, for instance by a queue or a pause. The resampling therefore draws blocks of time
instead of single requests (block bootstrap). Runs of A and B alternate, so a disturbance affects both runs of a round.
The resampling draws rounds as pairs, then blocks within each run.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tpuserve_loadtests.statistics.early_stopping import queries_needed
from tpuserve_loadtests.statistics.histogram import Counts

RESAMPLES: Final = 1000
SEED: Final = 20
# Resolution of latencies: 0.2 %, a 25th of the default least effect.
_STEP: Final = 0.002

_Floats: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Block:
    """A period of a run: latencies in microseconds with their counts, responses in `seconds`, and failed requests."""

    latencies_us: Counts
    counts: Counts
    completed: int
    seconds: float
    failures: int = 0


@dataclass(frozen=True, slots=True)
class Round:
    """Consecutive runs of A and B. Each has at least one block."""

    a: tuple[Block, ...]
    b: tuple[Block, ...]


@dataclass(frozen=True, slots=True)
class Ratio:
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


def ratios(
    rounds: Sequence[Round], percentiles: Sequence[float], *, confidence: float, resamples: int = RESAMPLES
) -> dict[str, Ratio]:
    """Return ratios of latency percentiles (`p99`, in microseconds) and of throughput (`rate`, responses per second).

    The result omits undefined ratios, such as those of a run without responses. It is deterministic.
    """
    random = np.random.default_rng(SEED)
    times = _drawn_rounds(len(rounds), resamples, random)
    edges = _edges([block for each in rounds for block in (*each.a, *each.b)])
    a = _Sample([each.a for each in rounds], times, edges, random)
    b = _Sample([each.b for each in rounds], times, edges, random)
    figures = {f"p{percentile:g}": (a.percentile(percentile), b.percentile(percentile)) for percentile in percentiles}
    figures["rate"] = (a.rate(), b.rate())
    found = {name: _ratio(*both, confidence) for name, both in figures.items()}
    return {name: ratio for name, ratio in found.items() if ratio is not None}


def failure_shares(rounds: Sequence[Round], *, confidence: float, resamples: int = RESAMPLES) -> Difference | None:
    """Return the shares of requests that failed, or None if A or B sent no request. The result is deterministic."""
    random = np.random.default_rng(SEED)
    times = _drawn_rounds(len(rounds), resamples, random)
    a, b = (_failed([each.a for each in rounds], times, random), _failed([each.b for each in rounds], times, random))
    every = b - a
    if not np.isfinite(every[0]):
        return None
    low, high = np.percentile(every[np.isfinite(every)], _tails(confidence))
    return Difference(float(a[0]), float(b[0]), float(every[0]), float(low), float(high))


def _drawn_rounds(rounds: int, resamples: int, random: np.random.Generator) -> NDArray[np.int64]:
    drawn = random.multinomial(rounds, np.full(rounds, 1 / rounds), resamples)
    return np.vstack([np.ones(rounds, np.int64), drawn])


def _failed(runs: Sequence[Sequence[Block]], times: NDArray[np.int64], random: np.random.Generator) -> _Floats:
    weights = np.hstack([_draw(len(run), times[:, number], random) for number, run in enumerate(runs)])
    blocks = [block for run in runs for block in run]
    failures = np.array([block.failures for block in blocks], np.float64)
    requests = np.array([block.failures + block.counts.sum() for block in blocks], np.float64)
    with np.errstate(invalid="ignore"):
        shares: _Floats = (weights @ failures) / (weights @ requests)
    return shares


class _Sample:
    """One version's blocks, and the number of times that each resample draws each block. Row 0 is the measurement
    itself."""

    def __init__(
        self, runs: Sequence[Sequence[Block]], times: NDArray[np.int64], edges: _Floats, random: np.random.Generator
    ) -> None:
        blocks = [block for run in runs for block in run]
        self._edges = edges
        self._weights = np.hstack([_draw(len(run), times[:, number], random) for number, run in enumerate(runs)])
        counts = np.array([_binned(block, edges) for block in blocks])
        # For each resample, the number of requests up to each edge.
        self._ends = self._weights @ np.cumsum(counts, axis=1)
        self._completed = np.array([block.completed for block in blocks], np.float64)
        self._seconds = np.array([block.seconds for block in blocks])

    def percentile(self, percent: float) -> _Floats:
        """Return the percentile of each resample in microseconds, or NaN without requests."""
        wanted = self._ends[:, -1:] * percent / 100
        found = self._edges[np.argmax(self._ends >= np.maximum(wanted, 1e-9), axis=1)]
        return np.where(self._ends[:, -1] > 0, found, np.nan)

    def rate(self) -> _Floats:
        with np.errstate(invalid="ignore"):
            rate: _Floats = (self._weights @ self._completed) / (self._weights @ self._seconds)
        return rate


def _draw(blocks: int, times: NDArray[np.int64], random: np.random.Generator) -> _Floats:
    """Return the number of times that each resample draws each block of a run.

    `times` holds the number of times that each resample draws the run's round.
    """
    weights = random.multinomial(times * blocks, np.full(blocks, 1 / blocks)).astype(np.float64)
    weights[0] = 1.0
    return weights


def _edges(blocks: Sequence[Block]) -> _Floats:
    every = np.concatenate([block.latencies_us for block in blocks])
    if not len(every):
        return np.ones(1)
    steps = int(np.ceil(np.log(every.max() / every.min()) / _STEP)) + 1
    edges: _Floats = every.min() * np.exp(np.arange(steps + 1) * _STEP)
    return edges


def _binned(block: Block, edges: _Floats) -> _Floats:
    return np.bincount(np.searchsorted(edges, block.latencies_us), block.counts, len(edges)).astype(np.float64)


def _ratio(a: _Floats, b: _Floats, confidence: float) -> Ratio | None:
    with np.errstate(invalid="ignore", divide="ignore"):
        every = b / a
    if not np.isfinite(every[0]) or a[0] <= 0:
        return None
    low, high = np.percentile(every[np.isfinite(every)], _tails(confidence))
    return Ratio(float(a[0]), float(b[0]), float(every[0]), float(low), float(high))


def _tails(confidence: float) -> tuple[float, float]:
    tail = 100 * (1 - confidence) / 2
    return tail, 100 - tail


# High enough that a false alarm is rare, with three figures and two directions.
CONFIDENCE: Final = 0.99
LEAST_EFFECT: Final = 0.05
PERCENTILES: Final = (50.0, 99.0)
FIGURES: Final = (*(f"p{p:g}" for p in PERCENTILES), "rate")
# Smallest share of failed requests that counts, and smallest difference of these shares.
LEAST_FAILED: Final = 0.001
# A figure is unclear if its interval includes a deterioration of this many least effects. Consider two runs of the same
# version, with six rounds of 4,000 requests. With a limit of two, one such comparison in eight would be unclear. With
# three, it is one in a hundred.
_UNCLEAR_FROM: Final = 3
# A percentile needs enough requests to permit this many late ones. With fewer, the resampling is meaningless.
_LEAST_LATE: Final = 5


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
    """A figure's ratio (B / A) and verdict. `scarce` means that it has too few requests for a verdict."""

    name: str
    ratio: Ratio
    verdict: Verdict
    scarce: bool

    @property
    def at_worst(self) -> float:
        """The factor by which B may be worse, from the interval: 1.1 is 10 % worse."""
        return _at_worst(self.name, self.ratio)


@dataclass(frozen=True, slots=True)
class Failures:
    """The shares of failed requests, and the verdict on B's."""

    shares: Difference
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Comparison:
    """All figures, and the failures, which are None if a side sent no request.

    B is worse if any figure is; otherwise failing if requests fail; otherwise unclear or better if any figure is.
    """

    figures: tuple[Figure, ...]
    least_effect: float
    failures: Failures | None = None

    @property
    def verdict(self) -> Verdict:
        found = {figure.verdict for figure in self.figures}
        if self.failures is not None:
            found.add(self.failures.verdict)
        order = (Verdict.WORSE, Verdict.FAILING, Verdict.UNCLEAR, Verdict.BETTER)
        return next((verdict for verdict in order if verdict in found), Verdict.SAME)


def compare(rounds: Sequence[Round], least_effect: float = LEAST_EFFECT) -> Comparison:
    """Compare the versions.

    A figure differs if its interval excludes 1 and its ratio exceeds the least effect (0.05: 5 %). A percentile with
    too few requests is unclear. The share of failed requests differs if its interval excludes 0 and the difference
    exceeds LEAST_FAILED.
    """
    found = ratios(rounds, PERCENTILES, confidence=CONFIDENCE)
    requests = min(_requests(each.a for each in rounds), _requests(each.b for each in rounds))
    scarce = {f"p{p:g}" for p in PERCENTILES if requests < queries_needed(p, _LEAST_LATE)}
    figures = (
        Figure(name, ratio, Verdict.UNCLEAR, scarce=True) if name in scarce else _figure(name, ratio, least_effect)
        for name, ratio in found.items()
    )
    shares = failure_shares(rounds, confidence=CONFIDENCE)
    return Comparison(tuple(figures), least_effect, None if shares is None else judge_failures(shares))


def judge_failures(shares: Difference) -> Failures:
    """Judge the shares of failed requests. They are the same only if hardly any request fails."""
    if shares.low > 0 and shares.difference >= LEAST_FAILED:
        return Failures(shares, Verdict.WORSE)
    if shares.high < 0 and shares.difference <= -LEAST_FAILED:
        return Failures(shares, Verdict.BETTER)
    is_failing = max(shares.a, shares.b) >= LEAST_FAILED
    return Failures(shares, Verdict.FAILING if is_failing else Verdict.SAME)


def _requests(runs: Iterable[Sequence[Block]]) -> int:
    return sum(int(block.counts.sum()) for run in runs for block in run)


def _figure(name: str, ratio: Ratio, least_effect: float) -> Figure:
    higher = ratio.low > 1 and ratio.ratio >= 1 + least_effect
    lower = ratio.high < 1 and ratio.ratio <= 1 / (1 + least_effect)
    worse, better = (lower, higher) if name == "rate" else (higher, lower)
    if worse or better:
        return Figure(name, ratio, Verdict.WORSE if worse else Verdict.BETTER, scarce=False)
    unclear = _at_worst(name, ratio) > 1 + _UNCLEAR_FROM * least_effect
    return Figure(name, ratio, Verdict.UNCLEAR if unclear else Verdict.SAME, scarce=False)


def _at_worst(name: str, ratio: Ratio) -> float:
    if name != "rate":
        return ratio.high
    return 1 / ratio.low if ratio.low > 0 else math.inf
