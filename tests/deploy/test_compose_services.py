"""Tests that run the commands of compose.yaml's services with the real programs: server, Prometheus, load test, Envoy.

Grafana is not a Debian package. tests/deploy/test_compose.py checks its provisioning.
"""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.compose import mounts, on_this_machine, service
from tests.deploy.envoy.balancer import answered, run_balancer
from tests.deploy.envoy.fleet import MODEL, Models
from tests.deploy.manifests import read
from tests.e2e.running_server import RunningServer
from tests.support.optional import needs
from tests.support.prometheus_server import run_prometheus, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("balancer")]


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, RunningServer]]:
    """Yield both servers by service, with the flags of the file."""
    models = Models.write(tmp_path_factory.mktemp("models"))
    with ExitStack() as stack:
        yield {
            name: stack.enter_context(models.serve(name, *service(name)["command"])) for name in ("server", "server-2")
        }


def run_loadtest(grpc: str, rest: str, target: str) -> None:
    """Run the command of the service with the addresses of a target."""
    found = service("loadtest", MODEL_NAME=MODEL, TARGET=target, DURATION="1s")
    addresses = {f"{target}:8500": grpc, f"http://{target}:8501": rest}
    arguments = [addresses.get(argument, argument) for argument in found["command"]]
    assert set(addresses.values()) <= set(arguments)
    (program,) = found["entrypoint"]
    command = [Path(sys.executable).with_name(program), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_load_test_loads_the_server(servers: dict[str, RunningServer]) -> None:
    server = servers["server"]
    before = answered(server)
    run_loadtest(server.grpc, server.rest, "server")
    assert answered(server) > before


def test_load_test_loads_both_servers_through_envoy(servers: dict[str, RunningServer], tmp_path: Path) -> None:
    before = [answered(server) for server in servers.values()]
    with run_balancer(tmp_path, servers=list(servers.values())) as balancer:
        run_loadtest(balancer.grpc, balancer.rest, "envoy")
    assert all(answered(server) > then for server, then in zip(servers.values(), before, strict=True))


@needs("prometheus")
def test_prometheus_scrapes_servers_and_envoy(servers: dict[str, RunningServer], tmp_path: Path) -> None:
    with run_balancer(tmp_path, servers=list(servers.values())) as balancer:
        targets = {
            "tpuserve": [server.rest.removeprefix("http://") for server in servers.values()],
            "envoy": [balancer.metrics.removeprefix("http://")],
        }
        with run_prometheus(_placed(targets), tmp_path, *_prometheus_flags()) as prometheus:
            wait_for(lambda: prometheus.value("sum(up)") == 3)
            assert prometheus.value('count(up{job="tpuserve"})') == 2
            wait_for(lambda: set(prometheus.rule_health().values()) == {"ok"})


def _prometheus_flags() -> list[str]:
    """Return the flags of the service except those with paths."""
    prometheus = service("prometheus")
    config, storage, *others = prometheus["command"]
    assert config.removeprefix("--config.file=") in mounts(prometheus)
    assert storage == "--storage.tsdb.path=/prometheus"
    assert "prometheus:/prometheus" in prometheus["volumes"]
    return list(others)


def _placed(targets: dict[str, list[str]]) -> dict[str, Any]:
    """Return Prometheus' configuration with these targets by job, instead of the names of containers."""
    prometheus = service("prometheus")
    config = read(mounts(prometheus)["/etc/prometheus/prometheus.yaml"])
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    config["rule_files"] = [on_this_machine(pattern, prometheus) for pattern in config["rule_files"]]
    for job in config["scrape_configs"]:
        del job["dns_sd_configs"]
        job["static_configs"] = [{"targets": targets[job["job_name"]]}]
    return config
