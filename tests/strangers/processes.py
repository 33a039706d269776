"""Child processes of a run: each with its output in a file, a time limit, and a stop for all of them."""

import contextlib
import os
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# On a machine that does nothing else they take half a minute.
LIMIT_S = 1200.0
# With libtpu installed, JAX would look for a TPU.
ENVIRONMENT = {"TF_CPP_MIN_LOG_LEVEL": "3", "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}


class Processes:
    """Starts processes and waits for them. Any thread may call `run`; after `stop` it raises Stopped."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen[bytes]] = set()
        self._stopped = False

    def run(self, command: Sequence[str], out: Path, err: Path, environment: Mapping[str, str]) -> int:
        """Block until the command has ended and return its exit status; -9 where it took longer than LIMIT_S."""
        with out.open("wb") as stdout, err.open("wb") as stderr:
            process = self._start(command, stdout.fileno(), stderr.fileno(), environment)
            try:
                return process.wait(LIMIT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                return process.wait()
            finally:
                with self._lock:
                    self._running.discard(process)

    def stop(self) -> None:
        """Kill all that run, and start no more."""
        with self._lock:
            self._stopped = True
            for process in self._running:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()

    def _start(
        self, command: Sequence[str], stdout: int, stderr: int, environment: Mapping[str, str]
    ) -> "subprocess.Popen[bytes]":
        with self._lock:
            if self._stopped:
                raise Stopped
            process = subprocess.Popen(
                command,
                cwd=ROOT,
                env={**os.environ, **ENVIRONMENT, **environment},
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
            )
            self._running.add(process)
            return process


class Stopped(Exception):
    """The run is being stopped."""
