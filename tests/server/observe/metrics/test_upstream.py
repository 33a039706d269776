"""Tests for TensorFlow Serving's metrics: names, labels, buckets, and the exporter's text format."""

from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.support.measured import ID, finish, page_of, run_batch, upstream_page
from tpuserve_server.core.batching.cost_model import CostModel
from tpuserve_server.core.terms.errors import Code
from tpuserve_server.core.terms.types import ServableId, State
from tpuserve_server.observe.metrics.histogram import (
    UPSTREAM_EXAMPLE_BOUNDS,
    UPSTREAM_LATENCY_BOUNDS_US,
    UPSTREAM_QUEUE_BOUNDS_US,
    UPSTREAM_ROW_BOUNDS,
)
from tpuserve_server.observe.metrics.prometheus import PrometheusMetrics


def lines(metrics: PrometheusMetrics, name: str) -> list[str]:
    return [line for line in upstream_page(metrics).splitlines() if line.split("{")[0] == name]


def bucket_limits(metrics: PrometheusMetrics, name: str) -> list[str]:
    return [line.split('le="')[1].split('"')[0] for line in lines(metrics, f"{name}_bucket")]


def test_requests_are_counted_by_model_and_status() -> None:
    metrics = PrometheusMetrics()
    for version, code in ((3, Code.OK), (4, Code.OK), (None, Code.INVALID_ARGUMENT)):
        finish(metrics, version=version, code=code)
    finish(metrics, protocol="rest")
    assert lines(metrics, ":tensorflow:serving:request_count") == [
        ':tensorflow:serving:request_count{model_name="m",status="OK"} 3',
        ':tensorflow:serving:request_count{model_name="m",status="INVALID_ARGUMENT"} 1',
    ]
    assert "# TYPE :tensorflow:serving:request_count counter\n" in upstream_page(metrics)


def test_grpc_counts_inference_alone_and_rest_whatever_it_answers() -> None:
    metrics = PrometheusMetrics()
    finish(metrics, method="GetModelStatus", protocol="grpc")
    assert lines(metrics, ":tensorflow:serving:request_count") == []
    finish(metrics, method="GetModelStatus", protocol="rest")
    assert lines(metrics, ":tensorflow:serving:request_count") == [
        ':tensorflow:serving:request_count{model_name="m",status="OK"} 1'
    ]
    assert lines(metrics, ":tensorflow:serving:request_latency_count") == [
        ':tensorflow:serving:request_latency_count{model_name="m",API="",entrypoint="REST"} 1'
    ]


def test_latency_is_of_what_succeeded_in_microseconds() -> None:
    metrics = PrometheusMetrics()
    finish(metrics, method="Regress", latency_s=20e-6)
    finish(metrics, method="Regress", latency_s=1.0, code=Code.UNAVAILABLE)
    finish(metrics, method="Classify", latency_s=0.5, protocol="rest")
    name = ":tensorflow:serving:request_latency"
    labels = 'model_name="m",API="Regress",entrypoint="GRPC"'
    assert lines(metrics, f"{name}_bucket")[:3] == [
        f'{name}_bucket{{{labels},le="18"}} 0',
        f'{name}_bucket{{{labels},le="32.4"}} 1',
        f'{name}_bucket{{{labels},le="58.32"}} 1',
    ]
    assert f'{name}_bucket{{{labels},le="+Inf"}} 1' in lines(metrics, f"{name}_bucket")
    assert lines(metrics, f"{name}_sum") == [
        f"{name}_sum{{{labels}}} 20",
        f'{name}_sum{{model_name="m",API="classify",entrypoint="REST"}} 500000',
    ]
    # Without the first bucket, whose count is 0.
    assert bucket_limits(metrics, name)[:33] == [*(f"{bound:g}" for bound in UPSTREAM_LATENCY_BOUNDS_US[1:]), "+Inf"]


def test_a_batch_is_shown_as_a_batching_session_would_show_it() -> None:
    metrics = PrometheusMetrics()
    run_batch(metrics, task_rows=[1, 2], bucket=4, queue_waits_s=[0.001, 0.002], run_s=0.5)
    page = upstream_page(metrics).splitlines()
    session = ":tensorflow:serving:batching_session"
    for line in (
        f"{session}:input_batch_size_sum{{}} 3",
        f"{session}:input_batch_size_count{{}} 2",
        f'{session}:padding_size_sum{{execution_batch_size="4"}} 1',
        f"{session}:processed_batch_size_sum{{}} 4",
        f'{session}:queuing_latency_sum{{thread_pool_name="model_server_batch_threads"}} 3000',
        f"{session}:wrapped_run_count{{}} 1",
        ':tensorflow:serving:runtime_latency_sum{model_name="m",API="Predict",runtime="TF1"} 1003000',
        ':tensorflow:serving:runtime_latency_count{model_name="m",API="Predict",runtime="TF1"} 2',
    ):
        assert line in page, line


def test_examples_are_counted_by_request() -> None:
    metrics = PrometheusMetrics()
    for count in (1, 3):
        metrics.examples_received(model="m", count=count)
    page = upstream_page(metrics).splitlines()
    assert ':tensorflow:serving:request_example_count_total{model="m"} 4' in page
    assert ':tensorflow:serving:request_example_counts_bucket{model="m",le="1"} 1' in page
    assert ':tensorflow:serving:request_example_counts_bucket{model="m",le="4"} 2' in page


def test_counts_stay_when_a_version_goes() -> None:
    metrics = PrometheusMetrics()
    for version in (1, 2, 3):
        servable = ServableId("m", version)
        finish(metrics, version=version)
        run_batch(metrics, servable=servable)
        metrics.version_changed(servable=servable, state=State.END)
    assert lines(metrics, ":tensorflow:serving:request_count")[0].endswith(" 3")
    assert lines(metrics, ":tensorflow:serving:request_latency_count")[0].endswith(" 3")
    assert lines(metrics, ":tensorflow:serving:runtime_latency_count")[0].endswith(" 3")


def test_one_page_has_both_families_and_can_be_read() -> None:
    metrics = PrometheusMetrics()
    finish(metrics, model='a"b\\c\nd')
    run_batch(metrics)
    text = page_of(metrics)
    families = {family.name: family for family in text_string_to_metric_families(text)}
    assert families["tpuserve_requests"].samples[0].labels["model_name"] == 'a"b\\c\nd'
    assert families[":tensorflow:serving:request_count"].samples[0].labels["model_name"] == 'a"b\\c\nd'
    assert families[":tensorflow:serving:request_latency"].type == "histogram"
    assert families[":tensorflow:serving:batching_session:wrapped_run_count"].samples[0].labels == {}


@pytest.mark.slow
def test_buckets_are_tensorflows_own() -> None:
    """Compare with the bounds that TensorFlow computes from the numbers in TensorFlow Serving's sources."""
    from tensorflow.python.eager import monitoring

    for bounds, scale, growth, count in (
        (UPSTREAM_LATENCY_BOUNDS_US, 10, 1.8, 33),
        (UPSTREAM_QUEUE_BOUNDS_US, 100, 1.2, 52),
        (UPSTREAM_ROW_BOUNDS, 1, 2, 14),
        (UPSTREAM_EXAMPLE_BOUNDS, 1, 2, 15),
    ):
        buckets = monitoring.ExponentialBuckets(scale, growth, count)
        sampler = monitoring.Sampler(f"/tpuserve/test/{scale}/{count}", buckets, "For this test.")
        sampler.get_cell().add(1)
        *limits, _largest = sampler.get_cell().value().bucket_limit
        assert tuple(limits) == bounds


def test_warmups_with_records_are_timed_by_the_versions_path() -> None:
    metrics = PrometheusMetrics()
    metrics.version_warmed(servable=ID, path=Path("/models/m/3"), records=2, duration_s=0.25)
    metrics.version_warmed(servable=ServableId("n", 1), path=Path("/models/n/1"), records=0, duration_s=0.25)
    labels = '{model_path="/models/m/3",status="OK"}'
    assert lines(metrics, ":tensorflow:serving:model_warmup_latency_sum") == [
        f":tensorflow:serving:model_warmup_latency_sum{labels} 250000"
    ]
    assert lines(metrics, ":tensorflow:serving:model_warmup_records_read") == [
        f":tensorflow:serving:model_warmup_records_read{labels} 2"
    ]


LOAD = ":tensorflow:cc:saved_model:load"


def load(metrics: PrometheusMetrics, servable: ServableId, path: str, load_s: float = 0.5) -> None:
    metrics.version_loaded(servable=servable, path=path, costs=CostModel(), load_s=load_s, restore_s=load_s / 2)
    metrics.version_changed(servable=servable, state=State.AVAILABLE)


def test_attempts_to_load_a_version_are_counted_and_timed_by_its_path() -> None:
    metrics = PrometheusMetrics()
    for _ in range(2):
        metrics.load_failed(servable=ID, path="/models/m/3", load_s=0.25)
        metrics.version_changed(servable=ID, state=State.END)
    load(metrics, ID, "/models/m/3")
    assert lines(metrics, f"{LOAD}_attempt_count") == [
        f'{LOAD}_attempt_count{{model_path="/models/m/3",status="success"}} 1',
        f'{LOAD}_attempt_count{{model_path="/models/m/3",status="fail"}} 2',
    ]
    assert lines(metrics, f"{LOAD}_latency") == [f'{LOAD}_latency{{model_path="/models/m/3"}} 1000000']
    labels = 'model_path="/models/m/3",stage="restore_graph"'
    assert lines(metrics, f"{LOAD}_latency_by_stage_sum") == [f"{LOAD}_latency_by_stage_sum{{{labels}}} 250000"]
    assert lines(metrics, f"{LOAD}_latency_by_stage_count") == [f"{LOAD}_latency_by_stage_count{{{labels}}} 1"]


def test_models_with_the_same_path_share_its_series() -> None:
    metrics = PrometheusMetrics()
    for model in ("m", "n"):
        load(metrics, ServableId(model, 3), "/models/shared/3")
        metrics.version_warmed(servable=ServableId(model, 3), path=Path("/models/shared/3"), records=2, duration_s=0.1)
    assert lines(metrics, f"{LOAD}_attempt_count") == [
        f'{LOAD}_attempt_count{{model_path="/models/shared/3",status="success"}} 2'
    ]
    assert [line.split()[1] for line in lines(metrics, f"{LOAD}_latency_by_stage_count")] == ["2"]
    assert [line.split()[1] for line in lines(metrics, ":tensorflow:serving:model_warmup_records_read")] == ["4"]
    assert [line.split()[1] for line in lines(metrics, ":tensorflow:serving:model_warmup_latency_count")] == ["2"]


def test_loads_of_a_version_end_when_a_later_one_has_ended() -> None:
    metrics = PrometheusMetrics()
    for version in (1, 2, 3):
        load(metrics, ServableId("m", version), f"/models/m/{version}")
        metrics.version_changed(servable=ServableId("m", version - 1), state=State.END)
    paths = [line.split('"')[1] for line in lines(metrics, f"{LOAD}_latency")]
    assert paths == ["/models/m/2", "/models/m/3"]


def test_graphs_are_counted_from_the_start_and_runs_by_the_batch() -> None:
    metrics = PrometheusMetrics()
    core = ":tensorflow:core"
    names = ("graph_build_calls", "graph_build_time_usecs", "graph_runs", "graph_run_time_usecs", "xla_compilations")
    for name in names:
        assert lines(metrics, f"{core}:{name}") == [f"{core}:{name}{{}} 0"]
    metrics.devices.graph_built(duration_s=0.002)
    metrics.devices.graph_built(duration_s=0.5, with_xla=True)
    for run_s in (0.25, 0.5):
        run_batch(metrics, task_rows=[1, 2], run_s=run_s)
    metrics.version_changed(servable=ID, state=State.END)
    values = {name: lines(metrics, f"{core}:{name}")[0].split()[1] for name in names}
    assert list(values.values()) == ["2", "502000", "2", "750000", "1"]
    assert lines(metrics, f"{core}:graph_run_time_usecs_histogram_count") == [
        f"{core}:graph_run_time_usecs_histogram_count{{}} 2"
    ]
    assert f'{core}:graph_run_time_usecs_histogram_bucket{{le="256000"}} 1' in upstream_page(metrics).splitlines()
