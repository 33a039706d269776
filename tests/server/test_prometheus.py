from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.measured import ID, finish, run_batch
from tpuserve_server.core.errors import Code
from tpuserve_server.core.types import ServableId, State
from tpuserve_server.measurements import LATENCY_BOUNDS_S
from tpuserve_server.prometheus import PrometheusMetrics


def samples(metrics: PrometheusMetrics) -> dict[tuple[str, ...], float]:
    text, content_type = metrics.render()
    assert content_type.startswith("text/plain")
    return {
        (sample.name, *(sample.labels[key] for key in sorted(sample.labels))): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


def test_requests_are_counted_by_code_and_timed() -> None:
    metrics = PrometheusMetrics()
    for code in (Code.OK, Code.OK, Code.NOT_FOUND):
        finish(metrics, code=code, latency_s=0.002)
    found = samples(metrics)
    # By code, method, model_name, protocol, signature, version.
    assert found["tpuserve_requests_total", "OK", "Predict", "m", "grpc", "s", "3"] == 2
    assert found["tpuserve_requests_total", "NOT_FOUND", "Predict", "m", "grpc", "s", "3"] == 1
    assert found["tpuserve_request_latency_seconds_count", "OK", "Predict", "m", "grpc", "s", "3"] == 2
    assert found["tpuserve_request_latency_seconds_bucket", "OK", "0.001", "Predict", "m", "grpc", "s", "3"] == 0
    assert found["tpuserve_request_latency_seconds_bucket", "OK", "0.002", "Predict", "m", "grpc", "s", "3"] == 2
    bounds = {key[2] for key in found if key[0] == "tpuserve_request_latency_seconds_bucket"}
    assert bounds == {"+Inf", *(str(float(bound)) for bound in LATENCY_BOUNDS_S)}


def test_a_request_that_resolved_to_nothing_has_no_version() -> None:
    metrics = PrometheusMetrics()
    finish(metrics, model="", version=None, signature="", code=Code.NOT_FOUND)
    assert samples(metrics)["tpuserve_requests_total", "NOT_FOUND", "Predict", "", "grpc", "", ""] == 1


def test_batches_show_rows_padding_waits_and_run_time() -> None:
    metrics = PrometheusMetrics()
    run_batch(metrics, task_rows=[1, 2], bucket=4, queue_waits_s=[0.001, 0.002], run_s=0.5)
    found = samples(metrics)
    assert found["tpuserve_batch_rows_sum", "m", "s", "3"] == 3
    assert found["tpuserve_batch_padding_ratio_sum", "m", "s", "3"] == 0.25
    assert found["tpuserve_batch_run_seconds_sum", "m", "s", "3"] == 0.5
    assert found["tpuserve_queue_wait_seconds_count", "m", "s", "3"] == 2


def test_drops_and_states() -> None:
    metrics = PrometheusMetrics()
    metrics.task_dropped(servable=ID, reason="expired")
    metrics.version_changed(servable=ID, state=State.LOADING)
    metrics.version_changed(servable=ID, state=State.AVAILABLE)
    found = samples(metrics)
    assert found["tpuserve_dropped_requests_total", "m", "expired", "3"] == 1
    assert found["tpuserve_version_state", "m", "3"] == 30


def test_what_belongs_to_a_version_goes_with_it() -> None:
    metrics = PrometheusMetrics()
    for version in range(1, 20):
        servable = ServableId("m", version)
        run_batch(metrics, servable=servable)
        finish(metrics, version=version)
        metrics.task_dropped(servable=servable, reason="expired")
        metrics.version_changed(servable=servable, state=State.AVAILABLE)
        metrics.version_changed(servable=ServableId("m", version - 1), state=State.END)
    found = samples(metrics)
    assert {key[-1] for key in found if key[0] == "tpuserve_batch_rows_sum"} == {"19"}
    assert {key[-1] for key in found if key[0] == "tpuserve_dropped_requests_total"} == {"19"}
    assert {key[-1] for key in found if key[0] == "tpuserve_requests_total"} == {"19"}
    assert {key[-1]: value for key, value in found.items() if key[0] == "tpuserve_version_state"} == {
        "18": 50,
        "19": 30,
    }


def test_states_of_models_that_went_do_not_pile_up() -> None:
    metrics = PrometheusMetrics()
    metrics.version_changed(servable=ID, state=State.AVAILABLE)
    for number in range(1100):
        metrics.version_changed(servable=ServableId(f"model-{number}", 1), state=State.END)
    states = metrics.states()
    assert len(states) == 1001
    assert states[ID] is State.AVAILABLE
    assert ServableId("model-1099", 1) in states


def test_more_values_than_a_queue_holds_are_all_counted() -> None:
    metrics = PrometheusMetrics()
    for index in range(2500):
        finish(metrics, latency_s=index / 1000)
    found = samples(metrics)
    assert found["tpuserve_requests_total", "OK", "Predict", "m", "grpc", "s", "3"] == 2500
    assert found["tpuserve_request_latency_seconds_count", "OK", "Predict", "m", "grpc", "s", "3"] == 2500
    assert found["tpuserve_request_latency_seconds_bucket", "OK", "1.0", "Predict", "m", "grpc", "s", "3"] == 1001
    assert found["tpuserve_request_latency_seconds_sum", "OK", "Predict", "m", "grpc", "s", "3"] == pytest.approx(
        sum(range(2500)) / 1000
    )


def test_a_warmup_is_shown_until_its_version_ends() -> None:
    metrics = PrometheusMetrics()
    metrics.version_warmed(servable=ID, path=Path("/models/m/3"), records=2, duration_s=0.25)
    assert samples(metrics)["tpuserve_warmup_seconds", "m", "3"] == 0.25
    metrics.version_changed(servable=ID, state=State.END)
    assert ("tpuserve_warmup_seconds", "m", "3") not in samples(metrics)
