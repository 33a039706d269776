"""Tests that the series which Grafana's integration for TensorFlow reads are on the page of a real server.

It keeps eleven series of a scrape, and finds servers by the first: the integration's `metric_relabel_configs` (Grafana
Cloud, integration "TensorFlow") and `tensorflow-mixin/signals` of github.com/grafana/jsonnet-libs.
"""

import httpx
import numpy as np
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from tests.e2e.running_server import RunningServer
from tpuserve_client import Client

OF_SERVER = (
    ":tensorflow:core:graph_build_calls",
    ":tensorflow:core:graph_build_time_usecs",
    ":tensorflow:core:graph_run_time_usecs",
    ":tensorflow:core:graph_runs",
    ":tensorflow:serving:batching_session:queuing_latency_count",
    ":tensorflow:serving:batching_session:queuing_latency_sum",
)
OF_MODEL = (
    ":tensorflow:serving:request_count",
    ":tensorflow:serving:request_latency_count",
    ":tensorflow:serving:request_latency_sum",
    ":tensorflow:serving:runtime_latency_count",
    ":tensorflow:serving:runtime_latency_sum",
)
# `model_path` is the label of loads.
OF_VERSION = (
    ":tensorflow:cc:saved_model:load_attempt_count",
    ":tensorflow:cc:saved_model:load_latency",
    ":tensorflow:cc:saved_model:load_latency_by_stage_count",
    ":tensorflow:cc:saved_model:load_latency_by_stage_sum",
)


def values(server: RunningServer) -> dict[str, float]:
    """Return the sum of each name's series, without those of other models."""
    # Prometheus asks for this format. prometheus_client's parser of the other one renames counters.
    accept = {"accept": "application/openmetrics-text;version=1.0.0"}
    page = httpx.get(f"{server.rest}/metrics", headers=accept, timeout=60).text
    sums: dict[str, float] = {}
    for family in text_string_to_metric_families(page):  # type: ignore[no-untyped-call]  # untyped library
        for sample in family.samples:
            if sample.labels.get("model_name", "calculator") == "calculator":
                sums[sample.name] = sums.get(sample.name, 0.0) + sample.value
    return sums


def test_grafanas_series_grow_with_the_requests(server: RunningServer) -> None:
    x = np.ones((1, 2), np.float32)
    before = values(server)
    with Client(server.grpc) as client:
        for _ in range(3):
            client.predict("calculator", {"x": x})
    after = values(server)
    for name in (*OF_SERVER, *OF_MODEL, *OF_VERSION):
        assert after[name] > 0, name
    runs = ":tensorflow:core:graph_runs"
    assert after[runs] >= before.get(runs, 0) + 3
    # Microseconds: a run of this model takes less than a second, and more than nothing.
    assert 0 < after[":tensorflow:core:graph_run_time_usecs"] < 1e6 * after[runs]
    count = ":tensorflow:serving:runtime_latency_count"
    assert after[count] >= before.get(count, 0) + 3


def test_a_load_is_counted_by_the_directory_of_the_version(server: RunningServer) -> None:
    page = httpx.get(f"{server.rest}/metrics", timeout=60).text
    [line] = [one for one in page.splitlines() if one.startswith(":tensorflow:cc:saved_model:load_attempt_count{")]
    assert line.endswith('/3",status="success"} 1')
