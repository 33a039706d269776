"""The application that Envoy loads for scripted_server.py: the server's own, on the scripted device."""

import os

from benchmarks.loadgen.scripted_server import COSTS, script_device
from tpuserve_server.process.embedded import asgi

__all__ = ["asgi"]

script_device(*map(float, os.environ[COSTS].split()))
