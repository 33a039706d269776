"""Quantiles of a histogram."""

from typing import Any

import numpy as np

from tpuserve_server.metrics.histogram import BucketCounts


def quantile(bounds: "np.ndarray[Any, np.dtype[np.float64]]", cumulative: BucketCounts, share: float) -> float | None:
    """Return the value below which `share` of the values are, or None without values.

    `cumulative` has a count for each of `bounds`, and the total last. Values are spread evenly within a bucket, and the
    first bucket begins at 0, as in Prometheus' histogram_quantile. Values above the last bound count as that bound.
    """
    total = int(cumulative[-1])
    if total == 0:
        return None
    rank = share * total
    place = int(np.searchsorted(cumulative, rank))
    if place >= len(bounds):
        return float(bounds[-1])
    below, lower = (0, 0.0) if place == 0 else (int(cumulative[place - 1]), float(bounds[place - 1]))
    within = int(cumulative[place]) - below
    return lower + (float(bounds[place]) - lower) * (rank - below) / within
