from pathlib import Path

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.support.measured import ID, finish, run_batch
from tpuserve_server.core.batching.cost_model import CostModel
from tpuserve_server.core.models.response_cache import ResponseCaches
from tpuserve_server.core.terms.errors import Code
from tpuserve_server.core.terms.priority import Priority
from tpuserve_server.core.terms.types import ServableId, State
from tpuserve_server.observe.metrics.histogram import LATENCY_BOUNDS_S
from tpuserve_server.observe.metrics.prometheus import PrometheusMetrics


def samples(metrics: PrometheusMetrics) -> dict[tuple[str, ...], float]:
    parts, content_type = metrics.render()
    assert content_type.startswith("text/plain")
    return {
        (sample.name, *(sample.labels[key] for key in sorted(sample.labels))): sample.value
        for family in text_string_to_metric_families(b"".join(parts).decode())
        for sample in family.samples
    }


def test_traced_requests_are_counted_by_outcome() -> None:
    metrics = PrometheusMetrics()
    assert samples(metrics)["tpuserve_traces_exported_total",] == 0
    for outcome, count in (("exported", 512), ("exported", 8), ("rate", 1), ("queue_full", 2)):
        metrics.requests_traced(outcome=outcome, count=count)
    found = {key: value for key, value in samples(metrics).items() if key[0].startswith("tpuserve_traces_")}
    assert found == {
        ("tpuserve_traces_exported_total",): 520,
        ("tpuserve_traces_dropped_total", "rate"): 1,
        ("tpuserve_traces_dropped_total", "queue_full"): 2,
    }


def test_requests_are_counted_by_code_and_timed() -> None:
    metrics = PrometheusMetrics()
    for code in (Code.OK, Code.OK, Code.NOT_FOUND):
        finish(metrics, code=code, latency_s=0.002)
    found = samples(metrics)
    # Labels: code, method, model_name, protocol, signature, version.
    assert found["tpuserve_requests_total", "OK", "Predict", "m", "grpc", "s", "3"] == 2
    assert found["tpuserve_requests_total", "NOT_FOUND", "Predict", "m", "grpc", "s", "3"] == 1
    assert found["tpuserve_request_latency_seconds_count", "OK", "Predict", "m", "grpc", "s", "3"] == 2
    assert found["tpuserve_request_latency_seconds_bucket", "OK", "0.001", "Predict", "m", "grpc", "s", "3"] == 0
    assert found["tpuserve_request_latency_seconds_bucket", "OK", "0.002", "Predict", "m", "grpc", "s", "3"] == 2
    bounds = {key[2] for key in found if key[0] == "tpuserve_request_latency_seconds_bucket"}
    assert bounds == {"+Inf", *(str(float(bound)) for bound in LATENCY_BOUNDS_S if bound >= 0.001)}


def test_the_process_shows_its_time_and_memory() -> None:
    found = samples(PrometheusMetrics())
    assert found["process_cpu_seconds_total",] > 0
    assert found["process_resident_memory_bytes",] > 10e6
    assert found["process_start_time_seconds",] > 1.7e9


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
    # Labels: bucket, model_name, signature, version.
    assert found["tpuserve_batch_run_seconds_sum", "4", "m", "s", "3"] == 0.5
    assert found["tpuserve_queue_wait_seconds_count", "m", "s", "3"] == 2


def test_runs_of_any_size_share_few_series() -> None:
    metrics = PrometheusMetrics()
    for rows in range(1, 101):
        run_batch(metrics, task_rows=[rows], bucket=rows, has_buckets=False)
    counts = {key[1]: value for key, value in samples(metrics).items() if key[0] == "tpuserve_batch_run_seconds_count"}
    assert counts == {"1": 1, "2": 1, "4": 2, "8": 4, "16": 8, "32": 16, "64": 32, "128": 36}


def test_runs_are_compared_with_what_was_expected_of_them() -> None:
    metrics = PrometheusMetrics()
    run_batch(metrics, run_s=0.03, expected_s=0.02)
    run_batch(metrics, run_s=0.03)
    found = samples(metrics)
    assert found["tpuserve_batch_run_ratio_sum", "m", "s", "3"] == 1.5
    assert found["tpuserve_batch_run_ratio_count", "m", "s", "3"] == 1


def test_finishes_are_compared_with_their_prediction() -> None:
    metrics = PrometheusMetrics()
    metrics.finish_predicted(servable=ID, signature="s", errors_s=[-0.004, 0.0, 0.001, 0.4], host_s=0.0025)
    found = samples(metrics)
    name = "tpuserve_finish_error_seconds_bucket"
    assert [found[name, le, "m", "s", "3"] for le in ("-0.005", "-0.002", "0.0", "0.1", "+Inf")] == [0, 1, 2, 3, 4]
    assert ("tpuserve_finish_error_seconds_sum", "m", "s", "3") not in found
    assert found["tpuserve_objective_host_seconds", "m", "s", "3"] == 0.0025
    metrics.version_changed(servable=ID, state=State.END)
    assert ("tpuserve_objective_host_seconds", "m", "s", "3") not in samples(metrics)


def test_many_batches_of_many_requests_are_all_counted() -> None:
    metrics = PrometheusMetrics()
    for number in range(150):
        run_batch(metrics, task_rows=[1] * 30, bucket=32, queue_waits_s=[number / 1000] * 30, run_s=0.002)
    found = samples(metrics)
    assert found["tpuserve_batch_rows_sum", "m", "s", "3"] == 4500
    assert found["tpuserve_queue_wait_seconds_count", "m", "s", "3"] == 4500
    assert found["tpuserve_queue_wait_seconds_bucket", "0.01", "m", "s", "3"] == 330
    assert found["tpuserve_batch_run_seconds_count", "32", "m", "s", "3"] == 150
    assert found["tpuserve_batch_padding_ratio_sum", "m", "s", "3"] == pytest.approx(150 / 16)


def test_what_batches_cost_is_shown_as_it_is_learned() -> None:
    metrics = PrometheusMetrics()
    costs = CostModel()
    metrics.version_loaded(servable=ID, path="/m/1", costs=costs, load_s=2.5, restore_s=2.0)
    for rows in (1, 3):
        costs.learn("s", rows, 0.001 * (1 + rows))
    costs.learn("s", 1, 0.5, (64, 128))
    found = samples(metrics)
    # Labels: bucket, lengths, model_name, signature, version.
    assert found["tpuserve_batch_cost_seconds", "3", "", "m", "s", "3"] == 0.004
    assert found["tpuserve_batch_cost_seconds", "1", "64,128", "m", "s", "3"] == 0.5
    assert found["tpuserve_batch_cost_spread_seconds", "1", "64,128", "m", "s", "3"] == pytest.approx(0.05)
    assert found["tpuserve_batch_cost_base_seconds", "", "m", "s", "3"] == pytest.approx(0.001)
    assert found["tpuserve_batch_cost_row_seconds", "", "m", "s", "3"] == pytest.approx(0.001)
    assert ("tpuserve_batch_cost_row_seconds", "64,128", "m", "s", "3") not in found


def test_costs_of_any_size_are_shown_for_few() -> None:
    metrics = PrometheusMetrics()
    costs = CostModel()
    metrics.version_loaded(servable=ID, path="/m/1", costs=costs, load_s=2.5, restore_s=2.0)
    for rows in range(1, 200):
        costs.learn("s", rows, 0.001)
    shown = [key[1] for key in samples(metrics) if key[0] == "tpuserve_batch_cost_seconds"]
    assert shown == ["1", "2", "4", "8", "16", "32", "64", "128"]


def test_unwarmed_shapes_and_refused_runs_are_counted() -> None:
    metrics = PrometheusMetrics()
    metrics.shape_first_run(servable=ID, signature="s", is_tried=True)
    metrics.shape_first_run(servable=ID, signature="s", is_tried=False)
    metrics.run_refused(servable=ID, signature="s")
    found = samples(metrics)
    assert found["tpuserve_unwarmed_runs_total", "m", "s", "3"] == 2
    assert found["tpuserve_untried_runs_total", "m", "s", "3"] == 1
    assert found["tpuserve_refused_runs_total", "m", "s", "3"] == 1


def test_drops_and_states() -> None:
    metrics = PrometheusMetrics()
    metrics.task_dropped(servable=ID, reason="expired")
    for _ in range(2):
        metrics.task_dropped(servable=ID, reason="expired", priority=Priority.LOW)
    metrics.version_changed(servable=ID, state=State.LOADING)
    metrics.version_changed(servable=ID, state=State.AVAILABLE)
    found = samples(metrics)
    # Labels: model_name, priority, reason, version.
    assert found["tpuserve_dropped_requests_total", "m", "high", "expired", "3"] == 1
    assert found["tpuserve_dropped_requests_total", "m", "low", "expired", "3"] == 2
    assert found["tpuserve_version_state", "m", "3"] == 30


def test_what_belongs_to_a_version_goes_with_it() -> None:
    metrics, costs = PrometheusMetrics(), CostModel()
    costs.learn("s", 1, 0.1)
    for version in range(1, 20):
        servable = ServableId("m", version)
        run_batch(metrics, servable=servable, expected_s=0.1)
        finish(metrics, version=version)
        metrics.task_dropped(servable=servable, reason="expired")
        metrics.shape_first_run(servable=servable, signature="s", is_tried=False)
        metrics.run_refused(servable=servable, signature="s")
        metrics.version_loaded(servable=servable, path="/m/1", costs=costs, load_s=2.5, restore_s=2.0)
        metrics.version_changed(servable=servable, state=State.AVAILABLE)
        metrics.version_changed(servable=ServableId("m", version - 1), state=State.END)
    found = samples(metrics)
    for name in ("batch_rows_sum", "batch_run_seconds_sum", "batch_run_ratio_sum", "batch_cost_seconds"):
        assert {key[-1] for key in found if key[0] == f"tpuserve_{name}"} == {"19"}
    assert {key[-1] for key in found if key[0] == "tpuserve_unwarmed_runs_total"} == {"19"}
    assert {key[-1] for key in found if key[0] == "tpuserve_refused_runs_total"} == {"19"}
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


def test_devices_show_who_runs_on_them_how_busy_they_are_and_their_memory() -> None:
    metrics = PrometheusMetrics()
    metrics.devices.devices_opened(gauges=[FakeGauge()])
    metrics.devices.device_chosen(servable=ID, device="tpu")
    metrics.devices.device_chosen(servable=ServableId("other", 1), device="cpu", fallback="no_programs")
    metrics.devices.programs_compiled(servable=ID, duration_s=2.5)
    found = samples(metrics)
    assert found["tpuserve_version_device", "tpu", "", "m", "3"] == 1
    assert found["tpuserve_version_device", "cpu", "no_programs", "other", "1"] == 1
    assert found["tpuserve_compile_seconds", "m", "3"] == 2.5
    assert found["tpuserve_device_busy_seconds_total", "tpu:0"] == 12.5
    assert found["tpuserve_device_memory_bytes", "tpu:0", "in_use"] == 2**30
    metrics.version_changed(servable=ID, state=State.END)
    gone = samples(metrics)
    assert ("tpuserve_version_device", "tpu", "", "m", "3") not in gone
    assert ("tpuserve_compile_seconds", "m", "3") not in gone


class FakeGauge:
    """A device that has been busy for a while."""

    name = "tpu:0"

    def busy_s(self) -> float:
        return 12.5

    def memory_bytes(self) -> dict[str, int]:
        return {"in_use": 2**30}


def test_a_response_cache_shows_its_counts_until_its_version_ends() -> None:
    metrics = PrometheusMetrics()
    responses = ResponseCaches().open(ID, 2000)
    metrics.cache_opened(servable=ID, responses=responses)
    y = np.zeros(64, np.float32)
    for key in (b"a", b"b", b"b"):
        if responses.find(key) is None:
            responses.store(key, {"y": y})
    found = samples(metrics)
    counts = responses.counts()
    assert counts[:3] == (1, 2, 1)
    for name, value in (("hits_total", 1), ("misses_total", 2), ("evictions_total", 1), ("bytes", counts.size_bytes)):
        assert found[f"tpuserve_response_cache_{name}", "m", "3"] == value
    metrics.version_changed(servable=ID, state=State.END)
    assert not [key for key in samples(metrics) if key[0].startswith("tpuserve_response_cache")]
