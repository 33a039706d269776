import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from tests.support.free_ports import free_ports
from tpuserve_server.core.terms.errors import InvalidArgument
from tpuserve_server.hosts import handover
from tpuserve_server.hosts.application import HostError, HostOptions, Listening
from tpuserve_server.hosts.handover import Handover, Predecessor

SHARED = HostOptions(reuse_port=True)


@pytest.fixture(autouse=True)
def _brief(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handover, "CONNECT_S", 0.0)
    monkeypatch.setattr(handover, "QUEUE_TIMEOUT_S", 0.1)


@pytest.fixture
def listening() -> Listening:
    return Listening(rest=f"127.0.0.1:{free_ports(1)[0]}")


def listen(listening: Listening) -> socket.socket:
    assert listening.rest is not None
    return socket.create_server(("127.0.0.1", int(listening.rest.rpartition(":")[2])), reuse_port=True)


async def test_server_without_a_successor_leaves_nothing(listening: Listening) -> None:
    with closing(listen(listening)):
        alone = Handover(SHARED)
        alone.begin(listening)
        assert not await alone.end()


async def test_server_that_shares_no_port_asks_for_no_socket(listening: Listening) -> None:
    alone = Handover(HostOptions())
    alone.begin(listening)
    assert not await alone.end()


async def test_server_with_a_successor_waits_until_its_queue_is_empty(
    listening: Listening, caplog: pytest.LogCaptureFixture
) -> None:
    with closing(listen(listening)) as old, socket.create_connection(old.getsockname()):
        leaving = Handover(SHARED)
        leaving.begin(listening)
        with closing(listen(listening)):
            assert await leaving.end()
            assert "Connections still wait to be accepted" in caplog.text
            caplog.clear()
            old.accept()[0].close()
            assert await leaving.end()
            assert caplog.text == ""


async def test_server_whose_path_was_taken_over_has_a_successor(tmp_path: Path) -> None:
    path = tmp_path / "grpc.sock"
    path.touch()
    leaving = Handover(HostOptions())
    leaving.begin(Listening(grpc_socket=f"unix:{path}"))
    assert not await leaving.end()
    (tmp_path / "new").touch()
    os.rename(tmp_path / "new", path)
    assert await leaving.end()
    path.unlink()
    assert not await leaving.end()
    leaving.begin(Listening(grpc_socket=f"unix:{path}"))


async def test_system_that_cannot_direct_connections_is_reported(
    listening: Listening, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        unable = Handover(SHARED)
        unable.begin(listening)  # Nothing listens.
    assert f"Cannot direct new connections to {listening.rest} to this server" in caplog.text
    assert not await unable.end()


async def test_port_that_cannot_be_left_counts_as_left(listening: Listening, caplog: pytest.LogCaptureFixture) -> None:
    with closing(listen(listening)):
        leaving = Handover(SHARED)
        leaving.begin(listening)
    assert await leaving.end()
    assert "Cannot direct new connections to the other server" in caplog.text


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
