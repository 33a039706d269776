"""Tests for a real Envoy in front of real servers: shares, labels, refusals, retries.

The counts are those of the servers' own metrics.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import httpx
import numpy as np
import pytest
from grpc import RpcError, StatusCode, insecure_channel
from tensorflow_serving.apis import model_management_pb2, model_service_pb2_grpc

from tests.deploy.envoy.balancer import Balancer, answered, run_balancer
from tests.deploy.envoy.fleet import BROKEN, MODEL, Models, check_predict
from tests.e2e.running_server import RunningServer
from tests.support.prometheus_server import wait_for
from tpuserve_client import Client, Retry, Unavailable

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("balancer")]

REQUESTS = 200
# Envoy's retries of a request.
RETRIES = 3
ONE_ATTEMPT = Retry(max_attempts=1)
PROTOCOLS = ["grpc", "rest"]


@dataclass(frozen=True, slots=True)
class Fleet:
    """Envoy and its servers."""

    balancer: Balancer
    stable: tuple[RunningServer, ...]
    canary: RunningServer
    shadow: RunningServer

    def address(self, protocol: str) -> str:
        return self.balancer.grpc if protocol == "grpc" else self.balancer.rest

    def counts(self) -> tuple[int, int, int]:
        """Return the answered predictions of the stable servers, of the canary and of the shadow."""
        return sum(map(answered, self.stable)), answered(self.canary), answered(self.shadow)


@pytest.fixture(scope="module")
def whole_fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    models = Models.write(tmp_path_factory.mktemp("models"))
    with ExitStack() as stack:
        *stable, canary, shadow = (
            stack.enter_context(models.serve(name)) for name in ("stable-1", "stable-2", "canary", "shadow")
        )
        balancer = stack.enter_context(
            run_balancer(models.folder, servers=stable, canary=[canary], shadow=[shadow]),
        )
        yield Fleet(balancer, tuple(stable), canary, shadow)


@pytest.fixture
def fleet(whole_fleet: Fleet) -> Iterator[Fleet]:
    yield whole_fleet
    whole_fleet.balancer.share(canary=0, shadow=0)


def send(fleet: Fleet, protocol: str, count: int, **options: object) -> tuple[int, ...]:
    """Send predictions, and return what `counts` has gained."""
    before = fleet.counts()
    with Client(fleet.address(protocol)) as client:
        for number in range(count):
            check_predict(client, number, **options)
    return tuple(now - then for now, then in zip(fleet.counts(), before, strict=True))


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_stable_servers_answer_all_requests_at_first(fleet: Fleet, protocol: str) -> None:
    before = [answered(server) for server in fleet.stable]
    assert send(fleet, protocol, REQUESTS) == (REQUESTS, 0, 0)
    assert all(answered(server) > then for server, then in zip(fleet.stable, before, strict=True))


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_the_canary_answers_its_share(fleet: Fleet, protocol: str) -> None:
    fleet.balancer.share(canary=25)
    stable, canary, shadow = send(fleet, protocol, REQUESTS)
    assert (stable + canary, shadow) == (REQUESTS, 0)
    # A quarter is 50, with a standard deviation of 6.
    assert 20 <= canary <= 80


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_the_header_chooses_the_servers_whatever_the_share_is(fleet: Fleet, protocol: str) -> None:
    assert send(fleet, protocol, 20, headers={"x-tpuserve-label": "canary"}) == (0, 20, 0)
    fleet.balancer.share(canary=100)
    assert send(fleet, protocol, 20, headers={"x-tpuserve-label": "stable"}) == (20, 0, 0)


def test_the_label_in_a_rest_path_chooses_the_servers_whatever_the_share_is(fleet: Fleet) -> None:
    assert send(fleet, "rest", 20, label="canary") == (0, 20, 0)
    fleet.balancer.share(canary=100)
    assert send(fleet, "rest", 20, label="stable") == (20, 0, 0)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_the_shadow_gets_a_copy_of_each_request(fleet: Fleet, protocol: str) -> None:
    fleet.balancer.share(shadow=100)
    shadowed = answered(fleet.shadow)
    stable, canary, _ = send(fleet, protocol, REQUESTS)
    assert (stable, canary) == (REQUESTS, 0)
    wait_for(lambda: answered(fleet.shadow) == shadowed + REQUESTS)


def test_requests_above_the_size_of_a_retry_pass(fleet: Fleet) -> None:
    fleet.balancer.share(shadow=100)
    x = np.ones((5_000_000, 1), np.float32)
    with Client(fleet.balancer.grpc) as client:
        (y,) = client.predict(MODEL, {"serving_default_x": x}).outputs.values()
    assert y.shape == x.shape


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_the_open_inference_protocol_passes(fleet: Fleet, protocol: str) -> None:
    address = fleet.balancer.rest if protocol == "rest" else f"grpc://{fleet.balancer.grpc}"
    with Client(f"oip+{address}") as client:
        client.wait_until_ready(60, MODEL)
        check_predict(client, 1)


def test_no_client_controls_the_servers(fleet: Fleet) -> None:
    with insecure_channel(fleet.balancer.grpc) as channel:
        stub = model_service_pb2_grpc.ModelServiceStub(channel)
        with pytest.raises(RpcError) as refusal:
            stub.HandleReloadConfigRequest(model_management_pb2.ReloadConfigRequest(), timeout=60)
    assert refusal.value.code() is StatusCode.PERMISSION_DENIED


@pytest.mark.parametrize(
    "path",
    [
        f"/v2/repository/models/{MODEL}/load",
        f"/v2/models/{MODEL}/trace/setting",
        "/v2/logging",
        "/v2/systemsharedmemory/status",
        f"/v2/models/{MODEL}/%74race/setting",
        "/v1/models/../../v2/logging",
        "/v1/models/%2e%2e/%2e%2e/v2/logging",
        "/debug/status",
        "/metrics",
    ],
)
def test_envoy_refuses_paths_of_control_and_of_one_server(fleet: Fleet, path: str) -> None:
    # httpx resolves dots in a path of its own, so the raw path is given.
    url = httpx.URL(fleet.balancer.rest).copy_with(raw_path=path.encode())
    response = httpx.post(url, json={})
    assert (response.status_code, response.json()) == (403, {"error": "RBAC: access denied"})


def test_envoy_refuses_slashes_that_only_the_server_would_see(fleet: Fleet) -> None:
    url = httpx.URL(fleet.balancer.rest).copy_with(raw_path=f"/v2/models/{MODEL}%2Ftrace%2Fsetting".encode())
    assert httpx.post(url, json={}).status_code == 400


def test_each_server_keeps_its_requests_ids(fleet: Fleet) -> None:
    response = httpx.get(f"{fleet.balancer.rest}/v1/models/{MODEL}", headers={"x-request-id": "mine"})
    assert response.headers["x-request-id"] == "mine"


def test_rest_retries_wait_as_long_as_the_server_asks(fleet: Fleet) -> None:
    waited = fleet.balancer.statistic("cluster.stable_rest.upstream_rq_retry_backoff_ratelimited")
    with Client(f"oip+{fleet.balancer.rest}", retry=ONE_ATTEMPT) as client, pytest.raises(Unavailable, match=BROKEN):
        client.predict(BROKEN, {"x": [[1.0]]}, version=1)
    assert fleet.balancer.statistic("cluster.stable_rest.upstream_rq_retry_backoff_ratelimited") == waited + RETRIES


def test_grpc_retries_go_to_another_server_and_then_end(fleet: Fleet) -> None:
    retried = fleet.balancer.statistic("cluster.stable_grpc.upstream_rq_retry")
    with (
        Client(f"oip+grpc://{fleet.balancer.grpc}", retry=ONE_ATTEMPT) as client,
        pytest.raises(Unavailable, match=BROKEN),
    ):
        client.predict(BROKEN, {"x": [[1.0]]}, version=1)
    assert fleet.balancer.statistic("cluster.stable_grpc.upstream_rq_retry") == retried + RETRIES


def test_requests_for_a_broken_model_eject_no_server(fleet: Fleet) -> None:
    ejections = "cluster.stable_grpc.outlier_detection.ejections_enforced_total"
    before = fleet.balancer.statistic(ejections)
    with Client(f"oip+grpc://{fleet.balancer.grpc}", retry=ONE_ATTEMPT) as client:
        for _ in range(10):
            with pytest.raises(Unavailable):
                client.predict(BROKEN, {"x": [[1.0]]}, version=1)
    assert fleet.balancer.statistic(ejections) == before


def test_envoy_is_ready_and_has_metrics(fleet: Fleet) -> None:
    assert httpx.get(f"{fleet.balancer.rest}/readyz").status_code == 200
    assert httpx.get(f"{fleet.balancer.metrics}/ready").status_code == 200
    assert "envoy_cluster_upstream_rq_total" in httpx.get(f"{fleet.balancer.metrics}/metrics").text
    assert httpx.get(f"{fleet.balancer.metrics}/quitquitquit").status_code == 404
