"""Real servers as the replicas of a rollout, on their own or with the volumes of a ConfigMap."""

import threading
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from os import environ
from pathlib import Path

import numpy as np
import psutil

from tests.deploy.kustomize import KUBECTL
from tests.e2e.running_server import RunningServer, run_in_environment
from tests.loadtests.rollout_process import RolloutProcess, running_rollout
from tests.support.free_ports import free_ports
from tests.support.kubernetes_api import ConfigMapServer, Volume, serving
from tpuserve_client import Client
from tpuserve_loadtests.access import Access
from tpuserve_loadtests.monitoring.metrics_page import Page
from tpuserve_loadtests.rollout.model_service import ModelService

# Each test module makes its own bad version.
LIVE, NEW, BAD = 3, 4, 5
FILE = "models.config"


@dataclass
class Replica:
    """A server that can be killed and started again on the same ports."""

    file: Path
    log: Path
    flags: tuple[str, ...] = ()
    ports: list[int] = field(default_factory=lambda: free_ports(2))
    stack: ExitStack = field(default_factory=ExitStack)

    def start(self) -> RunningServer:
        flags = (f"--rest_api_port={self.ports[1]}", f"--model_config_file={self.file}", *self.flags)
        running = run_in_environment(self.log, self.ports, {}, *flags, model="m")
        self.server = self.stack.enter_context(running)
        with Client(self.address) as client:
            for version in (LIVE, NEW, BAD):
                client.wait_until_ready(90, "m", version=version)
        return self.server

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.ports[0]}"

    def kill(self) -> None:
        """Kill all processes of the server. If only the supervisor died, the serving process would drain first."""
        supervisor = psutil.Process(self.server.process.pid)
        family = [supervisor, *supervisor.children(recursive=True)]
        for process in family:
            process.kill()
        self.server.process.wait()
        psutil.wait_procs(family)

    def answers(self, label: str = "stable") -> int | None:
        with Client(self.address) as client:
            return client.predict("m", {"x": np.ones((1, 4), np.float32)}, label=label).version

    def sha256(self) -> str:
        with ModelService(self.address, Access(), 10, 60) as service:
            return service.configuration_sha256("m")

    def requests(self) -> float:
        with urllib.request.urlopen(f"{self.server.rest}/metrics", timeout=60) as page:
            return Page.parse(page.read().decode()).total("tpuserve_requests_total") or 0.0


@contextmanager
def replicas(files: Sequence[Path], tmp_path: Path, *flags: str) -> Iterator[list[Replica]]:
    """Start a server for each file."""
    with ExitStack() as stack:
        started = [Replica(file, tmp_path / f"log{number}", flags) for number, file in enumerate(files)]
        for each in started:
            stack.enter_context(each.stack)
            each.start()
        yield started


@contextmanager
def rolling_out(fleet: Sequence[Replica], *arguments: str, **variables: str) -> Iterator[RolloutProcess]:
    addresses = [word for each in fleet for word in ("--replicas", each.address)]
    with running_rollout("m", "--to", str(NEW), "--execute", *addresses, *arguments, variables=variables) as command:
        yield command


class Cluster:
    """A ConfigMap server, and pods whose volumes the kubelet updates. `lagging` volumes get changes with `catch_up`."""

    def __init__(self, tmp_path: Path, config: str, pods: int) -> None:
        self.api = ConfigMapServer("serving", "tpuserve", {FILE: config})
        self.volumes = [Volume(tmp_path / f"pod{number}", self.api.data) for number in range(pods)]
        self.lagging: set[int] = set()
        self._lock = threading.Lock()
        self.api.on_change = lambda data: self.catch_up(*set(range(pods)) - self.lagging)
        self._kubeconfig = tmp_path / "kubeconfig"

    @property
    def variables(self) -> dict[str, str]:
        path = f"{KUBECTL.parent}:{environ['PATH']}"
        return {"KUBECONFIG": str(self.api.kubeconfig(self._kubeconfig)), "PATH": path}

    def catch_up(self, *pods: int) -> None:
        with self._lock:
            for pod in pods:
                self.volumes[pod].update(self.api.data)

    @property
    def text(self) -> str:
        return self.api.data[FILE]


@contextmanager
def cluster_of(tmp_path: Path, config: str, pods: int) -> Iterator[tuple[Cluster, list[Replica]]]:
    cluster = Cluster(tmp_path, config, pods)
    files = [volume.path(FILE) for volume in cluster.volumes]
    with (
        serving(cluster.api),
        replicas(files, tmp_path, "--model_config_file_poll_wait_seconds=0.1") as fleet,
    ):
        yield cluster, fleet


CONFIG_MAP = ("--source", f"configmap:serving/tpuserve/{FILE}")
