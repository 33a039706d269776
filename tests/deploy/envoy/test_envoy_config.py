"""Tests for envoy.yaml: the real Envoy accepts it without a warning, and what the two protocols share is the same."""

import subprocess
from typing import Any

import pytest
import yaml

from deploy.envoy.placement import CONFIG, ENVOY
from tests.deploy.dockerfile import instruction, read_dockerfile

RESOURCES = yaml.safe_load(CONFIG.read_text(encoding="utf-8"))["static_resources"]
CLUSTERS = {cluster["name"]: cluster for cluster in RESOURCES["clusters"]}


def test_envoy_accepts_the_configuration_without_a_warning() -> None:
    command = [ENVOY, "--mode", "validate", "-l", "warning", "--config-path", str(CONFIG)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_listeners_and_servers_have_the_ports_of_the_image() -> None:
    exposed = [int(port) for port in instruction(read_dockerfile().final, "EXPOSE").words]
    listeners = {each["name"]: each["address"]["socket_address"]["port_value"] for each in RESOURCES["listeners"]}
    assert [listeners["grpc"], listeners["rest"]] == exposed
    for name in ("stable", "canary", "shadow"):
        assert [_port(CLUSTERS[f"{name}_{protocol}"]) for protocol in ("grpc", "rest")] == exposed


def test_only_loopback_reaches_the_admin_interface() -> None:
    config = yaml.safe_load(CONFIG.read_text(encoding="utf-8"))
    assert config["admin"]["address"]["socket_address"]["address"] == "127.0.0.1"


@pytest.mark.parametrize("protocol", ["grpc", "rest"])
def test_the_canary_falls_back_to_the_stable_servers(protocol: str) -> None:
    canary, stable = (CLUSTERS[f"{name}_{protocol}"]["load_assignment"]["endpoints"] for name in ("canary", "stable"))
    assert canary[1:] == [{"priority": 1, **stable[0]}]


def _port(cluster: dict[str, Any]) -> int:
    (server,) = cluster["load_assignment"]["endpoints"][0]["lb_endpoints"]
    port: int = server["endpoint"]["address"]["socket_address"]["port_value"]
    return port
