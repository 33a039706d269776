"""CPU time that imports take in a new interpreter which has imported numpy."""

import subprocess
import sys
from collections.abc import Mapping
from typing import Final

# A gRPC or a REST client includes the import of tpuserve_client and of the library below it.
PROGRAMS: Final[Mapping[str, str]] = {
    "import tpuserve_client": "import tpuserve_client",
    "create a gRPC client": "import tpuserve_client; tpuserve_client.Client('localhost:1')",
    "create a REST client": "import tpuserve_client; tpuserve_client.Client('http://localhost:1')",
    "import grpc": "import grpc",
    "import httpx": "import httpx",
}


def measure_import(program: str) -> float:
    """Run the program in a new interpreter. Return its CPU time in milliseconds, without Python's start and numpy."""
    code = f"import time, numpy; before_s = time.process_time()\n{program}\nprint(time.process_time() - before_s)"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return 1000 * float(done.stdout)
