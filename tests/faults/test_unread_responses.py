"""Tests for clients that do not read their responses, on a real host (case 46): 2 s without a byte, 64 MiB for all.

A slow client that reads gets all of a response.
"""

import contextlib
import os
import socket
import struct
import time
from collections.abc import Callable, Iterator

import grpc
import httpx
import psutil
import pytest

from tests.faults.fault_row import FaultRow
from tests.server.hosts import raw_http2
from tests.server.hosts.grpc_calls import UNLIMITED, unary
from tests.server.hosts.host_process import PATIENCE_S, HostProcess, running

MEBIBYTE = 1 << 20
TIMEOUT_S = 2
BUDGET_BYTES = 64 * MEBIBYTE
# The encoded response of a call and its message, and memory that allocators keep.
BOUND_BYTES = 3 * BUDGET_BYTES + 128 * MEBIBYTE
RESPONSE_BYTES = 8 * MEBIBYTE
STEP_BYTES = 1 << 16
PAUSE_S = 0.05


@pytest.fixture(scope="module")
def host() -> Iterator[HostProcess]:
    budget = {"ECHO_SENDING_BYTES": str(BUDGET_BYTES), "ECHO_WRITE_TIMEOUT_S": str(TIMEOUT_S)}
    with running({**os.environ, **budget}, write_timeout_s=TIMEOUT_S) as host:
        yield host


class Unread:
    """One fault: what the server's memory becomes, and its row in the table."""

    def __init__(self, host: HostProcess, record: Callable[[FaultRow], None]) -> None:
        self._host = host
        self._record = record
        self._before_bytes = self.resident_bytes()

    def resident_bytes(self) -> int:
        process = psutil.Process(self._host.serving_pid())
        return int(process.memory_info().rss)

    def check(self, fault: str, protocol: str, got: str) -> None:
        """Check that the memory is bounded and other clients are answered, and record the row."""
        with grpc.insecure_channel(self._host.grpc, UNLIMITED) as channel:
            assert unary(channel, "Unary")(b"next", timeout=PATIENCE_S) == b"next"
        assert httpx.get(f"{self._host.rest}/ready", timeout=PATIENCE_S).status_code == 200
        after_bytes = self.resident_bytes()
        assert after_bytes - self._before_bytes < BOUND_BYTES
        memory_mb = (self._before_bytes / 1e6, after_bytes / 1e6)
        self._record(FaultRow(46, fault, protocol, got, got, *memory_mb))


@pytest.fixture
def unread(host: HostProcess, record: Callable[[FaultRow], None]) -> Unread:
    return Unread(host, record)


def call(stream: int, size_bytes: int) -> bytes:
    """Return a call whose response has this size."""
    message = str(size_bytes).encode()
    head = raw_http2.grpc_call(stream, "/echo.Echo/Size")
    return (
        head
        + raw_http2.data(stream, struct.pack(">BI", 0, len(message)) + message)
        + raw_http2.empty_data(stream, end=True)
    )


def test_many_calls_with_a_window_of_0_are_refused_and_cut(host: HostProcess, unread: Unread) -> None:
    with contextlib.closing(raw_http2.connect(host.grpc, 0)) as client:
        streams = range(1, 161, 2)
        for stream in streams:
            client.sendall(call(stream, RESPONSE_BYTES // 4))
        assert raw_http2.finished_streams(client, len(streams)) == {*streams}
        unread.check("80 responses of 2 MiB, window 0", "gRPC (echo)", "refused or reset")


def test_call_with_a_window_of_0_is_cut_after_a_timeout(host: HostProcess, unread: Unread) -> None:
    with contextlib.closing(raw_http2.connect(host.grpc, 0)) as client:
        client.sendall(call(1, 100_000))
        assert raw_http2.ended_streams(client, 1) == {1}
        unread.check("a response, window 0", "gRPC (echo)", "reset")


def test_responses_to_full_sockets_are_cut_after_a_timeout(host: HostProcess, unread: Unread) -> None:
    address = host.rest.removeprefix("http://").rpartition(":")
    server = psutil.Process(host.serving_pid())
    with contextlib.ExitStack() as stack:
        ports = set()
        for _ in range(6):
            client = stack.enter_context(socket.create_connection((address[0], int(address[2])), PATIENCE_S))
            head = f"POST /x HTTP/1.1\r\nhost: x\r\ncontent-length: {RESPONSE_BYTES}\r\n\r\n".encode()
            client.sendall(head + bytes(RESPONSE_BYTES))
            ports.add(client.getsockname()[1])
        deadline_s = time.monotonic() + PATIENCE_S
        while ports & {each.raddr[1] for each in server.net_connections("tcp") if each.status != psutil.CONN_LISTEN}:
            assert time.monotonic() < deadline_s
            time.sleep(0.1)
        unread.check("6 responses of 8 MiB, full sockets", "REST (echo)", "connection closed")


def test_slow_client_that_reads_gets_all_of_a_call(host: HostProcess, unread: Unread) -> None:
    with contextlib.closing(raw_http2.connect(host.grpc, 0)) as client:
        client.sendall(call(1, RESPONSE_BYTES // 2))
        received = 0
        client.sendall(raw_http2.widen(1, STEP_BYTES))
        granted = STEP_BYTES
        for piece in raw_http2.read_data(client, 1):
            received += len(piece)
            if received == granted:
                time.sleep(PAUSE_S)
                client.sendall(raw_http2.widen(1, STEP_BYTES))
                granted += STEP_BYTES
        assert received == RESPONSE_BYTES // 2 + 5
        unread.check("a response of 4 MiB, read in 3 s", "gRPC (echo)", "OK")


def test_slow_client_that_reads_gets_all_of_a_rest_response(host: HostProcess, unread: Unread) -> None:
    address = host.rest.removeprefix("http://").rpartition(":")
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, STEP_BYTES)
        client.settimeout(PATIENCE_S)
        client.connect((address[0], int(address[2])))
        head = f"POST /x HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {RESPONSE_BYTES}\r\n\r\n".encode()
        client.sendall(head + bytes(RESPONSE_BYTES))
        received = 0
        while piece := client.recv(2 * STEP_BYTES):
            received += len(piece)
            time.sleep(PAUSE_S)
        assert received > RESPONSE_BYTES
        unread.check("a response of 8 MiB, read in 4 s", "REST (echo)", "OK")
