"""RunningServer: the handle of a started server, its child process, and the program of that process.

`python -m tpuserve_server.startup.running_server` is `tpuserve serve`, which drains and exits when its parent process
ends in any way.
"""

import logging
import os
import shutil
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from tpuserve_server.hosts.announcement import reachable
from tpuserve_server.hosts.application import Listening

# Longer than the default of drain_timeout_seconds.
DEFAULT_STOP_TIMEOUT_S = 60.0


class RunningServer:
    """Handle of a server in a separate process. The server stops at the end of a `with` statement.

    It also stops when the handle is garbage-collected, when the interpreter exits, and when this process ends in any
    other way. Any thread may call the methods, one thread at a time.
    """

    def __init__(self, process: "ServerProcess", listening: Listening, log_path: Path, folder: Path) -> None:
        """Take ownership of the process and of the server's directory `folder`, which is deleted with the handle."""
        self._process = process
        self._listening = listening
        self.log_path = log_path
        self._release = weakref.finalize(self, _release, process, folder, os.getpid())

    @property
    def grpc_address(self) -> str:
        """The address of gRPC.

        For example `127.0.0.1:8500`. It starts with `grpcs://` if the server uses TLS, and with `unix:` if the server
        listens on a socket only.

        Raises:
            LookupError: the server has no gRPC.
        """
        if self._listening.grpc is not None:
            return f"{'grpcs://' if self._listening.tls else ''}{reachable(self._listening.grpc)}"
        if self._listening.grpc_socket is not None:
            return self._listening.grpc_socket
        raise LookupError("This server has no gRPC address. Start it without port=0, or with grpc_socket_path.")

    @property
    def rest_address(self) -> str:
        """The address of REST.

        For example `http://127.0.0.1:8501`. It starts with `https://` if the server uses TLS.

        Raises:
            LookupError: the server has no REST.
        """
        if self._listening.rest is None:
            raise LookupError("This server has no REST address. Start it without rest_api_port=0.")
        return f"{'https' if self._listening.tls else 'http'}://{reachable(self._listening.rest)}"

    @property
    def pid(self) -> int:
        """Process id of the server, which leads a separate session."""
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether the process runs: False after `stop`, and after it ended by itself."""
        return self._process.poll() is None

    def logs(self) -> str:
        """Return the server's log so far. Works after `stop` too."""
        return self.log_path.read_text(errors="replace")

    def stop(self, timeout_s: float = DEFAULT_STOP_TIMEOUT_S) -> int:
        """Send SIGTERM, wait for the in-flight requests, and return the exit status: 0 after a drain.

        Blocks for at most about `timeout_s` seconds, then forces the server to exit. Has no effect on a server that has
        ended.
        """
        return self._process.stop(timeout_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"<tpuserve server: {self.describe()}{'' if self.is_running else ', stopped'}>"

    def describe(self) -> str:
        """Return the addresses for display: `gRPC ADDRESS, REST ADDRESS`."""
        listening = self._listening
        addresses = [f"gRPC {self.grpc_address}"] if listening.grpc or listening.grpc_socket else []
        return ", ".join([*addresses, *([f"REST {self.rest_address}"] if listening.rest else [])])


def _release(process: "ServerProcess", folder: Path, owner: int) -> None:
    if os.getpid() == owner:
        process.stop(DEFAULT_STOP_TIMEOUT_S)
        shutil.rmtree(folder, ignore_errors=True)


# After a second signal, the server kills its own child processes, which takes a moment.
_FORCE_TIMEOUT_S = 10.0

# Write ends of pipes. When its pipe ends, a server drains, because its owner is gone.
_lifelines: "weakref.WeakSet[IO[bytes]]" = weakref.WeakSet()


def _close_lifelines() -> None:
    """Close the pipes in a forked copy of the owner, which must not keep the owner's servers alive."""
    for pipe in list(_lifelines):
        pipe.close()


os.register_at_fork(after_in_child=_close_lifelines)


class ServerProcess:
    """Child process in a separate session. Ctrl-C in a terminal and a notebook's interrupt do not reach it."""

    def __init__(
        self, flags: Sequence[str], log: Path, environment: Mapping[str, str], inherited: Sequence[int]
    ) -> None:
        """Start the process. The file descriptors `inherited` stay open in it. Raises OSError."""
        self._owner = os.getpid()
        # -P: a file in the working directory, such as a notebook's click.py, must not shadow a module.
        command = [sys.executable, "-P", "-m", "tpuserve_server.startup.running_server", *flags]
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                command, bufsize=0, stdin=subprocess.PIPE, stdout=output, stderr=subprocess.STDOUT,
                start_new_session=True, pass_fds=inherited, env={**os.environ, **environment},
            )  # fmt: skip
        assert self._process.stdin is not None
        _lifelines.add(self._process.stdin)

    @property
    def pid(self) -> int:
        return self._process.pid

    def poll(self) -> int | None:
        """Return the exit status, or None while the process runs."""
        return self._process.poll()

    def wait(self, timeout_s: float) -> int:
        """Block until the process has ended, and return its exit status. Raises subprocess.TimeoutExpired."""
        return self._process.wait(timeout_s)

    def stop(self, timeout_s: float) -> int:
        """Drain for at most `timeout_s` seconds, then force the exit. Blocks and returns the exit status.

        Does nothing in a forked copy of the owner.
        """
        if os.getpid() != self._owner:
            return 0
        try:
            self._end(timeout_s)
        finally:
            self._kill()
        return self._process.wait()

    def _end(self, timeout_s: float) -> None:
        for patience_s in (timeout_s, _FORCE_TIMEOUT_S):
            if self._process.poll() is not None:
                return
            self._process.terminate()
            try:
                self._process.wait(patience_s)
            except subprocess.TimeoutExpired:
                continue

    def _kill(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        assert self._process.stdin is not None
        self._process.stdin.close()


def main() -> None:
    """Run the server. Standard input is a pipe that only the owner holds open."""
    # Only the child process needs it: it imports the host.
    from tpuserve_server.startup.command import serve

    # A daemon thread, because only the end of the process interrupts its read.
    threading.Thread(target=_end_with_owner, name="owner", daemon=True).start()
    serve(prog_name="tpuserve serve")


def _end_with_owner() -> None:
    while os.read(sys.stdin.fileno(), 1):
        pass
    logging.getLogger(__name__).warning("The process that started this server has ended. The server drains and stops")
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main()
