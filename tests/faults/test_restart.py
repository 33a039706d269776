"""Tests for the replacement of a running server under load (case 30). Clients do not retry."""

import http.client
import os
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import grpc
import pytest

from tests.faults.fault_row import FaultRow
from tests.server.hosts.grpc_calls import unary
from tests.server.hosts.host_process import PATIENCE_S, running
from tests.support.free_ports import free_ports

# Requests of each kind before and after the replacement.
SOME = 20
OWN_CONNECTION = [("grpc.use_local_subchannel_pool", 1)]
BODY = b"right"


class Load:
    """Counts of clients that call without a pause until `end`, each in a thread."""

    def __init__(self, clients: dict[str, Callable[[], "Client"]]) -> None:
        self.answered = Counter[str]()
        self.failures: list[str] = []
        self._changed = threading.Condition()
        self._ended = False
        self._threads = ThreadPoolExecutor(2 * len(clients))
        for name, connect in clients.items():
            for keep in (True, False):
                kind = f"{name}, {'kept connection' if keep else 'new connections'}"
                self.answered[kind] = 0
                self._threads.submit(self._call, kind, connect, keep=keep)

    def wait_for_some(self) -> None:
        """Wait for further answers of each kind, or for a failure."""
        with self._changed:
            before = self.answered.copy()
            self._changed.wait_for(
                lambda: self.failures or all(now >= before[kind] + SOME for kind, now in self.answered.items()),
                PATIENCE_S,
            )

    def end(self) -> None:
        """Wait for the responses of all clients."""
        self._ended = True
        self._threads.shutdown()

    def _call(self, kind: str, connect: "Callable[[], Client]", *, keep: bool) -> None:
        client = connect()
        while not self._ended:
            try:
                answer = client.call()
            except (OSError, grpc.RpcError, http.client.HTTPException) as error:
                answer = repr(error).encode()
            with self._changed:
                self.answered[kind] += 1
                if answer != BODY:
                    self.failures.append(f"{kind}: {answer!r}")
                self._changed.notify_all()
            if not keep:
                client.close()
                client = connect()
        client.close()


class Client(Protocol):
    """A connection that sends one request at a time."""

    def call(self) -> bytes: ...

    def close(self) -> None: ...


class GrpcClient:
    def __init__(self, address: str) -> None:
        self._channel = grpc.insecure_channel(address, OWN_CONNECTION)
        self._method = unary(self._channel, "Unary")

    def call(self) -> bytes:
        answer: bytes = self._method(BODY, timeout=PATIENCE_S)
        return answer

    def close(self) -> None:
        self._channel.close()


class RestClient:
    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)

    def call(self) -> bytes:
        self._connection.request("POST", "/", BODY)
        return self._connection.getresponse().read()

    def close(self) -> None:
        self._connection.close()


@contextmanager
def load(options: dict[str, Any]) -> Iterator[Load]:
    load = Load(
        {
            "gRPC": partial(GrpcClient, f"127.0.0.1:{options['grpc_port']}"),
            "UNIX": partial(GrpcClient, f"unix:{options['grpc_socket_path']}"),
            "REST": partial(RestClient, options["rest_port"]),
        }
    )
    try:
        yield load
    finally:
        load.end()


@pytest.fixture
def options(tmp_path: Path) -> dict[str, Any]:
    grpc_port, rest_port = free_ports(2)
    path = str(tmp_path / "grpc.sock")
    addresses = {"grpc_port": grpc_port, "rest_port": rest_port, "grpc_socket_path": path}
    return {**addresses, "opens_when_ready": True, "reuse_port": True}


@pytest.fixture
def service_manager() -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind("")  # Linux chooses an abstract name.
        receiver.settimeout(PATIENCE_S)
        yield receiver


@pytest.mark.timeout(120)
def test_replacement_under_load_loses_no_request(
    options: dict[str, Any],
    tmp_path: Path,
    service_manager: socket.socket,
    record: Callable[[FaultRow], None],
) -> None:
    environment = {**os.environ, "NOTIFY_SOCKET": f"@{service_manager.getsockname()[1:].decode()}"}
    with running(**options) as old, load(options) as clients:
        clients.wait_for_some()
        with running(environment, **options, replace_pid=old.process.pid) as new:
            assert service_manager.recv(100) == b"READY=1"
            assert old.exit_code() == 0
            clients.wait_for_some()
            clients.end()
            assert clients.failures == []
            new.terminate()
            assert new.exit_code() == 0
            assert service_manager.recv(100) == b"STOPPING=1"
            answered = [host.wait_for("stop")["answered"] for host in (old, new)]
            assert min(answered) >= SOME
            assert sum(answered) == clients.answered.total()
    assert list(tmp_path.iterdir()) == []
    expected = "exit 0, 0 lost"
    detail = f"{expected} of {clients.answered.total():,}"
    record(FaultRow(30, "replacement by a new server under load", "gRPC, REST (echo)", expected, detail))
