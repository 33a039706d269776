"""How many requests it takes to claim a percentile, as MLPerf Inference's LoadGen asks for it (early stopping).

n requests of which t were late show that at least a share p is in time, with confidence c, if such a sample would come
with probability 1 - c at most from a server of which exactly p is: P(Binomial(n, 1 - p) <= t) <= 1 - c. LoadGen writes
it as I(p; n - t, t + 1), the regularised incomplete beta function.
"""

import math

import numpy as np

from tpuserve_loadtests.statistics.histogram import LatencyHistogram

CONFIDENCE = 0.99


def late_probability(queries: int, late: int, share: float) -> float:
    """P(at most `late` of `queries` are late) where a share `share` (0 to 1) is in time; summed in logarithms."""
    if late >= queries:
        return 1.0
    k = np.arange(late)
    ratios = np.log(queries - k) - np.log(k + 1.0) + math.log((1 - share) / share)
    terms = queries * math.log(share) + np.concatenate(([0.0], np.cumsum(ratios)))
    return min(float(np.exp(np.logaddexp.reduce(terms))), 1.0)


def queries_needed(percentile: float, late: int = 0, confidence: float = CONFIDENCE) -> int:
    """The fewest requests that show the percentile (0 to 100, exclusive) with `late` late ones among them."""
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
    """How many of so many requests may be late for the percentile to be shown; None if there are too few for any."""
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
    """What share of all requests may have a flaw, so confidently at most, if none of so many drawn ones had it."""
    return float(1 - (1 - confidence) ** (1 / queries))


def upper_bound_us(histogram: LatencyHistogram, percentile: float, confidence: float = CONFIDENCE) -> int | None:
    """What the percentile does not exceed, so confidently, in microseconds; None if there are too few requests."""
    allowed = late_allowed(histogram.count, percentile, confidence)
    return None if allowed is None else histogram.value_at_rank(histogram.count - allowed)
