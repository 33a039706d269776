"""A real Ray cluster of two nodes with Ray Serve. Only for namespaces of `tests.support.loopback_only`."""

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final
from urllib.request import urlopen

import ray
from ray import serve
from ray.cluster_utils import Cluster
from ray.serve._private.common import ReplicaState
from ray.serve.config import gRPCOptions
from ray.serve.context import _get_global_client
from ray.serve.schema import ApplicationStatus, ServeDeploySchema

from tests.e2e.running_server import START_TIMEOUT_S

ROOT: Final = Path(__file__).parents[2]
GRPC, REST = "127.0.0.1:9000", "http://127.0.0.1:8000"
SERVICERS: Final = "tpuserve_server.hosts.ray.ingress.add_tpuserve_services"
REST_MIDDLEWARES: Final = "tpuserve_server.hosts.ray.rest_proxy.middlewares"
# Each node has room for one replica, because a replica takes one CPU of Ray's count.
_NODE: Final = {"num_cpus": 1, "object_store_memory": 100 << 20}
NAME: Final = "tpuserve"


class TwoNodes:
    """The head node with the proxies, and a second node."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._second = cluster.add_node(**_NODE)

    def kill_second(self) -> None:
        """Kill all processes of the second node at once, as a machine that loses its power."""
        self._cluster.remove_node(self._second, allow_graceful=False)

    def ensure_second(self) -> bool:
        """Add another second node unless the last one runs, and return True.

        On a busy machine, the process of a new node rarely ends within seconds after its start, without a message.
        """
        raylet = self._second.all_processes.get("raylet", [None])[0]
        if raylet is None or raylet.process.poll() is not None:
            print("the second node starts again, after", raylet and raylet.process.returncode)
            self._second = self._cluster.add_node(**_NODE)
        return True


@contextlib.contextmanager
def two_nodes() -> Iterator[TwoNodes]:
    """Start the cluster and the proxies of Ray Serve. Stop all of its processes at exit."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    # With authentication, Ray would write a token into the home directory.
    os.environ["RAY_AUTH_MODE"] = "disabled"
    # On a busy machine, a proxy starts slowly. Ray would start it again.
    os.environ["RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S"] = "120"
    os.environ["RAY_SERVE_PROXY_HEALTH_CHECK_TIMEOUT_S"] = "60"
    os.environ["RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH"] = REST_MIDDLEWARES
    # Ray's processes import the packages that are installed editable, and the tests' modules.
    os.environ["PYTHONPATH"] = str(ROOT)
    cluster = Cluster(
        initialize_head=True,
        head_node_args={**_NODE, "include_dashboard": False, "node_ip_address": "127.0.0.1"},
        connect=True,
    )
    try:
        nodes = TwoNodes(cluster)
        start_proxies(SERVICERS)
        yield nodes
    finally:
        serve.shutdown()
        ray.shutdown()
        cluster.shutdown()


def start_proxies(*servicers: str, location: str = "EveryNode") -> None:
    """Start Ray Serve with these servicer functions, after it was stopped or for the first time."""
    serve.start(
        location,
        http_options={"host": "127.0.0.1", "port": 8000},
        grpc_options=gRPCOptions(port=9000, grpc_servicer_functions=list(servicers)),
    )


def deploy(args: dict[str, Any], **options: object) -> None:
    """Deploy the application by a Serve configuration, as `serve deploy` does, and wait until it runs.

    `options` are those of its deployment. It replaces the application that is deployed.

    Raises:
        AssertionError: the application cannot run. The message is Ray's.
    """
    application = {
        "name": NAME,
        "route_prefix": "/",
        "import_path": "tpuserve_server.startup.ray_serve:app",
        "args": args,
        "deployments": [{"name": "tpuserve", **options}],
    }
    _get_global_client().deploy_apps(ServeDeploySchema.model_validate({"applications": [application]}))
    wait_until(lambda: _state() not in (ApplicationStatus.DEPLOYING, ApplicationStatus.NOT_STARTED), "deployed")
    assert _state() is ApplicationStatus.RUNNING, serve.status()


def running_replicas() -> int:
    """Return the number of replicas that run."""
    replicas = serve.status().applications[NAME].deployments["tpuserve"].replica_states
    return int(replicas.get(ReplicaState.RUNNING, 0))


def kill_a_replica() -> None:
    """Kill the process of a replica at once."""
    names = [each["name"] for each in ray.util.list_named_actors(all_namespaces=True)]
    replica = min(name for name in names if name.startswith("SERVE_REPLICA::"))
    ray.kill(ray.get_actor(replica, namespace="serve"))


def metrics_pages() -> list[str]:
    """Return the page of Ray's metrics of each node, empty for one that has none yet."""
    ports = [node["MetricsExportPort"] for node in ray.nodes() if node["Alive"]]
    pages = []
    for port in ports:
        with contextlib.suppress(OSError), urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as response:
            pages.append(response.read().decode())
    return pages


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Wait until Ray reports `condition`. Raises AssertionError, which names `what`, after START_TIMEOUT_S."""
    end_s = time.monotonic() + START_TIMEOUT_S
    while not condition():
        assert time.monotonic() < end_s, f"not {what} after {START_TIMEOUT_S} s: {serve.status()}"
        time.sleep(0.1)


def _state() -> ApplicationStatus:
    return serve.status().applications[NAME].status
