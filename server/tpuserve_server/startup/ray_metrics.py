"""RayMetrics: the server's metrics as Ray's, so that Ray's metrics page of each node has them."""

from collections.abc import Callable, Iterable

from prometheus_client.core import Metric
from prometheus_client.samples import Sample
from ray.serve import metrics


class RayMetrics:
    """Sets a gauge of Ray for each sample. Ray adds the prefix `ray_`, and labels for deployment and replica.

    Counters and histograms are gauges, too: Ray takes no totals. Their samples have the names and values of the
    server's page, and Prometheus' functions for counters apply to them. One thread at a time.
    """

    def __init__(self, collect: Callable[[], Iterable[Metric]]) -> None:
        """Read the families of `collect`. Create it in a replica, because Ray finds the labels there."""
        self._collect = collect
        self._gauges: dict[tuple[str, tuple[str, ...]], metrics.Gauge] = {}

    def publish(self) -> None:
        """Set all gauges to the current values."""
        for family in self._collect():
            for sample in family.samples:
                self._gauge(sample, family.documentation).set(sample.value, tags=sample.labels)

    def _gauge(self, sample: Sample, description: str) -> metrics.Gauge:
        key = (sample.name, tuple(sample.labels))
        gauge = self._gauges.get(key)
        if gauge is None:
            gauge = self._gauges[key] = metrics.Gauge(sample.name, description=description, tag_keys=key[1])
        return gauge
