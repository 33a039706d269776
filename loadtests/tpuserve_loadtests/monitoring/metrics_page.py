"""Prometheus metrics of a server at one time, and differences between two times.

Names: tpuserve's own, and TensorFlow Serving's for its servers.
tpuserve's page has both families. Its own metrics distinguish versions and are more detailed.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Self, TypeAlias

from prometheus_client.parser import text_string_to_metric_families

# A metric's name and labels.
Series: TypeAlias = tuple[str, frozenset[tuple[str, str]]]
# Alternative label sets. A series matches if it has all labels of any of them.
Choices: TypeAlias = Sequence[Mapping[str, str]]
ALL: Final[Choices] = ({},)

# The parser takes about 20 us per line, so the page drops unused metrics first.
_WANTED: Final = re.compile(
    r"^(?:tpuserve_(?:request_latency|queue_wait|batch_run)_seconds_|tpuserve_(?:batch_rows|batch_padding_ratio)_"
    r"|tpuserve_(?:(?:failed_|dropped_)?requests|device_busy_seconds|response_cache_hits|response_cache_misses)_total"
    r"|tpuserve_version_state|tpuserve_build_info"
    r"|process_(?:cpu_seconds_total|resident_memory_bytes|start_time_seconds)"
    r"|:tensorflow:serving:(?:request_count|request_latency|runtime_latency|batching_session:\w+)).*$",
    re.MULTILINE,
)
# TensorFlow Serving has no series for a model before its first request.
_KNOWN: Final = re.compile(r"^(?:# \w+ )?(?:tpuserve_|:tensorflow:)", re.MULTILINE)
_LE: Final = "le"


class NoPage(ValueError):
    """Error for a text that is not a metrics page, or has no known metrics."""


@dataclass(frozen=True, slots=True)
class Buckets:
    """A Prometheus histogram.

    `cumulative` maps each bound to the number of values up to it. The last bound is infinite.
    """

    cumulative: Mapping[float, float]
    total: float

    @property
    def count(self) -> float:
        return self.cumulative.get(math.inf, 0.0)

    @property
    def least(self) -> float:
        """The lowest bound. The histogram does not distinguish values below it."""
        return min(self.cumulative, default=0.0)

    @property
    def mean(self) -> float | None:
        """The mean, or None without values."""
        return self.total / self.count if self.count else None

    def percentile(self, percent: float) -> float | None:
        """Return the value at a percentile (0 to 100), or None without values.

        Values are distributed evenly within a bucket, as in Prometheus' histogram_quantile. Beyond the last finite
        bound, the result is that bound.
        """
        if not self.count:
            return None
        rank = self.count * percent / 100
        lower, below = 0.0, 0.0
        for bound in sorted(self.cumulative):
            upto = self.cumulative[bound]
            if upto >= rank and upto > below:
                return lower if math.isinf(bound) else lower + (bound - lower) * (rank - below) / (upto - below)
            lower, below = bound, upto
        return lower


@dataclass(frozen=True, slots=True)
class Page:
    """Values by series. The methods sum the series of a name that match any of the `choices`."""

    values: Mapping[Series, float]

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse the known metrics of a page. Raises NoPage."""
        if not _KNOWN.search(text):
            raise NoPage("no metrics of tpuserve or TensorFlow Serving")
        lines = "\n".join(_WANTED.findall(text))
        try:
            families = list(text_string_to_metric_families(lines + "\n"))
        except ValueError as error:
            raise NoPage(f"not a page of Prometheus metrics ({error})") from None
        samples = (sample for family in families for sample in family.samples)
        return cls({(sample.name, frozenset(sample.labels.items())): sample.value for sample in samples})

    def since(self, earlier: "Page") -> "Page":
        """Return the increase of counters since an earlier page. A new series starts at zero."""
        return Page({series: value - earlier.values.get(series, 0.0) for series, value in self.values.items()})

    def plus(self, other: "Page") -> "Page":
        both = dict(self.values)
        for series, value in other.values.items():
            both[series] = both.get(series, 0.0) + value
        return Page(both)

    def has(self, name: str) -> bool:
        return any(known == name for known, _ in self.values)

    def total(self, name: str, choices: Choices = ALL) -> float | None:
        """Return the sum of the matching series, or None if there are none."""
        found = [value for _, value in self._chosen(name, choices)]
        return sum(found) if found else None

    def totals(self, name: str, by: str, choices: Choices = ALL) -> dict[str, float]:
        """Return sums by the value of the label `by`."""
        sums: dict[str, float] = {}
        for labels, value in self._chosen(name, choices):
            key = dict(labels).get(by, "")
            sums[key] = sums.get(key, 0.0) + value
        return sums

    def buckets(self, name: str, choices: Choices = ALL, scale: float = 1.0) -> Buckets:
        """Return the sum of the matching histograms, with values multiplied by `scale`."""
        counts = self.totals(f"{name}_bucket", _LE, choices)
        total = self.total(f"{name}_sum", choices) or 0.0
        return Buckets({float(bound) * scale: count for bound, count in counts.items()}, total * scale)

    def _chosen(self, name: str, choices: Choices) -> Iterator[tuple[frozenset[tuple[str, str]], float]]:
        for (known, labels), value in self.values.items():
            if known == name and any(choice.items() <= labels for choice in choices):
                yield labels, value


_UPSTREAM: Final = ":tensorflow:serving:"
_BATCHING: Final = f"{_UPSTREAM}batching_session:"
_OURS: Final = "tpuserve_version_state"
_OK: Final = "OK"
_SECONDS: Final = 1e3  # to milliseconds
_MICROSECONDS: Final = 1e-3


@dataclass(frozen=True, slots=True)
class Served:
    """The models whose metrics apply, each with a version, or None for all versions."""

    models: tuple[tuple[str, int | None], ...]

    @property
    def own(self) -> Choices:
        return [
            {"model_name": name} if version is None else {"model_name": name, "version": str(version)}
            for name, version in self.models
        ]

    @property
    def upstream(self) -> Choices:
        """Label sets of TensorFlow Serving's metrics, which do not distinguish versions."""
        return [{"model_name": name} for name, _ in self.models]


@dataclass(frozen=True, slots=True)
class Figures:
    """A server's metrics over a period. Times are milliseconds. Missing metrics are None or empty.

    `request` covers successful requests, from arrival to response. `queue` covers requests, from arrival to batch.
    `run` covers batches, on the device. `queue_and_run` covers requests, from arrival to the end of their batch. `rows`
    is the mean number of real rows in a batch. `cached_share` is the share of requests that the response cache
    answered.
    """

    request: Buckets
    queue: Buckets
    run: Buckets
    queue_and_run: Buckets
    rows: float | None
    padding_share: float | None
    answers: Mapping[str, float]
    refused: Mapping[str, float]
    cached_share: float | None
    cpu_s: float | None
    busy_s: Mapping[str, float]


def read_figures(counted: Page, served: Served) -> Figures:
    """Return the served models' metrics from a page of differences (Page.since)."""
    own = counted.has(_OURS)
    return _own_figures(counted, served) if own else _upstream_figures(counted, served)


def memory_bytes(page: Page) -> float | None:
    """Return the resident memory of the server's process, in bytes."""
    return page.total("process_resident_memory_bytes")


def start_time_s(page: Page) -> float | None:
    """Return the start of the server's process, in Unix seconds."""
    return page.total("process_start_time_seconds")


def _own_figures(counted: Page, served: Served) -> Figures:
    successful = [{**labels, "code": _OK} for labels in served.own]
    hits, misses = (
        counted.total(f"tpuserve_response_cache_{kind}_total", served.own) or 0.0 for kind in ("hits", "misses")
    )
    return Figures(
        request=counted.buckets("tpuserve_request_latency_seconds", successful, _SECONDS),
        queue=counted.buckets("tpuserve_queue_wait_seconds", served.own, _SECONDS),
        run=counted.buckets("tpuserve_batch_run_seconds", served.own, _SECONDS),
        queue_and_run=counted.buckets(f"{_UPSTREAM}runtime_latency", served.upstream, _MICROSECONDS),
        rows=counted.buckets("tpuserve_batch_rows", served.own).mean,
        padding_share=counted.buckets("tpuserve_batch_padding_ratio", served.own).mean,
        answers=_counted(counted.totals("tpuserve_requests_total", "code", served.own)),
        refused=_counted(counted.totals("tpuserve_dropped_requests_total", "reason", served.own)),
        cached_share=hits / (hits + misses) if hits + misses else None,
        cpu_s=counted.total("process_cpu_seconds_total"),
        busy_s=counted.totals("tpuserve_device_busy_seconds_total", "device"),
    )


def _upstream_figures(counted: Page, served: Served) -> Figures:
    batches = counted.buckets(f"{_BATCHING}processed_batch_size")
    padding = counted.buckets(f"{_BATCHING}padding_size")
    return Figures(
        request=counted.buckets(f"{_UPSTREAM}request_latency", served.upstream, _MICROSECONDS),
        queue=counted.buckets(f"{_BATCHING}queuing_latency", scale=_MICROSECONDS),
        run=Buckets({}, 0.0),
        queue_and_run=counted.buckets(f"{_UPSTREAM}runtime_latency", served.upstream, _MICROSECONDS),
        rows=(batches.total - padding.total) / batches.count if batches.count else None,
        padding_share=padding.total / batches.total if batches.total else None,
        answers=_counted(counted.totals(f"{_UPSTREAM}request_count", "status", served.upstream)),
        refused={},
        cached_share=None,
        cpu_s=counted.total("process_cpu_seconds_total"),
        busy_s={},
    )


def _counted(totals: Mapping[str, float]) -> dict[str, float]:
    return {name: count for name, count in totals.items() if count}
