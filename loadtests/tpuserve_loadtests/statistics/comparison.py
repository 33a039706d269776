"""Verdicts of a comparison of two versions: better, same, worse, failing or unclear."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from tpuserve_loadtests.statistics.bootstrap import Block, Difference, Ratio, Round, failure_shares, ratios
from tpuserve_loadtests.statistics.early_stopping import queries_needed

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
        """The verdict on B as a whole."""
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
