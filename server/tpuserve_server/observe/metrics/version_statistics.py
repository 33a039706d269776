"""Statistics of one version, from the measurements that the metrics page shows."""

from collections.abc import Iterable

from tpuserve_server.core.models.response_cache import CacheCounts
from tpuserve_server.core.terms.errors import Code
from tpuserve_server.core.terms.statistics import Total, VersionStatistics
from tpuserve_server.core.terms.types import ServableId
from tpuserve_server.observe.metrics.histogram import Histogram
from tpuserve_server.observe.metrics.measurements import Measurements

_NANOSECONDS = 1e9
_NO_CACHE = CacheCounts(0, 0, 0, 0)


def version_statistics(measured: Measurements, servable: ServableId) -> VersionStatistics:
    """Return the totals of all signatures and protocols. They are 0 for a version without requests.

    Requests that failed before the server found their version count nowhere.
    """
    name, number = servable.name, servable.version
    requests = [(key.code, times) for key, times in measured.requests() if (key.model, key.version) == (name, number)]
    success = _total(times for code, times in requests if code is Code.OK)
    fail = _total(times for code, times in requests if code is not Code.OK)
    batches = measured.batches
    waits = _total(times for key, times in batches.queue_wait.items() if key.servable == servable)
    rows = [times.cumulative() for key, times in batches.rows.items() if key.servable == servable]
    sizes: dict[int, Total] = {}
    for key, times in batches.run.items():
        if key.servable == servable:
            sizes[key.bucket] = _sum(sizes.get(key.bucket, Total()), _one(times))
    compute_s = sum(total_s for key, total_s in batches.compute_s().items() if key.servable == servable)
    cached = measured.caches().get(servable, _NO_CACHE)
    return VersionStatistics(
        last_inference_ms=round(batches.last_ended_s(servable) * 1000),
        rows=round(sum(total for _, total in rows)),
        batches=sum(counts[-1] for counts, _ in rows),
        success=success,
        fail=fail,
        # Each answered request counts: clients find the version that they use by this number.
        queue=Total(success.count, waits.ns),
        compute=Total(waits.count, round(compute_s * _NANOSECONDS)),
        cache_hit=Total(cached.hits, round(cached.hit_s * _NANOSECONDS)),
        cache_miss=Total(cached.misses, round(cached.miss_s * _NANOSECONDS)),
        sizes=tuple(sorted(sizes.items())),
    )


def _total(histograms: Iterable[Histogram]) -> Total:
    total = Total()
    for histogram in histograms:
        total = _sum(total, _one(histogram))
    return total


def _one(histogram: Histogram) -> Total:
    counts, total_s = histogram.cumulative()
    return Total(counts[-1], round(total_s * _NANOSECONDS))


def _sum(first: Total, second: Total) -> Total:
    return Total(first.count + second.count, first.ns + second.ns)
