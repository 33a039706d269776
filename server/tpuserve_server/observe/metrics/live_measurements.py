"""LiveMeasurements: the figures of the last seconds, from differences between totals of the measurements.

`version_statistics` reads the same totals for the statistics of versions.
"""

import os
import time
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import numpy as np

from tpuserve_server.core.models.response_cache import CacheCounts
from tpuserve_server.core.terms.deadline import Clock
from tpuserve_server.core.terms.errors import Code
from tpuserve_server.core.terms.servable import DeviceGauge
from tpuserve_server.core.terms.statistics import Total, VersionStatistics
from tpuserve_server.core.terms.types import ServableId
from tpuserve_server.observe.metrics.histogram import BOTH_LATENCY_BOUNDS_S, BucketCounts, Histogram
from tpuserve_server.observe.metrics.measurements import Measurements

_NO_ERRORS: Final[Mapping[Code, float]] = MappingProxyType({})


class VersionTraffic(NamedTuple):
    """Requests and batches of one version within the window. None: there was no request, or no batch.

    Percentiles are those of successful requests. `padding` is the mean share of padding in a batch. `busy` is the share
    of the time in which a batch ran, or the number of batches at a time if it is above 1. `errors` are errors a second
    by code.
    """

    requests_per_s: float
    errors: Mapping[Code, float] = _NO_ERRORS
    p50_s: float | None = None
    p90_s: float | None = None
    p99_s: float | None = None
    batch_rows: float | None = None
    batch_requests: float | None = None
    padding: float | None = None
    busy: float = 0.0


class DeviceLoad(NamedTuple):
    """One device. `busy` is the share of the window in which a run used it. `memory_bytes` is that of DeviceGauge."""

    name: str
    busy: float | None
    memory_bytes: Mapping[str, int]


class RecentFigures(NamedTuple):
    """Figures of the window. `cpu` is the number of cores that the process used.

    They are None without a window, except the present ones: `devices`, and `resident_bytes`, which is None if the
    system does not report it.
    """

    versions: Mapping[ServableId, VersionTraffic] | None
    devices: Sequence[DeviceLoad]
    cpu: float | None
    resident_bytes: int | None


class VersionOrigin(NamedTuple):
    """The device of a version, as DeviceMetrics has it, and its warm-up. None: it had no warm-up."""

    device: str = ""
    fallback: str = ""
    warmup_s: float | None = None
    warmup_records: int | None = None


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


WINDOW_S: Final = 5.0


class _Moment(NamedTuple):
    at_s: float
    cpu_s: float
    busy_s: Mapping[str, float]
    versions: Mapping[ServableId, VersionTotals]


class MeasuredWindow:
    """The measurements of one reader. One thread at a time may call it."""

    def __init__(self, measured: Measurements, clock: Clock) -> None:
        """Read from `measured`."""
        self._measured = measured
        self._clock = clock
        self._moments: deque[_Moment] = deque()

    def take(self) -> RecentFigures:
        """Measure now, and return the figures since the measurement about 5 s ago, or the oldest one. Blocks.

        It takes about 6 us for each signature with traffic, and 0.1 ms for each version.
        """
        gauges = self._measured.devices.gauges()
        now = self._measure(gauges)
        moments = self._moments
        moments.append(now)
        while len(moments) > 2 and now.at_s - moments[1].at_s >= WINDOW_S:
            moments.popleft()
        then = moments[0]
        duration_s = now.at_s - then.at_s
        if duration_s <= 0:
            loads = [DeviceLoad(gauge.name, None, gauge.memory_bytes()) for gauge in gauges]
            return RecentFigures(None, loads, None, resident_bytes())
        none = VersionTotals()
        return RecentFigures(
            {
                servable: totals.traffic_since(then.versions.get(servable, none), duration_s)
                for servable, totals in now.versions.items()
            },
            [
                DeviceLoad(
                    gauge.name,
                    (now.busy_s[gauge.name] - then.busy_s.get(gauge.name, 0.0)) / duration_s,
                    gauge.memory_bytes(),
                )
                for gauge in gauges
            ],
            (now.cpu_s - then.cpu_s) / duration_s,
            resident_bytes(),
        )

    def _measure(self, gauges: Sequence[DeviceGauge]) -> _Moment:
        busy_s = {gauge.name: gauge.busy_s() for gauge in gauges}
        return _Moment(self._clock.monotonic_s(), cpu_s(), busy_s, version_totals(self._measured))


class LiveMeasurements:
    """Reads the measurements. Any thread may call it."""

    def __init__(self, measured: Measurements, clock: Clock) -> None:
        """Read from `measured`."""
        self._measured = measured
        self._clock = clock

    def open_window(self) -> MeasuredWindow:
        """Return a window without measurements."""
        return MeasuredWindow(self._measured, self._clock)

    def origins(self) -> dict[ServableId, VersionOrigin]:
        """Return the origin of each version that has not ended."""
        choices, warmups = self._measured.devices.choices(), self._measured.warmups()
        origins = {servable: VersionOrigin(*choice) for servable, choice in choices.items()}
        for servable, warmup in warmups.items():
            known = origins.get(servable, VersionOrigin())
            origins[servable] = known._replace(warmup_s=warmup.duration_s, warmup_records=warmup.records)
        return origins

    def devices(self) -> Sequence[DeviceGauge]:
        """Return every device in use."""
        return self._measured.devices.gauges()


_STATM: Final = Path("/proc/self/statm")


def cpu_s() -> float:
    """Return the seconds of CPU time of all threads since the start of the process."""
    return time.process_time()


def resident_bytes() -> int | None:
    """Return the memory of the process that is in RAM, or None if the system does not report it."""
    try:
        # In pages (proc_pid_statm(5)).
        _, resident = _STATM.read_text().split()[:2]
        return int(resident) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return None


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
