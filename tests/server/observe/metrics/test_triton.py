"""Tests for the metrics with Triton's names: their values, and that the page has them only on request."""

from tests.support.measured import ID, finish, page_of, run_batch
from tpuserve_server.core.terms.errors import Code
from tpuserve_server.core.terms.types import ServableId, State
from tpuserve_server.observe.metrics.prometheus import PrometheusMetrics
from tpuserve_server.observe.metrics.triton import TRITON_FAMILIES
from tpuserve_server.protocols.grpc_methods import INFERENCE_NAMES


def values(metrics: PrometheusMetrics) -> dict[str, float]:
    """Return the values of Triton's series by name and labels."""
    lines = [line.rpartition(" ") for line in page_of(metrics).splitlines() if line.startswith("nv_")]
    return {series: float(value) for series, _, value in lines}


def fail(metrics: PrometheusMetrics, code: Code, version: int | None = 3) -> None:
    metrics.request_failed(model="m", version=version, method="ModelInfer", code=code, fault="server")


def test_page_has_the_names_only_on_request() -> None:
    plain, both = PrometheusMetrics(), PrometheusMetrics(with_triton=True)
    for metrics in (plain, both):
        finish(metrics)
    assert values(plain) == {}
    assert values(both) != {}
    assert "# TYPE nv_inference_request_success counter\n" in page_of(both)


def test_every_method_that_runs_a_model_counts() -> None:
    metrics = PrometheusMetrics(with_triton=True)
    for method in INFERENCE_NAMES:
        metrics.request_failed(model="m", version=None, method=method, code=Code.INTERNAL, fault="server")
    metrics.request_failed(model="m", version=None, method="GetModelMetadata", code=Code.INTERNAL, fault="server")
    [count] = values(metrics).values()
    assert count == len(INFERENCE_NAMES)


def test_requests_and_batches_of_a_version() -> None:
    metrics = PrometheusMetrics(with_triton=True)
    finish(metrics, method="ModelInfer", latency_s=0.25)
    finish(metrics, method="Predict", protocol="rest", latency_s=0.5)
    finish(metrics, method="GetModelStatus")
    finish(metrics, code=Code.INTERNAL)
    run_batch(metrics, task_rows=(2, 3), bucket=8, queue_waits_s=(0.1, 0.2), run_s=0.5)
    run_batch(metrics, task_rows=(1,), bucket=1, queue_waits_s=(0.1,), run_s=0.25)
    metrics.batches.count()
    found = values(metrics)
    version = '{model="m",version="3"}'
    assert found[f"nv_inference_request_success{version}"] == 2
    assert found[f"nv_inference_request_duration_us{version}"] == 750_000
    assert found[f"nv_inference_count{version}"] == 6
    assert found[f"nv_inference_exec_count{version}"] == 2
    assert found[f"nv_inference_queue_duration_us{version}"] == 400_000
    # Each request counts the time of its batch.
    assert found[f"nv_inference_compute_infer_duration_us{version}"] == 1_250_000


def test_failures_have_tritons_reasons() -> None:
    metrics = PrometheusMetrics(with_triton=True)
    for code in (Code.DEADLINE_EXCEEDED, Code.UNAVAILABLE, Code.CANCELLED, Code.INTERNAL, Code.INVALID_ARGUMENT):
        fail(metrics, code)
    fail(metrics, Code.NOT_FOUND, version=None)
    name = "nv_inference_request_failure"
    assert values(metrics) == {
        f'{name}{{model="m",version="3",reason="REJECTED"}}': 2,
        f'{name}{{model="m",version="3",reason="CANCELED"}}': 1,
        f'{name}{{model="m",version="3",reason="BACKEND"}}': 1,
        f'{name}{{model="m",version="3",reason="OTHER"}}': 1,
        f'{name}{{model="m",version="",reason="OTHER"}}': 1,
    }


def test_series_of_a_version_end_with_it() -> None:
    metrics = PrometheusMetrics(with_triton=True)
    finish(metrics)
    fail(metrics, Code.INTERNAL)
    run_batch(metrics)
    metrics.version_changed(servable=ID, state=State.END)
    # The last ended version of a model stays until another one ends.
    metrics.version_changed(servable=ServableId("m", 4), state=State.END)
    assert values(metrics) == {}


def test_names_are_tritons() -> None:
    assert all(family.name.startswith(("nv_inference_", "nv_cache_")) for family in TRITON_FAMILIES)
    assert all(family.labels[:2] == ("model", "version") for family in TRITON_FAMILIES)
