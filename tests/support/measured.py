"""Requests and batches in the form in which the server's components report them to its metrics."""

from collections.abc import Sequence

from tpuserve_server.core.models.metrics import Metrics
from tpuserve_server.core.terms.errors import Code
from tpuserve_server.core.terms.types import ServableId
from tpuserve_server.observe.metrics.exposition import OPEN_METRICS, PLAIN
from tpuserve_server.observe.metrics.prometheus import PrometheusMetrics
from tpuserve_server.observe.metrics.upstream import UPSTREAM_FAMILIES, upstream_lines

ID = ServableId("m", 3)


def finish(
    metrics: Metrics,
    *,
    model: str = "m",
    version: int | None = 3,
    signature: str = "s",
    method: str = "Predict",
    protocol: str = "grpc",
    code: Code = Code.OK,
    latency_s: float = 0.001,
) -> None:
    metrics.request_finished(
        model=model,
        version=version,
        signature=signature,
        method=method,
        protocol=protocol,
        code=code,
        latency_s=latency_s,
    )


def run_batch(
    metrics: Metrics,
    *,
    servable: ServableId = ID,
    api: str = "Predict",
    task_rows: Sequence[int] = (1,),
    bucket: int = 1,
    queue_waits_s: Sequence[float] = (0.1,),
    run_s: float = 0.1,
    expected_s: float = 0.0,
    has_buckets: bool = True,
) -> None:
    metrics.batch_finished(
        servable=servable,
        signature="s",
        api=api,
        task_rows=task_rows,
        bucket=bucket,
        queue_waits_s=queue_waits_s,
        run_s=run_s,
        expected_s=expected_s,
        has_buckets=has_buckets,
    )


def page_of(metrics: PrometheusMetrics, *, is_open: bool = False) -> str:
    """Return the metrics page, in the text format or as OpenMetrics."""
    parts, _ = metrics.render_open_metrics() if is_open else metrics.render()
    return b"".join(parts).decode()


def upstream_page(metrics: PrometheusMetrics, *, is_open: bool = False) -> str:
    """Return TensorFlow's and TensorFlow Serving's metrics."""
    return "".join(upstream_lines(metrics, UPSTREAM_FAMILIES, OPEN_METRICS if is_open else PLAIN))
