"""Tests for the opening of addresses, and for owners of a UNIX socket's path, on both hosts."""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import psutil
import pytest

from tests.server.hosts.grpc_calls import unary
from tests.server.hosts.host_process import PATIENCE_S, HostProcess, running
from tests.support.free_ports import free_ports


class Waiting:
    """A host whose application becomes ready on a test's request."""

    def __init__(self, folder: Path) -> None:
        fifo = folder / "ready"
        os.mkfifo(fifo)
        self._fifo = os.open(fifo, os.O_RDWR)
        self.port, rest_port = free_ports(2)
        self.socket = folder / "grpc.sock"
        options = {
            "bind_address": "127.0.0.1",
            "grpc_port": self.port,
            "rest_port": rest_port,
            "grpc_socket_path": str(self.socket),
            "opens_when_ready": True,
        }
        self.host = HostProcess(options, {**os.environ, "ECHO_BECOMES_READY": str(fifo)})
        self.host.wait_for("waits")

    def tell(self, outcome: str) -> None:
        os.write(self._fifo, outcome.encode())

    def close(self) -> None:
        os.close(self._fifo)
        self.host.close()

    def is_open(self) -> bool:
        """Return whether any of its addresses accepts connections."""
        with socket.socket(socket.AF_INET) as probe, socket.socket(socket.AF_UNIX) as unix_probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0 or unix_probe.connect_ex(str(self.socket)) == 0


@contextmanager
def waiting(folder: Path) -> Iterator[Waiting]:
    waiting = Waiting(folder)
    family = psutil.Process(waiting.host.process.pid).children(recursive=True)
    try:
        yield waiting
    finally:
        waiting.close()
        assert psutil.wait_procs(family, PATIENCE_S)[1] == []


def test_addresses_open_once_the_application_is_ready(tmp_path: Path) -> None:
    with waiting(tmp_path) as late:
        assert not late.is_open()
        late.tell("ready")
        late.host.wait_for("ready")
        late.host.listening = late.host.wait_for("announce")
        assert late.is_open()
        assert late.host.listening["grpc_socket"] == f"unix:{late.socket}"
        for address in (late.host.grpc, f"unix:{late.socket}"):
            with grpc.insecure_channel(address) as channel:
                assert unary(channel, "Unary")(b"x", timeout=PATIENCE_S) == b"x"
        late.host.terminate()
        assert late.host.exit_code() == 0
        assert not late.socket.exists()


def test_sigterm_before_it_is_ready_stops_the_application_in_order(tmp_path: Path) -> None:
    with waiting(tmp_path) as late:
        late.host.terminate()
        late.host.wait_for("stop")
        assert late.host.exit_code() == 0


def test_an_application_that_will_never_be_ready_ends_the_host(tmp_path: Path) -> None:
    with waiting(tmp_path) as late:
        late.tell("doom")
        late.host.wait_for("stop")
        assert late.host.exit_code() == 1
        assert late.host.errors[-1] == "tpuserve: There will never be an echo.\n"
        assert not [line for line in late.host.errors if "CRITICAL" in line]


def test_killed_supervisor_leaves_no_process_that_waits(tmp_path: Path) -> None:
    with waiting(tmp_path) as late:
        late.host.process.kill()
        late.host.wait_for("stop")


def test_the_socket_of_another_server_is_taken_over_and_stays_when_that_one_stops(tmp_path: Path) -> None:
    path = tmp_path / "grpc.sock"
    with running(grpc_socket_path=str(path)) as first:
        before = path.stat().st_ino
        with running(grpc_socket_path=str(path), opens_when_ready=True) as second:
            assert path.stat().st_ino != before
            first.terminate()
            assert first.exit_code() == 0
            with grpc.insecure_channel(f"unix:{path}") as channel:
                assert unary(channel, "Unary")(b"x", timeout=PATIENCE_S) == b"x"
            second.terminate()
            assert second.exit_code() == 0
    assert list(tmp_path.iterdir()) == []


def test_a_socket_in_use_is_refused_by_a_server_that_opens_at_once(tmp_path: Path) -> None:
    path = tmp_path / "grpc.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        host = HostProcess({"grpc_port": None, "rest_port": None, "grpc_socket_path": str(path)})
        assert host.exit_code() == 1
        assert listener.getsockname() == str(path)
        assert path.is_socket()
    assert host.errors[-1].startswith(f"tpuserve: Cannot listen for gRPC on unix:{path}: another server listens on it")


@pytest.mark.parametrize("opens_when_ready", [False, True])
def test_a_file_that_is_no_socket_is_left_alone(tmp_path: Path, opens_when_ready: bool) -> None:
    path = tmp_path / "grpc.sock"
    path.write_text("mine")
    options = {"grpc_port": None, "rest_port": None, "grpc_socket_path": str(path)}
    host = HostProcess({**options, "opens_when_ready": opens_when_ready})
    assert host.exit_code() == 1
    assert "the path is a file that is not a socket" in host.errors[-1]
    assert path.read_text() == "mine"
