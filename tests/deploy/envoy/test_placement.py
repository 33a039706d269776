"""Tests for envoy.yaml on ports of this machine."""

from typing import Any

from deploy.envoy.placement import BalancerPorts, Ports, placed_config

OWN = BalancerPorts(grpc=1, rest=2, metrics=3, admin=4)
SERVERS = {"servers": [Ports(grpc=11, rest=12), Ports(grpc=21, rest=22)], "canary": [Ports(grpc=31, rest=32)]}


def place(at: dict[str, Any]) -> tuple[str, int]:
    address = at["address"]["socket_address"]
    return address["address"], address["port_value"]


def servers(cluster: str) -> list[list[int]]:
    """Return the ports of a cluster's servers by priority."""
    (found,) = (each for each in placed_config(OWN, SERVERS)["static_resources"]["clusters"] if each["name"] == cluster)
    localities = found["load_assignment"]["endpoints"]
    return [[place(each["endpoint"])[1] for each in locality["lb_endpoints"]] for locality in localities]


def test_envoy_listens_only_on_loopback() -> None:
    config = placed_config(OWN, SERVERS)
    places = [place(config["admin"]), *map(place, config["static_resources"]["listeners"])]
    assert places == [("127.0.0.1", port) for port in (4, 1, 2, 3)]


def test_each_cluster_has_the_ports_of_its_servers_and_protocol() -> None:
    assert servers("stable_grpc") == [[11, 21]]
    assert servers("canary_rest") == [[32], [12, 22]]
    assert servers("admin") == [[4]]


def test_host_that_is_missing_has_no_servers() -> None:
    assert servers("shadow_grpc") == [[]]
