"""Tests that real readers of ORCA balance by the reports of real servers: gRPC's weighted_round_robin, and Envoy."""

import json
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import grpc
import httpx
import numpy as np
import pytest
import tensorflow as tf
import yaml
from prometheus_client.parser import text_string_to_metric_families

from deploy.envoy.placement import ENVOY
from tests.e2e.running_server import RunningServer, run_server
from tests.support.free_ports import free_ports
from tests.support.saved_models import save_function
from tpuserve_formats.messages.official import PredictRequest

pytestmark = [pytest.mark.slow]

# The second server has 20 times the work for each request.
STEPS = (200, 4000)
SERVICE_CONFIG = {
    "loadBalancingConfig": [{"weighted_round_robin": {"blackoutPeriod": "0.5s", "weightUpdatePeriod": "0.2s"}}]
}
LIMIT_S = 60.0


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sequence[RunningServer]]:
    folder = tmp_path_factory.mktemp("load")
    for steps in STEPS:
        save_function(folder / str(steps) / "1", _count_to(steps), tf.TensorSpec([None], tf.float32, "x"))
    with (
        run_server(folder / str(STEPS[0]), folder / "fast.log", "--load_reports=always") as fast,
        run_server(folder / str(STEPS[1]), folder / "slow.log", "--load_reports=always") as slow,
    ):
        yield fast, slow


def _count_to(steps: int) -> Callable[[tf.Tensor], dict[str, tf.Tensor]]:
    def count(x: tf.Tensor) -> dict[str, tf.Tensor]:
        _, total = tf.while_loop(lambda i, _: i < steps, lambda i, total: (i + 1, total + 1.0), [0, x])
        return {"y": total}

    return count


def predictions(server: RunningServer) -> float:
    families = text_string_to_metric_families(httpx.get(f"{server.rest}/metrics", timeout=60).text)
    samples = [sample for family in families for sample in family.samples]
    return sum(
        each.value for each in samples if each.name == "tpuserve_requests_total" and each.labels["method"] == "Predict"
    )


def wait_for_a_share(servers: Sequence[RunningServer], send: Callable[[], object], count: int = 100) -> None:
    """Send requests until the fast server gets three times the requests of the slow one, of the last `count`."""
    end_s = time.monotonic() + LIMIT_S
    while True:
        before = [predictions(server) for server in servers]
        for _ in range(count):
            send()
        fast, slow = (predictions(server) - old for server, old in zip(servers, before, strict=True))
        assert fast + slow == count
        if fast > 3 * slow:
            return
        assert time.monotonic() < end_s, (fast, slow)


def test_grpc_sends_more_requests_to_the_server_with_less_load(servers: Sequence[RunningServer]) -> None:
    request = PredictRequest()
    request.model_spec.name = "m"
    tensor = tf.make_tensor_proto(np.zeros(1, np.float32))
    request.inputs["x"].ParseFromString(tensor.SerializeToString())
    target = "ipv4:" + ",".join(server.grpc for server in servers)
    # Without it, gRPC would send the list of addresses as the authority, which HTTP does not allow.
    options = [("grpc.default_authority", "tpuserve"), ("grpc.service_config", json.dumps(SERVICE_CONFIG))]
    with grpc.insecure_channel(target, options=options) as channel:
        call: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(
            "/tensorflow.serving.PredictionService/Predict"
        )
        message = request.SerializeToString()
        wait_for_a_share(servers, lambda: call(message, timeout=60, wait_for_ready=True))


def envoy_config(servers: Sequence[RunningServer], port: int) -> dict[str, Any]:
    """Return a configuration of Envoy that balances by the reports of REST responses."""
    types = "type.googleapis.com/envoy.extensions"
    route = {"match": {"prefix": "/"}, "route": {"cluster": "servers"}}
    manager = {
        "@type": f"{types}.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "rest",
        "route_config": {"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [route]}]},
        "http_filters": [
            {
                "name": "envoy.filters.http.router",
                "typed_config": {"@type": f"{types}.filters.http.router.v3.Router"},
            }
        ],
    }
    policy = {
        "@type": f"{types}.load_balancing_policies.client_side_weighted_round_robin.v3.ClientSideWeightedRoundRobin",
        "blackout_period": "0.5s",
        "weight_update_period": "0.2s",
    }
    addresses = [server.rest.removeprefix("http://").rpartition(":") for server in servers]
    endpoints = [
        {"endpoint": {"address": {"socket_address": {"address": host, "port_value": int(number)}}}}
        for host, _, number in addresses
    ]
    cluster = {
        "name": "servers",
        "type": "STATIC",
        "load_balancing_policy": {"policies": [{"typed_extension_config": {"name": "orca", "typed_config": policy}}]},
        "load_assignment": {"cluster_name": "servers", "endpoints": [{"lb_endpoints": endpoints}]},
    }
    listener = {
        "address": {"socket_address": {"address": "127.0.0.1", "port_value": port}},
        "filter_chains": [
            {"filters": [{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}]}
        ],
    }
    return {"static_resources": {"listeners": [listener], "clusters": [cluster]}}


def test_envoy_sends_more_requests_to_the_server_with_less_load(
    servers: Sequence[RunningServer], tmp_path: Path
) -> None:
    [port] = free_ports(1)
    config = tmp_path / "envoy.yaml"
    config.write_text(yaml.safe_dump(envoy_config(servers, port)))
    command = [str(ENVOY), "-c", str(config), "--concurrency", "1", "--use-dynamic-base-id", "-l", "error"]
    with (tmp_path / "envoy.log").open("wb") as log, subprocess.Popen(command, stderr=log) as envoy:
        try:
            with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
                _wait_until_it_answers(client)
                body = {"instances": [0.0]}
                wait_for_a_share(servers, lambda: client.post("/v1/models/m:predict", json=body).raise_for_status())
        finally:
            envoy.terminate()
            envoy.wait(30)


def _wait_until_it_answers(client: httpx.Client) -> None:
    waiting = threading.Event()
    end_s = time.monotonic() + LIMIT_S
    while time.monotonic() < end_s:
        try:
            if client.get("/readyz").status_code == 200:
                return
        except httpx.TransportError:
            pass
        waiting.wait(0.05)
    raise AssertionError("Envoy does not answer")
