"""Tests for servers and connections that end under load behind a real Envoy: clients lose no request."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest

from tests.deploy.envoy.balancer import Balancer, answered, run_balancer
from tests.deploy.envoy.fleet import MODEL, Models
from tests.deploy.envoy.load import Load, run_load
from tests.e2e.running_server import RunningServer
from tests.support.prometheus_server import wait_for
from tpuserve_client import Client, Retry, TpuserveError

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("balancer")]

SOME = 300
PROTOCOLS = ("grpc", "rest")
# Envoy hides most failures. Clients repeat the others.
MOST_CLIENT_RETRIES = 30


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    return Models.write(tmp_path_factory.mktemp("models"))


@pytest.fixture
def survivor(models: Models) -> Iterator[RunningServer]:
    with models.serve("survivor") as server:
        yield server


def kill(server: RunningServer) -> None:
    """End all processes of a server at once, as the end of its machine does."""
    process = psutil.Process(server.process.pid)
    for each in (process, *process.children(recursive=True)):
        each.kill()
    server.process.wait()


def check_lossless(load: Load) -> None:
    assert load.failures == []
    assert load.client_retries <= MOST_CLIENT_RETRIES


def kill_under_load(balancer: Balancer, killed: RunningServer, name: str) -> None:
    """Kill a server of the clusters `name`, which have another one, and check that no request is lost."""
    clusters = [f"{name}_{protocol}" for protocol in PROTOCOLS]
    with run_load([balancer.grpc, balancer.rest]) as load:
        load.wait_for(SOME)
        assert answered(killed) > 0
        kill(killed)
        wait_for(lambda: all(balancer.healthy(cluster) == 1 for cluster in clusters))
        load.wait_for(SOME)
    assert sum(balancer.statistic(f"cluster.{cluster}.upstream_rq_retry") for cluster in clusters) > 0
    check_lossless(load)


def test_killed_server_loses_no_request(models: Models, survivor: RunningServer, tmp_path: Path) -> None:
    with (
        models.serve("killed") as killed,
        run_balancer(tmp_path, servers=[survivor, killed]) as balancer,
    ):
        kill_under_load(balancer, killed, "stable")


def test_killed_canary_loses_no_request(models: Models, survivor: RunningServer, tmp_path: Path) -> None:
    with (
        models.serve("canary") as canary,
        run_balancer(tmp_path, servers=[survivor], canary=[canary]) as balancer,
    ):
        balancer.share(canary=100)
        kill_under_load(balancer, canary, "canary")


def test_drained_server_loses_no_request(models: Models, survivor: RunningServer, tmp_path: Path) -> None:
    with (
        # Longer than two health checks. A busy machine may delay them; then Envoy's retries reach the other server.
        models.serve("drained", "--drain_delay_seconds=5") as drained,
        run_balancer(tmp_path, servers=[survivor, drained]) as balancer,
        run_load([balancer.grpc, balancer.rest]) as load,
    ):
        load.wait_for(SOME)
        assert drained.terminate() == 0
        load.wait_for(SOME)
    check_lossless(load)


def test_deadlines_that_pass_lose_no_other_request(survivor: RunningServer, tmp_path: Path) -> None:
    """The server ends a connection with more than 200 resets in 10 s, which Envoy's clients share."""
    x = np.ones((200_000, 1), np.float32)
    ended = "cluster.stable_grpc.upstream_cx_destroy_remote_with_active_rq"
    with (
        run_balancer(tmp_path, servers=[survivor]) as balancer,
        run_load([balancer.grpc, balancer.rest]) as load,
        Client(balancer.grpc, retry=Retry(max_attempts=1)) as late,
    ):
        load.wait_for(SOME)
        while balancer.statistic(ended) == 0:
            with contextlib.suppress(TpuserveError):
                late.predict(MODEL, {"serving_default_x": x}, timeout_s=0.002)
        load.wait_for(SOME)
    check_lossless(load)
