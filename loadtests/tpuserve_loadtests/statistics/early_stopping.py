"""Numbers of requests that are needed to claim a percentile, as in MLPerf Inference's LoadGen (early stopping).

A sample of n requests, t of them late, can show with confidence c that at least a share p is in time. It does so if a
server with a share of exactly p produces such a sample with probability 1 - c at most:
P(Binomial(n, 1 - p) <= t) <= 1 - c. LoadGen writes it as I(p; n - t, t + 1), the regularised incomplete beta function.
"""

import math
from bisect import bisect_left, bisect_right
from statistics import NormalDist

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
    share, high = percentile / 100, max(2 * (late + 1), 16)
    while late_probability(high, late, share) > 1 - confidence:
        high *= 2
    # The probability falls with the number of requests.
    return bisect_left(range(high), confidence - 1, lo=late + 1, key=lambda n: -late_probability(n, late, share))


def late_allowed(queries: int, percentile: float, confidence: float = CONFIDENCE) -> int | None:
    """Return the largest number of late requests that still shows the percentile, or None for too few requests."""
    share = percentile / 100
    allowed = bisect_right(range(queries), 1 - confidence, key=lambda late: late_probability(queries, late, share)) - 1
    return None if allowed < 0 else allowed


def share_unseen(queries: int, confidence: float = CONFIDENCE) -> float:
    """Return the upper limit of the share of defects, given that none of `queries` random requests has one."""
    return float(1 - (1 - confidence) ** (1 / queries))


def upper_bound_us(histogram: LatencyHistogram, percentile: float, failures: int = 0) -> int | None:
    """Return the upper limit of a percentile in microseconds, with a confidence of 99 %.

    `failures` count as late. Returns None for too few requests, and if the limit falls among the failures.
    """
    requests = histogram.count + failures
    allowed = late_allowed(requests, percentile)
    is_known = allowed is not None and failures <= allowed
    return histogram.value_at_rank(requests - allowed) if allowed is not None and is_known else None


def requests_needed(percentile: float, late: int, requests: int) -> int | None:
    """Return about the number of requests that shows the percentile, if the share of late ones remains the same.

    The normal approximation of the binomial distribution gives it. Returns None if the share is not below that of the
    percentile.
    """
    if not late:
        return queries_needed(percentile)
    share, late_share = percentile / 100, late / requests
    margin = 1 - share - late_share
    if margin <= 0:
        return None
    deviations = NormalDist().inv_cdf(CONFIDENCE)
    return max(queries_needed(percentile), math.ceil(share * (1 - share) * (deviations / margin) ** 2))
