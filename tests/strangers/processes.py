"""Child processes of a run: each has an output file and a time limit, and one call stops all of them."""

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# On an idle machine, a process takes half a minute.
LIMIT_S = 1200.0
# JAX searches for a TPU if libtpu is installed.
ENVIRONMENT = {"TF_CPP_MIN_LOG_LEVEL": "3", "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}


class Processes:
    """Starts processes and waits for them. `run` is thread-safe. After `stop`, it raises Stopped."""

    def __init__(self, limit_s: float = LIMIT_S) -> None:
        self._limit_s = limit_s
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen[bytes]] = set()
        self._stopped = False

    def run(self, command: Sequence[str], out: Path, err: Path, environment: Mapping[str, str]) -> int:
        """Block until the command has ended. Return its exit status, or -9 after the time limit.

        After the time limit, `err` ends with a line that names it.
        """
        with out.open("wb") as stdout, err.open("wb") as stderr:
            process = self._start(command, stdout.fileno(), stderr.fileno(), environment)
            try:
                return process.wait(self._limit_s)
            except subprocess.TimeoutExpired:
                _kill(process)
                status = process.wait()
                stderr.seek(0, os.SEEK_END)
                stderr.write(f"\nstopped at its time limit of {self._limit_s:g} s\n".encode())
                return status
            finally:
                with self._lock:
                    self._running.discard(process)

    def stop(self) -> None:
        """Kill all running processes, and prevent new ones."""
        with self._lock:
            self._stopped = True
            for process in self._running:
                _kill(process)

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
                # Only the run receives Ctrl-C. It then kills the process and its descendants.
                start_new_session=True,
            )
            self._running.add(process)
            return process


class Stopped(Exception):
    """The run is stopping."""


def last_line(log: Path) -> str:
    """Return the last line of a process's output, which names the reason of most failures."""
    return log.read_text(errors="replace").strip().rpartition("\n")[2]


def _kill(process: "subprocess.Popen[bytes]") -> None:
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
