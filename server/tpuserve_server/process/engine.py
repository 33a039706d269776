"""Program of the engine process: `python -m tpuserve_server.process.engine`, which only the supervisor starts.

The supervisor (`tpuserve serve --frontends=N`) passes the validated settings through the environment.
"""

# ruff: noqa: E402 - numpy starts a thread, which would get a heap of its own before the call.
from tpuserve_server.core.freed_memory import keep_freed_memory

keep_freed_memory()

from tpuserve_server.app import Server
from tpuserve_server.hosts.envoy.engine_entry import run_engine
from tpuserve_server.process.embedded import build_embedded

if __name__ == "__main__":
    run_engine(build_embedded, Server.serve_front_end)
