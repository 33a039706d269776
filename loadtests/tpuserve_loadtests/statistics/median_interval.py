"""Medians of repeated runs with a confidence interval, and the rule that ends the repetition.

The interval needs no assumption about the distribution of the runs. It comes from order statistics: the k-th smallest
and the k-th largest of n independent values enclose the median with probability 1 - 2 P(Binomial(n, 1/2) < k) (Le
Boudec, "Performance Evaluation of Computer and Communication Systems", theorem 2.1). The rule is that of Hoefler and
Belli, "Scientific Benchmarking of Parallel Computing Systems" (SC 2015), section 4.2.2: repeat the measurement until
the interval lies within a relative distance of the median.

The rule looks after every run and stops at a narrow interval, so an interval that is narrow by chance ends it. In
simulations of at most 20 normal runs and a distance of 5 %, the final interval contained the true median in 96 % of the
cases for runs that vary by 3 %, and in 93 % for runs that vary by 5 %.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

CONFIDENCE: Final = 0.95


@dataclass(frozen=True, slots=True)
class MedianInterval:
    median: float
    low: float
    high: float

    @property
    def distance(self) -> float:
        """The distance of the farther end from the median, as a share of the median."""
        return max(self.high - self.median, self.median - self.low) / self.median if self.median else math.inf


def median_interval(values: Sequence[float], confidence: float = CONFIDENCE) -> MedianInterval | None:
    """Return the median with its interval, or None for too few values: below 6 for a confidence of 0.95."""
    rank = _rank(len(values), confidence)
    if not rank:
        return None
    ordered = sorted(values)
    return MedianInterval(statistics.median(ordered), ordered[rank - 1], ordered[-rank])


def values_needed(confidence: float = CONFIDENCE) -> int:
    """Return the smallest number of values that have an interval."""
    return math.ceil(1 - math.log2(1 - confidence))


def _rank(count: int, confidence: float) -> int:
    rank, outside = 0, 0.0
    while rank < count // 2 + count % 2:
        outside += math.comb(count, rank) / 2**count  # P(Binomial(count, 1/2) <= rank)
        if 2 * outside > 1 - confidence:
            return rank
        rank += 1
    return rank
