"""Envoy with deploy/envoy/envoy.yaml in front of the benchmark's servers."""

import contextlib
import json
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, TypeAlias

from benchmarks.harness.process_tree import ProcessTree, ServerDied, started
from benchmarks.harness.targets import PROTOCOLS, READY_TIMEOUT_S, Protocol, Target, free_port, http_get
from deploy.envoy.placement import ENVOY, BalancerPorts, Ports, placed_config

Server: TypeAlias = Mapping[Protocol, Target]

_RETRY_S: Final = 0.1


@contextlib.contextmanager
def balanced(servers: Sequence[Server], scratch: Path) -> Iterator[Server]:
    """Run Envoy in front of the servers, and wait until it sends requests to all of them."""
    own = BalancerPorts(*(free_port() for _ in range(4)))
    ports = [Ports(server["grpc"].port, server["rest"].port) for server in servers]
    config = scratch / f"envoy-{len(servers)}.json"
    config.write_text(json.dumps(placed_config(own, {"servers": ports})))
    command = [ENVOY, "--disable-hot-restart", "-l", "warning", "--config-path", str(config)]
    with started(command, config.with_suffix(".log")) as tree:
        _wait_until_healthy(tree, own.admin, len(servers))
        yield {
            "grpc": Target("server", "grpc", own.grpc, tree),
            "rest": Target("server", "rest", own.rest, tree),
        }


def _wait_until_healthy(tree: ProcessTree, admin_port: int, servers: int) -> None:
    for _ in range(int(READY_TIMEOUT_S / _RETRY_S)):
        tree.check_alive()
        with contextlib.suppress(OSError):
            if all(_healthy(admin_port, protocol) == servers for protocol in PROTOCOLS):
                return
        with contextlib.suppress(subprocess.TimeoutExpired):
            tree.process.wait(_RETRY_S)
    raise ServerDied(f"Envoy found fewer than {servers} healthy servers:\n{tree.log_tail()}")


def _healthy(admin_port: int, protocol: Protocol) -> int:
    name = f"cluster.stable_{protocol}.membership_healthy"
    page = http_get(admin_port, f"/stats?filter=^{name}$").decode()
    return int(page.rpartition(":")[2]) if page else 0
