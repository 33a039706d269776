"""The application that Envoy loads for loop_probe.py: the server's own, with the probe."""

import os
from pathlib import Path

from benchmarks.overhead.loop_probe import FOLDER, LoopProbe
from tpuserve_server.process.embedded import asgi

__all__ = ["asgi"]

LoopProbe(Path(os.environ[FOLDER])).install()
