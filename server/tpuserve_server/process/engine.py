"""Program of the engine process: `python -m tpuserve_server.process.engine`, which only the supervisor starts.

The supervisor (`tpuserve serve --frontends=N`) passes the validated settings through the environment.
"""

from tpuserve_server.app import Server
from tpuserve_server.hosts.envoy.engine_entry import run_engine
from tpuserve_server.process.embedded import build_embedded

if __name__ == "__main__":
    run_engine(build_embedded, Server.serve_front_end)
