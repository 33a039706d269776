"""Tests that no metric grows beyond its limit of series, with models of thousands of signatures."""

from collections import Counter
from collections.abc import Iterator

from prometheus_client import Metric
from prometheus_client.samples import Sample

from tests.support.measured import ID, finish, run_batch
from tpuserve_server.core.batching.cost_model import CostModel
from tpuserve_server.core.terms.errors import Code
from tpuserve_server.core.terms.types import ServableId, State
from tpuserve_server.observe.metrics.prometheus import PrometheusMetrics
from tpuserve_server.observe.metrics.series import MOST_SERIES
from tpuserve_server.observe.metrics.upstream import upstream_page

MORE = MOST_SERIES + 500


def family(metrics: PrometheusMetrics, name: str) -> Metric:
    [found] = [each for each in metrics.registry.collect() if each.name == f"tpuserve_{name}"]
    return found


def others(metric: Metric) -> Iterator[Sample]:
    return (sample for sample in metric.samples if sample.labels["model_name"] == "other")


def test_requests_of_further_signatures_count_together() -> None:
    metrics = PrometheusMetrics()
    for number in range(MORE):
        finish(metrics, signature=f"s{number}")
    finish(metrics, signature="s0")
    finish(metrics, signature=f"s{MORE}", code=Code.NOT_FOUND)
    requests = family(metrics, "requests")
    assert len(requests.samples) == MOST_SERIES + 2
    assert sum(sample.value for sample in requests.samples) == MORE + 2
    counts = {
        (sample.labels["version"], sample.labels["signature"], sample.labels["code"]): sample.value
        for sample in others(requests)
    }
    assert counts == {("other", "other", "OK"): 500, ("other", "other", "NOT_FOUND"): 1}
    assert [sample.value for sample in requests.samples if sample.labels["signature"] == "s0"] == [2]


def test_series_beyond_the_limit_stay_when_a_version_ends() -> None:
    metrics = PrometheusMetrics()
    for number in range(MORE):
        finish(metrics, signature=f"s{number}")
    metrics.version_changed(servable=ID, state=State.END)
    assert [sample.value for sample in family(metrics, "requests").samples] == [500]


def test_batches_of_further_signatures_count_together() -> None:
    metrics = PrometheusMetrics()
    for number in range(MORE):
        run_batch(metrics, servable=ServableId(f"m{number}", 1), task_rows=[1] * 3, bucket=3)
    for name in ("batch_rows", "batch_run_seconds", "queue_wait_seconds", "batch_padding_ratio"):
        counts = [sample for sample in family(metrics, name).samples if sample.name.endswith("_count")]
        assert len(counts) == MOST_SERIES + 1
        assert sum(sample.value for sample in counts) == MORE
    [other] = [sample for sample in others(family(metrics, "batch_run_seconds")) if sample.name.endswith("_count")]
    assert (other.value, other.labels["bucket"]) == (500, "4")
    # Its busy time, too.
    assert len(family(metrics, "version_busy_seconds").samples) == MOST_SERIES + 1


def test_counters_of_further_models_count_together() -> None:
    metrics = PrometheusMetrics()
    for number in range(MORE):
        servable = ServableId(f"m{number}", 1)
        metrics.task_dropped(servable=servable, reason="expired")
        metrics.shape_first_run(servable=servable, signature="s", is_tried=False)
        metrics.run_refused(servable=servable, signature="s")
        metrics.runs_hung(servable=servable, count=1)
        metrics.load_failed(servable=servable)
        metrics.request_logged(model=servable.name, outcome="queue_full")
        metrics.stages_sampled(protocol="grpc", model=servable.name, stages=[("decode", 1.0)], requests=1)
    for name in (
        "dropped_requests", "unwarmed_runs", "refused_runs", "hung_runs", "version_loads", "request_log_dropped",
        "request_stage_seconds", "request_stage_requests",
    ):  # fmt: skip
        metric = family(metrics, name)
        assert len(metric.samples) == MOST_SERIES + 1, name
        assert [sample.value for sample in others(metric)] == [500], name


def test_gauges_omit_further_versions_and_count_them() -> None:
    metrics = PrometheusMetrics()
    for number in range(MORE):
        servable = ServableId(f"m{number}", 1)
        metrics.version_loaded(servable=servable, costs=CostModel(), load_s=1.0)
        metrics.version_changed(servable=servable, state=State.END if number < 500 else State.AVAILABLE)
    shown = Counter(sample.value for sample in family(metrics, "version_state").samples)
    assert shown == {State.AVAILABLE: MOST_SERIES}
    omitted = {sample.labels["metric"]: sample.value for sample in family(metrics, "metrics_omitted_series").samples}
    assert omitted == {"tpuserve_version_state": 500}


def test_upstreams_series_are_limited_too() -> None:
    metrics = PrometheusMetrics()
    for number in range(MORE):
        finish(metrics, model=f"m{number}")
        metrics.examples_received(model=f"m{number}", count=2)
    lines = upstream_page(metrics).splitlines()
    counts = [line for line in lines if line.startswith(":tensorflow:serving:request_count{")]
    assert len(counts) == MOST_SERIES + 1
    assert ':tensorflow:serving:request_count{model_name="other",status="OK"} 500' in counts
    assert ':tensorflow:serving:request_example_count_total{model="other"} 1000' in lines
