"""Better, same or worse: what a comparison of two versions comes to."""

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
# A percentile of fewer requests than show it with so many late ones rests on a handful: resampling tells nothing of it.
_LEAST_LATE: Final = 5


class Verdict(StrEnum):
    """Of B, beside A."""

    BETTER = "better"
    SAME = "same"
    WORSE = "worse"


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure's ratio (B's over A's) and its verdict. `resolved`: measured well enough to see the least effect."""

    name: str
    ratio: Ratio
    verdict: Verdict
    resolved: bool


@dataclass(frozen=True, slots=True)
class Comparison:
    """All figures. B is worse if any of them is, else better if any of them is."""

    figures: tuple[Figure, ...]
    least_effect: float

    @property
    def verdict(self) -> Verdict:
        """Of B as a whole."""
        found = {figure.verdict for figure in self.figures}
        return next((verdict for verdict in (Verdict.WORSE, Verdict.BETTER) if verdict in found), Verdict.SAME)


def compare(rounds: Sequence[Round], least_effect: float = LEAST_EFFECT) -> Comparison:
    """A figure differs if its interval leaves out 1 and its ratio is beyond the least effect (0.05: 5 %).

    A percentile of too few requests is neither resolved nor different.
    """
    found = ratios(rounds, PERCENTILES, confidence=CONFIDENCE)
    requests = min(_requests(each.a for each in rounds), _requests(each.b for each in rounds))
    scarce = {f"p{p:g}" for p in PERCENTILES if requests < queries_needed(p, _LEAST_LATE)}
    figures = (
        Figure(name, ratio, Verdict.SAME, resolved=False) if name in scarce else _figure(name, ratio, least_effect)
        for name, ratio in found.items()
    )
    return Comparison(tuple(figures), least_effect)


def _requests(runs: Iterable[Sequence[Block]]) -> int:
    return sum(int(block.counts.sum()) for run in runs for block in run)


def _figure(name: str, ratio: Ratio, least_effect: float) -> Figure:
    higher = ratio.low > 1 and ratio.ratio >= 1 + least_effect
    lower = ratio.high < 1 and ratio.ratio <= 1 / (1 + least_effect)
    worse, better = (lower, higher) if name == "rate" else (higher, lower)
    verdict = Verdict.WORSE if worse else Verdict.BETTER if better else Verdict.SAME
    width = 1 + least_effect
    return Figure(name, ratio, verdict, resolved=ratio.ratio / width <= ratio.low <= ratio.high <= ratio.ratio * width)
