"""Replicas under load: a killed node, an update, and the number of replicas that demand chooses."""

from pathlib import Path

import pytest

from tests.e2e.ray.load import load
from tests.support.ray_cluster import GRPC, REST, TwoNodes, deploy, kill_a_replica, running_replicas, wait_until


def test_killed_nodes_and_updates_lose_no_request(cluster: TwoNodes, root: Path) -> None:
    # Requests stay in flight for 0.1 s. A proxy prefers the replica of its node until that has 6 of them.
    args = {"model_name": "half", "model_base_path": str(root / "half"), "batch_timeout_micros": 100_000}
    options = {"num_replicas": 2, "max_replicas_per_node": 1, "max_ongoing_requests": 6}
    deploy(args, **options)
    assert running_replicas() == 2
    with load(16, "half") as sent:
        sent.wait_for(100)
        cluster.kill_second()
        sent.wait_for(100)
        wait_until(lambda: cluster.ensure_second() and running_replicas() == 2, "two replicas again")
        sent.wait_for(100)
    print(f"\nkilled node: {sent.describe()}")
    assert (sent.failures, sent.wrong) == ([], 0)
    assert all(retry.startswith("UNAVAILABLE") for retry in sent.retries)
    with load(16, "half") as sent:
        sent.wait_for(100)
        deploy({**args, "file_system_poll_wait_seconds": 2}, **options)
        sent.wait_for(100)
    print(f"\nrolling update: {sent.describe()}")
    assert (sent.failures, sent.wrong, sent.retries) == ([], 0, [])


@pytest.mark.parametrize("address", [GRPC, REST])
def test_killed_replicas_lose_no_request(cluster: TwoNodes, root: Path, address: str) -> None:
    # Batches of one request, so that the replica always has requests that it has accepted.
    args = {"model_name": "slow", "model_base_path": str(root / "slow"), "max_batch_size": 1}
    deploy(args, num_replicas=2, max_ongoing_requests=6)
    wait_until(lambda: cluster.ensure_second() and running_replicas() == 2, "two replicas")
    with load(12, "slow", address) as sent:
        sent.wait_for(50)
        kill_a_replica()
        sent.wait_for(100)
        wait_until(lambda: cluster.ensure_second() and running_replicas() == 2, "two replicas again")
        sent.wait_for(100)
    print(f"\nkilled replica, {address}: {sent.describe()}")
    assert (sent.failures, sent.wrong) == ([], 0)
    # The requests that the replica had accepted. Ray sends others to the second replica by itself.
    assert 0 < len(sent.retries) <= 12
    assert all(retry.startswith("UNAVAILABLE") for retry in sent.retries)


def test_demand_chooses_the_number_of_replicas(cluster: TwoNodes, root: Path) -> None:
    policy = {
        "policy_function": "tpuserve_server.hosts.ray.demand_policy:DemandPolicy",
        "policy_kwargs": {"target_demand": 0.7},
    }
    scaling = {
        "min_replicas": 1, "max_replicas": 2, "upscale_delay_s": 1, "downscale_delay_s": 1,
        "metrics_interval_s": 0.5, "look_back_period_s": 2, "policy": policy,
    }  # fmt: skip
    # A batch of one request, so that requests wait for the device.
    args = {"model_name": "slow", "model_base_path": str(root / "slow"), "max_batch_size": 1}
    deploy(args, autoscaling_config=scaling)
    assert running_replicas() == 1
    with load(16, "slow") as sent:
        wait_until(lambda: cluster.ensure_second() and running_replicas() == 2, "two replicas under load")
    wait_until(lambda: running_replicas() == 1, "one replica without load")
    print(f"\n1 -> 2 -> 1 replicas: {sent.describe()}")
    assert not sent.failures
