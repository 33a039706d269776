"""The application that Envoy loads for loop_probe.py: the server's own, with the probe."""

import os
from pathlib import Path

from tpuserve_server.process.embedded import asgi

from benchmarks.overhead.loop_probe import FOLDER, LoopProbe

__all__ = ["asgi"]

LoopProbe(Path(os.environ[FOLDER])).install()
