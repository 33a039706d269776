"""Requests and batches in the form in which the server's components report them to its metrics."""

from collections.abc import Sequence

from tpuserve_server.core.models.metrics import Metrics
from tpuserve_server.core.terms.errors import Code
from tpuserve_server.core.terms.types import ServableId

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
