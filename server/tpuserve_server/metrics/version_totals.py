"""VersionTotals: everything that one version has done so far, and what it did between two moments."""

from collections import Counter, defaultdict
from dataclasses import dataclass, field

import numpy as np

from tpuserve_server.core.errors import Code
from tpuserve_server.core.live_figures import VersionTraffic
from tpuserve_server.core.types import ServableId
from tpuserve_server.metrics.bounds import BOTH_LATENCY_BOUNDS_S
from tpuserve_server.metrics.histogram import BucketCounts
from tpuserve_server.metrics.measurements import Measurements
from tpuserve_server.metrics.quantile import quantile

_BOUNDS_S = np.asarray(BOTH_LATENCY_BOUNDS_S, np.float64)


def _no_counts() -> BucketCounts:
    return np.zeros(len(BOTH_LATENCY_BOUNDS_S) + 1, np.int64)


@dataclass(slots=True)
class VersionTotals:
    """Sums since the version was loaded. `succeeded` are cumulative counts of latencies by bound."""

    succeeded: BucketCounts = field(default_factory=_no_counts)
    failed: Counter[Code] = field(default_factory=Counter)
    batches: int = 0
    rows: float = 0.0
    batched_requests: int = 0
    padding: float = 0.0
    run_s: float = 0.0

    def traffic_since(self, before: "VersionTotals", duration_s: float) -> VersionTraffic:
        """Return the traffic of the `duration_s` seconds between two totals of the same version."""
        # A version that was loaded again under the same number counts from 0.
        succeeded = np.maximum(self.succeeded - before.succeeded, 0)
        failed = self.failed - before.failed  # without codes whose count is 0 or less
        batches = max(self.batches - before.batches, 0)
        p50_s, p90_s, p99_s = (quantile(_BOUNDS_S, succeeded, share) for share in (0.5, 0.9, 0.99))

        def mean(now: float, then: float) -> float | None:
            return max(now - then, 0.0) / batches if batches else None

        return VersionTraffic(
            requests_per_s=(int(succeeded[-1]) + failed.total()) / duration_s,
            errors={code: count / duration_s for code, count in failed.items()},
            p50_s=p50_s,
            p90_s=p90_s,
            p99_s=p99_s,
            batch_rows=mean(self.rows, before.rows),
            batch_requests=mean(self.batched_requests, before.batched_requests),
            padding=mean(self.padding, before.padding),
            busy=max(self.run_s - before.run_s, 0.0) / duration_s,
        )


def version_totals(measured: Measurements) -> dict[ServableId, VersionTotals]:
    """Return the totals of each version that has answered a request or run a batch."""
    totals = defaultdict[ServableId, VersionTotals](VersionTotals)
    for key, latencies in measured.requests():
        if key.version is None:
            continue
        version = totals[ServableId(key.model, key.version)]
        if key.code is Code.OK:
            version.succeeded += latencies.counts()
        else:
            version.failed[key.code] += latencies.total()
    for version in totals.values():
        version.succeeded = np.cumsum(version.succeeded)
    batches = measured.batches
    for batch_key, histogram in batches.rows.items():
        version, (number, rows) = totals[batch_key.servable], histogram.number_and_sum()
        version.batches += number
        version.rows += rows
    for batch_key, histogram in batches.queue_wait.items():
        totals[batch_key.servable].batched_requests += histogram.total()
    for batch_key, histogram in batches.padding.items():
        totals[batch_key.servable].padding += histogram.number_and_sum()[1]
    for run_key, histogram in batches.run.items():
        totals[run_key.servable].run_s += histogram.number_and_sum()[1]
    return dict(totals)
