"""Runs the load tests' commands in forks of a process that has imported them, because imports dominate short runs.

A fork parses its arguments, starts gevent, sends its load and exits like the installed command. It calls the entry
point's function with its own streams, directory and exit status. Tests of the installed executables, of signals and of
several machines start separate processes.
"""

import atexit
import contextlib
import functools
import importlib
import json
import os
import pkgutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

Ended: TypeAlias = subprocess.CompletedProcess[str]
ENTRY_POINTS = {
    "tpuserve-loadtest": "tpuserve_loadtests.cli:main",
    "tpuserve-rollout": "tpuserve_loadtests.cli.rollout_command:main",
}
# Importing Locust's own suite runs it.
_NOT_IMPORTED = "tpuserve_loadtests.locustfiles"
_MESSAGE_BYTES = 1 << 20


def run(
    command: str,
    *arguments: str,
    constants: Mapping[str, float | str] | None = None,
    variables: Mapping[str, str] | None = None,
    timeout_s: float = 300.0,
) -> Ended:
    """Run a command of ENTRY_POINTS to its end, like `subprocess.run` with captured output.

    Args:
        constants: names of constants in the commands' modules → their values in this run.
        variables: environment variables in addition to those of this process.

    Raises:
        subprocess.TimeoutExpired: the command was killed after `timeout_s`.
    """
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        request = {
            "argv": [command, *arguments],
            "constants": constants or {},
            "environment": {**os.environ, **(variables or {})},
            "folder": str(Path.cwd()),
        }
        status = _forker().run(request, [out.fileno(), err.fileno()], timeout_s)
        texts = [_read(file) for file in (out, err)]
    return subprocess.CompletedProcess([command, *arguments], status, *texts)


def _read(file: Any) -> str:  # noqa: ANN401  a temporary file, whose type is private
    file.seek(0)
    return str(file.read().decode())


class _Forker:
    """The forking process, which lives as long as this process."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            command = [sys.executable, __file__, str(theirs.fileno())]
            # Forks do not inherit the libraries' threads.
            environment = os.environ | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, env=environment, pass_fds=[theirs.fileno()]
            )
        atexit.register(self.close)

    def run(self, request: dict[str, Any], streams: list[int], timeout_s: float) -> int:
        """Return the exit status of a request. Thread-safe: each call receives replies on its own socket."""
        told, teller = socket.socketpair()
        with told, teller:
            socket.send_fds(self._socket, [json.dumps(request).encode()], [*streams, teller.fileno()])
            teller.close()
            with told.makefile() as lines:
                pid = int(lines.readline())
                told.settimeout(timeout_s)
                try:
                    return int(lines.readline())
                except TimeoutError:
                    os.kill(pid, signal.SIGKILL)
                    raise subprocess.TimeoutExpired(request["argv"], timeout_s) from None

    def close(self) -> None:
        self._socket.close()
        self._process.wait()


@functools.cache
def _forker() -> _Forker:
    return _Forker()


def _import_commands() -> None:
    """Import everything that the commands import, with gevent's patches. Each fork starts gevent itself."""
    from gevent import monkey

    monkey.patch_all()
    root = importlib.import_module("tpuserve_loadtests")
    for module in pkgutil.walk_packages(root.__path__, f"{root.__name__}."):
        if not module.name.startswith(_NOT_IMPORTED):
            importlib.import_module(module.name)


def _serve(requests: socket.socket) -> Callable[[], None]:
    """Fork for each request. Returns in the forks, with the function to run."""
    while True:
        message, descriptors, _, _ = socket.recv_fds(requests, _MESSAGE_BYTES, 3)
        if not message:
            os._exit(0)
        assert len(os.listdir("/proc/self/task")) == 1, "a thread would be missing in the fork"
        if _fork() == 0:
            requests.close()
            _tell_of_fork(descriptors[2])
            return _become(json.loads(message), descriptors[:2])
        for descriptor in descriptors:
            os.close(descriptor)
        with contextlib.suppress(ChildProcessError):
            while _waitpid(-1, os.WNOHANG) != (0, 0):
                pass


def _tell_of_fork(teller: int) -> None:
    """Fork, and send the fork's process id and exit status to the requesting process. Returns in the fork."""
    pid = _fork()
    if pid == 0:
        os.close(teller)
        return
    os.write(teller, f"{pid}\n".encode())
    _, status = _waitpid(pid, 0)
    with contextlib.suppress(BrokenPipeError):  # the test no longer waits
        os.write(teller, f"{os.waitstatus_to_exitcode(status)}\n".encode())
    os._exit(0)


def _become(request: dict[str, Any], streams: list[int]) -> Callable[[], None]:
    """Apply a request's streams, directory, environment and arguments. Return the command's function."""
    for number, descriptor in enumerate(streams, start=1):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.argv = request["argv"]
    for constant, value in request["constants"].items():
        module, _, name = constant.rpartition(".")
        assert hasattr(sys.modules[module], name), constant
        setattr(sys.modules[module], name, value)
    module, _, name = ENTRY_POINTS[sys.argv[0]].partition(":")
    function: Callable[[], None] = getattr(sys.modules[module], name)
    return function


if __name__ == "__main__":
    # Keep the functions that gevent replaces. This process waits without a hub, because forks cannot share one.
    _fork, _waitpid, _socket_to_tests = os.fork, os.waitpid, socket.socket(fileno=int(sys.argv[1]))
    _import_commands()
    _serve(_socket_to_tests)()
