"""Tests of the limits of series: complete up to a number of models, for each metric apart."""

import logging
from collections import Counter
from collections.abc import Callable

import pytest

from tests.support.measured import ID, finish, run_batch, upstream_page
from tpuserve_server.core.batching.cost_model import CostModel
from tpuserve_server.core.terms.errors import Code
from tpuserve_server.core.terms.types import ServableId, State
from tpuserve_server.observe.metrics.families import Sample
from tpuserve_server.observe.metrics.prometheus import PrometheusMetrics
from tpuserve_server.observe.metrics.series import MOST_MODELS, MOST_OF_A_MODEL, MOST_SERIES

MORE = MOST_MODELS + 500


def samples(metrics: PrometheusMetrics, name: str) -> list[Sample]:
    [found] = [list(each.samples()) for each in metrics.collect() if each.family.name == f"tpuserve_{name}"]
    return found


def counts_of(metrics: PrometheusMetrics, name: str) -> list[Sample]:
    return [sample for sample in samples(metrics, name) if sample.name.endswith("_count")]


def others(found: list[Sample]) -> list[float]:
    return [sample.value for sample in found if sample.labels["model_name"] == "other"]


def folded(metrics: PrometheusMetrics) -> dict[str, float]:
    return {sample.labels["metric"]: sample.value for sample in samples(metrics, "metrics_folded_models")}


def test_a_thousand_models_have_all_series_of_both_names() -> None:
    metrics = PrometheusMetrics()
    for number in range(MOST_MODELS):
        model = f"m{number}"
        for protocol in ("grpc", "rest"):
            for code in (Code.OK, Code.INVALID_ARGUMENT, Code.UNAVAILABLE):
                finish(metrics, model=model, protocol=protocol, code=code)
        finish(metrics, model="", version=None, signature="", code=Code.NOT_FOUND)
        run_batch(metrics, servable=ServableId(model, 3))
        metrics.examples_received(model=model, count=2)
    requests = samples(metrics, "requests_total")
    assert len(requests) == 6 * MOST_MODELS + 1
    assert len(counts_of(metrics, "queue_wait_seconds")) == MOST_MODELS
    page = upstream_page(metrics)
    assert page.count("\n:tensorflow:serving:request_count{") == 3 * MOST_MODELS + 1
    assert page.count("\n:tensorflow:serving:request_latency_count{") == 2 * MOST_MODELS
    assert page.count("\n:tensorflow:serving:runtime_latency_count{") == MOST_MODELS
    assert '"other"' not in page
    assert folded(metrics) == {}


def test_requests_of_further_models_count_together(caplog: pytest.LogCaptureFixture) -> None:
    metrics = PrometheusMetrics()
    for number in range(MORE):
        finish(metrics, model=f"m{number}")
        metrics.examples_received(model=f"m{number}", count=2)
    finish(metrics, model="m0")
    requests = samples(metrics, "requests_total")
    assert len(requests) == MOST_MODELS + 1
    assert others(requests) == [500]
    assert [sample.value for sample in requests if sample.labels["model_name"] == "m0"] == [2]
    lines = upstream_page(metrics).splitlines()
    counts = [line for line in lines if line.startswith(":tensorflow:serving:request_count{")]
    assert len(counts) == MOST_MODELS + 1
    assert ':tensorflow:serving:request_count{model_name="other",status="OK"} 500' in counts
    assert ':tensorflow:serving:request_example_count_total{model="other"} 1000' in lines
    assert folded(metrics) == {"tpuserve_requests_total": 500, ":tensorflow:serving:request_example_counts": 500}
    [logged] = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert "tpuserve_requests_total" in logged.getMessage()
    assert f"'m{MOST_MODELS}'" in logged.getMessage()


def test_further_signatures_of_a_model_count_together_under_its_name() -> None:
    metrics = PrometheusMetrics()
    for number in range(MOST_OF_A_MODEL + 500):
        finish(metrics, signature=f"s{number}")
    finish(metrics, signature="s0")
    finish(metrics, model="n", signature="s")
    requests = samples(metrics, "requests_total")
    assert len(requests) == MOST_OF_A_MODEL + 2
    [other] = [sample for sample in requests if sample.labels["signature"] == "other"]
    assert (other.labels["model_name"], other.labels["version"], other.value) == ("m", "other", 500)
    assert [sample.value for sample in requests if sample.labels["signature"] == "s0"] == [2]
    assert [sample.value for sample in requests if sample.labels["model_name"] == "n"] == [1]
    assert folded(metrics) == {"tpuserve_requests_total": 1}


def test_models_of_many_signatures_leave_every_model_its_share() -> None:
    metrics = PrometheusMetrics()
    models, signatures = MOST_SERIES // MOST_OF_A_MODEL, MOST_OF_A_MODEL
    for model in range(models):
        for number in range(signatures):
            finish(metrics, model=f"many{model}", signature=f"s{number}")
    for number in range(30):
        finish(metrics, model="late", signature=f"s{number}")
    late = [sample for sample in samples(metrics, "requests_total") if sample.labels["model_name"] == "late"]
    assert len(late) == MOST_SERIES // MOST_MODELS + 1
    assert sum(sample.value for sample in late) == 30


def test_series_of_further_signatures_end_with_the_model() -> None:
    metrics = PrometheusMetrics()
    for number in range(MOST_OF_A_MODEL + 1):
        finish(metrics, signature=f"s{number}")
    metrics.version_changed(servable=ID, state=State.AVAILABLE)
    metrics.version_changed(servable=ID, state=State.END)
    assert [sample.value for sample in samples(metrics, "requests_total")] == [1]
    for number in range(MOST_OF_A_MODEL - 1):
        finish(metrics, version=4, signature=f"s{number}")
    assert len(samples(metrics, "requests_total")) == MOST_OF_A_MODEL


def test_batches_of_further_models_count_together() -> None:
    metrics = PrometheusMetrics()
    for number in range(MORE):
        run_batch(metrics, servable=ServableId(f"m{number}", 1), task_rows=[1] * 3, bucket=3)
    for name in ("batch_rows", "batch_run_seconds", "queue_wait_seconds", "batch_padding_ratio"):
        counts = counts_of(metrics, name)
        assert len(counts) == MOST_MODELS + 1
        assert others(counts) == [500]
    [other] = [one for one in counts_of(metrics, "batch_run_seconds") if one.labels["model_name"] == "other"]
    assert other.labels["bucket"] == "4"
    # Its busy time, too.
    assert len(samples(metrics, "version_busy_seconds_total")) == MOST_MODELS + 1


COUNTERS: dict[str, Callable[[PrometheusMetrics, ServableId], None]] = {
    "dropped_requests_total": lambda metrics, id_: metrics.task_dropped(servable=id_, reason="expired"),
    "unwarmed_runs_total": lambda metrics, id_: metrics.shape_first_run(servable=id_, signature="s", is_tried=True),
    "refused_runs_total": lambda metrics, id_: metrics.run_refused(servable=id_, signature="s"),
    "hung_runs_total": lambda metrics, id_: metrics.runs_hung(servable=id_, count=1),
    "version_loads_total": lambda metrics, id_: metrics.load_failed(servable=id_, path="/m/1", load_s=1.0),
    "request_log_dropped_total": lambda metrics, id_: metrics.request_logged(model=id_.name, outcome="queue_full"),
    "request_stage_requests_total": lambda metrics, id_: metrics.stages_sampled(
        protocol="grpc", model=id_.name, stages=[("decode", 1.0)], requests=1
    ),
}


@pytest.mark.parametrize("name", COUNTERS)
def test_counters_of_further_models_count_together(name: str) -> None:
    metrics = PrometheusMetrics()
    for number in range(MORE):
        COUNTERS[name](metrics, ServableId(f"m{number}", 1))
    found = samples(metrics, name)
    assert len(found) == MOST_MODELS + 1
    assert others(found) == [500]


def test_a_full_metric_does_not_limit_another() -> None:
    metrics = PrometheusMetrics()
    for number in range(MORE):
        finish(metrics, model=f"m{number}")
    run_batch(metrics, servable=ServableId("late", 1))
    assert [sample.labels["model_name"] for sample in counts_of(metrics, "batch_rows")] == ["late"]


def test_a_model_without_versions_gives_its_place_to_a_new_one_and_sums_do_not_fall() -> None:
    metrics = PrometheusMetrics()
    for number in range(MOST_MODELS):
        metrics.version_changed(servable=ServableId(f"m{number}", 3), state=State.AVAILABLE)
        finish(metrics, model=f"m{number}", protocol="rest")
        metrics.examples_received(model=f"m{number}", count=2)
    # Unloaded, and loaded again: it keeps its place.
    for state in (State.END, State.AVAILABLE):
        metrics.version_changed(servable=ServableId("m0", 3), state=state)
    metrics.version_changed(servable=ServableId("m7", 3), state=State.END)
    # A model without versions keeps its series while no other needs the place.
    assert ':tensorflow:serving:request_example_count_total{model="m7"} 2' in upstream_page(metrics).splitlines()
    metrics.examples_received(model="new", count=3)
    metrics.examples_received(model="newer", count=5)
    counts = {
        line.split('"')[1]: int(line.split()[1])
        for line in upstream_page(metrics).splitlines()
        if line.startswith(":tensorflow:serving:request_example_count_total")
    }
    assert counts["new"] == 3
    assert counts["other"] == 2 + 5
    assert "m7" not in counts
    assert counts["m0"] == 2
    assert sum(counts.values()) == 2 * MOST_MODELS + 3 + 5


def test_gauges_omit_further_series_and_count_them() -> None:
    metrics = PrometheusMetrics()
    for number in range(MOST_SERIES + 7):
        servable = ServableId("m", number)
        metrics.version_loaded(servable=servable, path="/m", costs=CostModel(), load_s=1.0, restore_s=0.5)
    assert len(samples(metrics, "version_load_seconds")) == MOST_SERIES
    # The page ends with this gauge, when it has read the others.
    found = {each.family.name: list(each.samples()) for each in metrics.collect()}
    [omitted] = found["tpuserve_metrics_omitted_series"]
    assert (omitted.labels, omitted.value) == ({"metric": "tpuserve_version_load_seconds"}, 7)


def test_ended_versions_are_the_first_that_a_gauge_omits() -> None:
    metrics = PrometheusMetrics()
    for number in range(20):
        servable = ServableId(f"m{number}", 1)
        metrics.version_changed(servable=servable, state=State.END if number < 10 else State.AVAILABLE)
    shown = samples(metrics, "version_state")
    assert Counter(sample.value for sample in shown[:10]) == {State.AVAILABLE: 10}
