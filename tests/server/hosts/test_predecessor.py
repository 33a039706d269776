import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest

from tpuserve_server.core.terms.errors import InvalidArgument
from tpuserve_server.hosts.application import HostOptions
from tpuserve_server.hosts.errors import HostError
from tpuserve_server.hosts.handover import Predecessor

SERVER = """
import signal, socket, sys
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
signal.pause()
"""
SUPERVISOR = """
import subprocess, sys
subprocess.run([sys.executable, "-c", sys.argv[1]])
"""


@contextmanager
def running(*command: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Start a process that prints the port on which it, or its child process, listens."""
    process = subprocess.Popen(
        [sys.executable, "-c", *command], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout is not None
    with process, process.stdout as lines:
        try:
            yield process, int(lines.readline())
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def test_server_gets_sigterm() -> None:
    with running(SERVER) as (process, port):
        predecessor = Predecessor(process.pid, {port})
        predecessor.stop()
        assert process.wait() == -signal.SIGTERM
        predecessor.stop()  # It has ended: nothing to do.
        with pytest.raises(HostError, match=f"Cannot replace process {process.pid}: the process cannot be found"):
            Predecessor(process.pid, {port})


def test_supervisor_of_a_server_is_a_server() -> None:
    with running(SUPERVISOR, SERVER) as (process, port):
        Predecessor(process.pid, {port}).stop()
        assert process.wait() == -signal.SIGTERM


def test_process_on_another_port_is_refused() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as listener, running(SERVER) as (process, _):
        with pytest.raises(HostError, match=f"process {process.pid}: the process is not a server on the same ports"):
            Predecessor(process.pid, {listener.getsockname()[1]})
        assert process.poll() is None


def test_replacing_needs_shared_ports() -> None:
    with pytest.raises(InvalidArgument, match="replace_pid needs reuse_port"):
        HostOptions(replace_pid=1)
    assert Predecessor.of(HostOptions(reuse_port=True)) is None
