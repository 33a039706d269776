"""Tests on a real server that failures are counted by whose fault they are, and that no refusal goes uncounted."""

import os
import time
from collections.abc import Iterator

import grpc
import httpx
import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.e2e.running_server import RunningServer, run_configured_server
from tests.e2e.test_too_late import save_slow_model
from tpuserve_client import Client, NotFound, Retry, TpuserveError
from tpuserve_server.hosts.limits import MAX_HEADER_BYTES

pytestmark = [pytest.mark.slow]

MAX_BYTES = 100_000


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """Start a server with a model that takes seconds, and one whose files are missing."""
    folder = tmp_path_factory.mktemp("faults")
    save_slow_model(folder / "slow/1")
    (folder / "gone/1").mkdir(parents=True)
    config = folder / "models.config"
    models = "".join(
        f'config {{ name: "{name}" base_path: "{folder / name}" model_platform: "tensorflow" }}\n'
        for name in ("slow", "gone")
    )
    config.write_text(f"model_config_list {{\n{models}}}\n")
    flags = (f"--model_config_file={config}", f"--max_request_bytes={MAX_BYTES}")
    with run_configured_server(folder / "log", *flags, model="slow", check_log=False) as server:
        yield server


def count(server: RunningServer, name: str, **labels: str) -> float:
    """Return the sum of the samples of a counter with these labels."""
    families = text_string_to_metric_families(httpx.get(f"{server.rest}/metrics", timeout=60).text)
    samples = [sample for family in families for sample in family.samples if sample.name == name]
    return sum(sample.value for sample in samples if labels.items() <= sample.labels.items())


def failed(server: RunningServer, **labels: str) -> float:
    return count(server, "tpuserve_failed_requests_total", method="Predict", **labels)


def test_request_for_a_configured_model_that_is_gone_is_the_servers_fault(server: RunningServer) -> None:
    server.final_states("gone")
    with Client(server.grpc, retry=Retry(max_attempts=1)) as client:
        for model in ("gone", "never configured"):
            with pytest.raises(NotFound):
                client.predict(model, {"x": np.zeros(1, np.float32)})
    assert httpx.post(f"{server.rest}/v1/models/gone:predict", json={"instances": [0]}).status_code == 404
    assert httpx.post(f"{server.rest}/v2/models/gone/infer", json={"inputs": []}).status_code == 404
    assert failed(server, model_name="gone", code="NOT_FOUND", fault="server") == 2
    assert count(server, "tpuserve_failed_requests_total", method="ModelInfer", model_name="gone", fault="server") == 1
    assert failed(server, model_name="", code="NOT_FOUND", fault="client") == 1
    assert failed(server, model_name="gone", fault="client") == 0


def test_timeout_that_no_idle_server_could_meet_is_the_clients_fault(server: RunningServer) -> None:
    end_s, sent = time.monotonic() + 60, 0
    with Client(server.grpc, retry=Retry(max_attempts=1)) as client:
        client.predict("slow", {"x": np.zeros(1, np.float32)})
        # On a busy machine, the time of a request can pass before it reaches the server, which then counts nothing.
        while time.monotonic() < end_s and excused(server) < 3:
            sent += 1
            with pytest.raises(TpuserveError):
                client.predict("slow", {"x": np.zeros(1, np.float32)}, timeout_s=0.02)
    headers = {"x-tpuserve-timeout-ms": "20"}
    assert httpx.post(
        f"{server.rest}/v1/models/slow:predict", json={"instances": [0]}, headers=headers, timeout=60
    ).is_error
    assert 4 <= excused(server) <= sent + 1
    assert failed(server, model_name="slow", fault="server") == 0


def excused(server: RunningServer) -> float:
    refused = count(server, "tpuserve_refused_requests_total", reason="impossible_deadline")
    return failed(server, model_name="slow", fault="client") + refused


def test_messages_and_headers_over_their_limits_are_counted(server: RunningServer) -> None:
    too_large = os.urandom(MAX_BYTES + 1)
    with grpc.insecure_channel(server.grpc) as channel:
        for path in ("tensorflow.serving.PredictionService/Predict", "inference.GRPCInferenceService/ModelInfer"):
            call: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(f"/{path}")
            with pytest.raises(grpc.RpcError) as raised:
                call(too_large, timeout=60)
            assert raised.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    for path in ("/v1/models/slow:predict", "/v2/models/slow/infer"):
        assert httpx.post(f"{server.rest}{path}", content=too_large, timeout=60).status_code == 413
    assert count(server, "tpuserve_refused_requests_total", reason="message_size") == 4
    long = {"x-long": "a" * MAX_HEADER_BYTES}
    assert httpx.get(f"{server.rest}/v1/models/slow", headers=long).status_code == 431
    assert count(server, "tpuserve_refused_requests_total", reason="header_size") == 1
