"""Numbers of requests that are needed to claim a percentile, as in MLPerf Inference's LoadGen (early stopping).

A sample of n requests, t of them late, can show with confidence c that at least a share p is in time. It does so if a
server with a share of exactly p produces such a sample with probability 1 - c at most:
P(Binomial(n, 1 - p) <= t) <= 1 - c. LoadGen writes it as I(p; n - t, t + 1), the regularised incomplete beta function.
"""

import math

import numpy as np

from tpuserve_loadtests.statistics.histogram import LatencyHistogram

CONFIDENCE = 0.99


def late_probability(queries: int, late: int, share: float) -> float:
    """Return P(at most `late` of `queries` are late) for a share `share` (0 to 1) in time, as a sum of logarithms."""
    if late >= queries:
        return 1.0
    k = np.arange(late)
    ratios = np.log(queries - k) - np.log(k + 1.0) + math.log((1 - share) / share)
    terms = queries * math.log(share) + np.concatenate(([0.0], np.cumsum(ratios)))
    return min(float(np.exp(np.logaddexp.reduce(terms))), 1.0)


def queries_needed(percentile: float, late: int = 0, confidence: float = CONFIDENCE) -> int:
    """Return the smallest number of requests, `late` of them late, that shows the percentile (0 to 100, exclusive)."""
    share = percentile / 100
    low, high = late + 1, max(2 * (late + 1), 16)
    while late_probability(high, late, share) > 1 - confidence:
        low, high = high, high * 2
    while low < high:
        middle = (low + high) // 2
        if late_probability(middle, late, share) <= 1 - confidence:
            high = middle
        else:
            low = middle + 1
    return low


def late_allowed(queries: int, percentile: float, confidence: float = CONFIDENCE) -> int | None:
    """Return the largest number of late requests that still shows the percentile, or None for too few requests."""
    share = percentile / 100
    if late_probability(queries, 0, share) > 1 - confidence:
        return None
    low, high = 0, queries
    while high - low > 1:  # low is allowed, high is not
        middle = (low + high) // 2
        if late_probability(queries, middle, share) <= 1 - confidence:
            low = middle
        else:
            high = middle
    return low


def share_unseen(queries: int, confidence: float = CONFIDENCE) -> float:
    """Return the upper limit of the share of defects, given that none of `queries` random requests has one."""
    return float(1 - (1 - confidence) ** (1 / queries))


def upper_bound_us(histogram: LatencyHistogram, percentile: float, confidence: float = CONFIDENCE) -> int | None:
    """Return the upper limit of a percentile in microseconds, or None for too few requests."""
    allowed = late_allowed(histogram.count, percentile, confidence)
    return None if allowed is None else histogram.value_at_rank(histogram.count - allowed)
