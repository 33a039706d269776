"""Family: one metric of the page, with its name, kind, labels and meaning, and its form for prometheus_client."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.samples import Exemplar

# Upper bound as a label value, cumulative count, and the exemplar of a bucket that has one.
Bucket: TypeAlias = tuple[str, float] | tuple[str, float, Exemplar]


@dataclass(frozen=True, slots=True)
class Family:
    """A metric with a name that is public API. The names of counters end in `_total`."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    labels: tuple[str, ...]
    text: str

    def valued(self, samples: Iterable[tuple[Sequence[str], float]]) -> Metric:
        """Return the family as a counter or a gauge, with label values and a value for each sample."""
        made = CounterMetricFamily if self.kind == "counter" else GaugeMetricFamily
        family = made(self.name, self.text, labels=self.labels)
        for values, value in samples:
            family.add_metric(values, value)
        return family

    def counted(self, samples: Iterable[tuple[Sequence[str], Sequence[Bucket], float]]) -> Metric:
        """Return the family as histograms, with label values, buckets and the sum of the values for each."""
        family = HistogramMetricFamily(self.name, self.text, labels=self.labels)
        for values, buckets, total in samples:
            family.add_metric(values, buckets, total)
        return family
