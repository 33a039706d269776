"""Ray Serve with one replica, for the benchmarks: ARGUMENTS GRPC_PORT REST_PORT. The first are JSON.

Use it only with the loopback alone.
"""

import json
import sys
import threading

import ray
from ray import serve
from ray.serve.config import gRPCOptions

from benchmarks.harness.targets import MODEL_NAME
from tpuserve_server.startup.ray_serve import app

if __name__ == "__main__":
    arguments, grpc_port, rest_port = sys.argv[1:]
    # "local": another cluster of this machine is in another network namespace.
    ray.init(
        "local", num_cpus=2, include_dashboard=False, _node_ip_address="127.0.0.1", object_store_memory=100_000_000
    )
    serve.start(
        http_options={"host": "127.0.0.1", "port": int(rest_port)},
        grpc_options=gRPCOptions(
            port=int(grpc_port), grpc_servicer_functions=["tpuserve_server.hosts.ray.ingress.add_tpuserve_services"]
        ),
        logging_config={"enable_access_log": False},
    )
    serve.run(app(json.loads(arguments)), name=MODEL_NAME, route_prefix="/")
    threading.Event().wait()
