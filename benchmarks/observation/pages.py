"""Rows of the observation benchmark for the metrics page, with more and more series."""

import time
from collections.abc import Callable

from tpuserve_server.core.terms.errors import Code
from tpuserve_server.core.terms.types import ServableId
from tpuserve_server.observe.metrics.prometheus import PrometheusMetrics

_ID = ServableId("m", 7)
_PAGES = 3


def page_cpu_us(render: Callable[[PrometheusMetrics], object], signatures: int) -> float:
    """Return the CPU of a page with the requests and batches of `signatures` signatures, in microseconds."""
    metrics = _measured(signatures)
    render(metrics)
    before_s = time.process_time()
    for _ in range(_PAGES):
        render(metrics)
    return 1e6 * (time.process_time() - before_s) / _PAGES


def _measured(signatures: int) -> PrometheusMetrics:
    """Return the metrics of a request and a batch for each signature."""
    metrics = PrometheusMetrics()
    for name in (f"s{number}" for number in range(signatures)):
        metrics.request_finished(
            model=_ID.name,
            version=_ID.version,
            signature=name,
            method="Predict",
            protocol="grpc",
            code=Code.OK,
            latency_s=0.002,
        )
        metrics.batch_finished(
            servable=_ID,
            signature=name,
            api="Predict",
            task_rows=[1],
            bucket=1,
            queue_waits_s=[0.001],
            run_s=0.001,
            expected_s=0.001,
        )
    return metrics
