"""A real Envoy with deploy/envoy/envoy.yaml in front of real servers, on free loopback ports."""

import contextlib
import json
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx
from prometheus_client.parser import text_string_to_metric_families

from deploy.envoy.placement import ENVOY, BalancerPorts, Ports, placed_config
from tests.e2e.running_server import RunningServer
from tests.support.free_ports import free_ports
from tests.support.prometheus_server import wait_for

_STOP_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class Balancer:
    """The running Envoy: its addresses, and a client of its admin interface."""

    grpc: str
    rest: str
    metrics: str
    admin: httpx.Client

    def share(self, **percent: int) -> None:
        """Set the percent of the requests for `canary` and `shadow`."""
        keys = {f"tpuserve.{name}": value for name, value in percent.items()}
        self.admin.post("/runtime_modify", params=keys).raise_for_status()

    def statistic(self, name: str) -> int:
        """Return the value of a counter or a gauge of Envoy. Fails if it does not exist."""
        found = self.admin.get("/stats", params={"filter": f"^{name}$", "format": "json"}).json()["stats"]
        (value,) = (int(each["value"]) for each in found if "value" in each)
        return value

    def healthy(self, cluster: str) -> int:
        """Return how many servers of a cluster receive requests."""
        hosts = self.admin.get("/clusters", params={"format": "json"}).json()["cluster_statuses"]
        (statuses,) = (each["host_statuses"] for each in hosts if each["name"] == cluster)
        return sum(set(host["health_status"]) == {"eds_health_status"} for host in statuses)


@contextlib.contextmanager
def run_balancer(folder: Path, **servers: Sequence[RunningServer]) -> Iterator[Balancer]:
    """Start Envoy in front of the servers of each host in envoy.yaml, wait until all are healthy, and stop it after the
    body.
    """
    own = BalancerPorts(*free_ports(4))
    config, log = folder / "envoy.json", folder / "envoy.log"
    placed = placed_config(own, {host: [_ports(server) for server in each] for host, each in servers.items()})
    config.write_text(json.dumps(placed))
    command = [
        ENVOY, "--disable-hot-restart", "--concurrency", "1", "-l", "warning",
        "--config-path", str(config),
    ]  # fmt: skip
    with (
        log.open("wb") as output,
        subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT) as process,
        httpx.Client(base_url=_url(own.admin)) as admin,
    ):
        balancer = Balancer(f"127.0.0.1:{own.grpc}", _url(own.rest), _url(own.metrics), admin)
        try:
            wait_for(lambda: _is_ready(process, balancer, servers, log))
            yield balancer
        finally:
            process.terminate()
            process.wait(_STOP_TIMEOUT_S)


def answered(server: RunningServer, method: str = "Predict") -> int:
    """Return how many requests of a method the server's own metrics count as answered."""
    page = httpx.get(f"{server.rest}/metrics").text
    return sum(
        int(sample.value)
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if sample.name == "tpuserve_requests_total"
        and sample.labels["method"] == method
        and sample.labels["code"] == "OK"
    )


def _ports(server: RunningServer) -> Ports:
    grpc, rest = (int(address.rpartition(":")[2]) for address in (server.grpc, server.rest))
    return Ports(grpc, rest)


def _url(port: int) -> str:
    return f"http://127.0.0.1:{port}"


def _is_ready(
    process: "subprocess.Popen[bytes]", balancer: Balancer, servers: Mapping[str, Sequence[RunningServer]], log: Path
) -> bool:
    assert process.poll() is None, log.read_text()
    names = {"servers": "stable"} | {host: host for host in servers if host != "servers"}
    try:
        return all(
            balancer.healthy(f"{names[host]}_{protocol}") >= len(each)
            for host, each in servers.items()
            for protocol in ("grpc", "rest")
        )
    except httpx.TransportError:
        return False
