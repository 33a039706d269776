"""Metrics pages that the server's own code renders, from invented requests."""

from tests.support.measured import finish, page_of, run_batch, upstream_page
from tpuserve_loadtests.monitoring.metrics_page import Served
from tpuserve_loadtests.monitoring.server_side import Scrape, Seen, read_stretch
from tpuserve_server.core.terms.types import ServableId, State
from tpuserve_server.observe.metrics.prometheus import PrometheusMetrics


class MetricsPages:
    """A server's metrics and the scrapes of a watch."""

    def __init__(self, upstream: bool = False, model: str = "m") -> None:
        self.metrics = PrometheusMetrics()
        self.metrics.version_changed(servable=ServableId(model, 3), state=State.AVAILABLE)
        self._model = model
        self.scrapes: list[Scrape] = []
        self._upstream = upstream

    def read(self, at_s: float) -> None:
        text = upstream_page(self.metrics) if self._upstream else page_of(self.metrics)
        self.scrapes.append(Scrape(at_s, text))

    def answer(self, *queue_waits_s: float, run_s: float, latency_s: float, version: int = 3) -> None:
        """Record a batch of one-row requests, in a bucket of four, or of eight for more than four requests."""
        rows, servable = [1] * len(queue_waits_s), ServableId(self._model, version)
        run_batch(
            self.metrics,
            servable=servable,
            task_rows=rows,
            bucket=4 if len(rows) <= 4 else 8,
            queue_waits_s=queue_waits_s,
            run_s=run_s,
        )
        for _ in rows:
            finish(self.metrics, model=self._model, version=version, latency_s=latency_s)

    def refuse(self, reason: str, count: int) -> None:
        for _ in range(count):
            self.metrics.task_dropped(servable=ServableId(self._model, 3), reason=reason)


def seen_server(
    requests: int, *, batch: int = 1, queue_s: float = 0.001, run_s: float = 0.002, latency_s: float = 0.004
) -> Seen:
    """Return the figures of a second with `requests` requests in batches of `batch`."""
    server = MetricsPages()
    server.read(0.0)
    for _ in range(requests // batch):
        server.answer(*[queue_s] * batch, run_s=run_s, latency_s=latency_s)
    server.read(1.0)
    return Seen(read_stretch(server.scrapes, Served((("m", None),))))
