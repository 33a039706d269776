"""The `process_*` metrics: those of prometheus_client, for all processes of the server."""

from collections.abc import Iterator, Sequence

from prometheus_client import Metric, ProcessCollector
from prometheus_client.registry import Collector

from tpuserve_server.core.process_usage import ProcessUsage
from tpuserve_server.metrics.server_measurements import ServerMeasurements


class ServerProcesses(Collector):
    """Adds the CPU time and the memory of the front-end processes to those of this process.

    Descriptors are those of the process that is closest to its limit, so that their ratio shows the first one to reach
    it. The start time is that of this process: front-ends may start again while the server stays.
    """

    def __init__(self, server: ServerMeasurements) -> None:
        """Read the usage of front-end processes from `server`."""
        self._server = server
        self._own = ProcessCollector(registry=None)

    def collect(self) -> Iterator[Metric]:
        """Yield the families. A system without /proc has none."""
        usages, families = self._server.usages(), list(self._own.collect())
        added = {
            "process_cpu_seconds": self._server.cpu_s(),
            "process_resident_memory_bytes": sum(usage.resident_bytes for usage in usages),
            "process_virtual_memory_bytes": sum(usage.virtual_bytes for usage in usages),
        }
        shown = {name: value + added.get(name, 0) for name, value in _values(families).items()}
        shown.update(_descriptors(shown, usages))
        for family in families:
            family.samples[:] = [sample._replace(value=shown[family.name]) for sample in family.samples]
            yield family


def _values(families: Sequence[Metric]) -> dict[str, float]:
    return {family.name: sample.value for family in families for sample in family.samples}


def _descriptors(own: dict[str, float], usages: Sequence[ProcessUsage]) -> dict[str, float]:
    """Return the open descriptors and their limit, of the process that uses the largest share of its limit."""
    names = ("process_open_fds", "process_max_fds")
    if not usages or not own.keys() >= set(names):
        return {}
    pairs: list[tuple[float, float]] = [(own[names[0]], own[names[1]])]
    pairs += [(usage.open_descriptors, usage.most_descriptors) for usage in usages]
    is_open, limit = max(pairs, key=_used_share)
    return {names[0]: is_open, names[1]: limit}


def _used_share(descriptors: tuple[float, float]) -> float:
    is_open, limit = descriptors
    return is_open / limit if limit > 0 else 0.0
