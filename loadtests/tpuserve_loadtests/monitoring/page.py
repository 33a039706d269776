"""Prometheus metrics of a server at one time, and differences between two times."""

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
    r"|tpuserve_(?:requests|dropped_requests|device_busy_seconds)_total|tpuserve_version_state"
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
        """The number of values."""
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
        """Return the sum of the counters of two periods."""
        both = dict(self.values)
        for series, value in other.values.items():
            both[series] = both.get(series, 0.0) + value
        return Page(both)

    def has(self, name: str) -> bool:
        """Return whether any series has this name."""
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
