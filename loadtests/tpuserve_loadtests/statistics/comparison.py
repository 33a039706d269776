"""Better, same, worse, or not to be told: what a comparison of two versions comes to."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from tpuserve_loadtests.statistics.bootstrap import Block, Ratio, Round, ratios
from tpuserve_loadtests.statistics.early_stopping import queries_needed

# Three figures are looked at, each in both directions: a false alarm in any of them shall be rare.
CONFIDENCE: Final = 0.99
LEAST_EFFECT: Final = 0.05
PERCENTILES: Final = (50.0, 99.0)
FIGURES: Final = (*(f"p{p:g}" for p in PERCENTILES), "rate")
# A figure that may be so many times the least effect worse is not called the same. At twice, one comparison in eight of
# two runs of one version, of six rounds with 4,000 requests, would be unclear; at three times it is one in a hundred.
_UNCLEAR_FROM: Final = 3
# A percentile of fewer requests than show it with so many late ones rests on a handful: resampling tells nothing of it.
_LEAST_LATE: Final = 5


class Verdict(StrEnum):
    """Of B, beside A. `UNCLEAR`: no difference was found, but one of several times the least effect can be there."""

    BETTER = "better"
    SAME = "same"
    WORSE = "worse"
    UNCLEAR = "unclear"


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure's ratio (B's over A's), and its verdict. `scarce`: it rests on too few requests to tell anything."""

    name: str
    ratio: Ratio
    verdict: Verdict
    scarce: bool

    @property
    def at_worst(self) -> float:
        """How many times worse B may be, by the interval: 1.1 is 10 % worse."""
        return _at_worst(self.name, self.ratio)


@dataclass(frozen=True, slots=True)
class Comparison:
    """All figures. B is worse if any of them is; else unclear if any is; else better if any is."""

    figures: tuple[Figure, ...]
    least_effect: float

    @property
    def verdict(self) -> Verdict:
        """Of B as a whole."""
        found = {figure.verdict for figure in self.figures}
        order = (Verdict.WORSE, Verdict.UNCLEAR, Verdict.BETTER)
        return next((verdict for verdict in order if verdict in found), Verdict.SAME)


def compare(rounds: Sequence[Round], least_effect: float = LEAST_EFFECT) -> Comparison:
    """A figure differs if its interval leaves out 1 and its ratio is beyond the least effect (0.05: 5 %).

    A percentile of too few requests is unclear.
    """
    found = ratios(rounds, PERCENTILES, confidence=CONFIDENCE)
    requests = min(_requests(each.a for each in rounds), _requests(each.b for each in rounds))
    scarce = {f"p{p:g}" for p in PERCENTILES if requests < queries_needed(p, _LEAST_LATE)}
    figures = (
        Figure(name, ratio, Verdict.UNCLEAR, scarce=True) if name in scarce else _figure(name, ratio, least_effect)
        for name, ratio in found.items()
    )
    return Comparison(tuple(figures), least_effect)


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
