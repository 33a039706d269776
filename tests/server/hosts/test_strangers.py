"""Tests that a client that misbehaves harms no other client: real servers, raw sockets.

Each test keeps the connections of a good client open meanwhile, and uses them again at the end.
"""

import contextlib
import http.client
import itertools
import select
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import grpc
import psutil
import pytest

from tests.server.hosts import raw_http2
from tests.server.hosts.grpc_calls import UNLIMITED, server_stream, two_way_stream, unary
from tests.server.hosts.host_process import PATIENCE_S, HostProcess, running
from tpuserve_server.hosts.limits import MAX_HEADER_BYTES, MAX_HEADERS_COUNT, MAX_STREAMS_PER_CONNECTION

MEBIBYTE = 1 << 20
HEADER_TIMEOUT_S = 5
GET = b"GET /hello HTTP/1.1\r\nhost: x\r\n\r\n"


@pytest.fixture(scope="module")
def host() -> Iterator[HostProcess]:
    with running(header_timeout_s=HEADER_TIMEOUT_S) as host:
        yield host


class GoodClient:
    """A client of both protocols with one connection each, and a stream that stays open."""

    def __init__(self, host: HostProcess) -> None:
        self._channel = grpc.insecure_channel(host.grpc, [*UNLIMITED, ("grpc.use_local_subchannel_pool", 1)])
        self._more = threading.Semaphore(0)
        self._stream = two_way_stream(self._channel, "Each")(self._messages())
        self._rest = http.client.HTTPConnection(host.listening["rest"], timeout=PATIENCE_S)
        self._connect()

    def _connect(self) -> None:
        self._rest.close()
        self._rest.connect()
        self._local = self._rest.sock.getsockname()
        self._called_s = time.monotonic()

    def _messages(self) -> Iterator[bytes]:
        for number in itertools.count():
            self._more.acquire()
            yield b"%d" % number

    def call(self) -> None:
        """Assert that a call and a request get the right answers on the same connections as before."""
        assert unary(self._channel, "Unary")(b"next", timeout=PATIENCE_S) == b"next"
        if time.monotonic() - self._called_s > HEADER_TIMEOUT_S / 2:
            # The server closes idle connections.
            self._connect()
        self._rest.request("POST", "/echo", b"next")
        assert self._rest.getresponse().read() == b"next"
        assert self._rest.sock.getsockname() == self._local
        self._called_s = time.monotonic()

    def stream(self, number: int) -> None:
        """Assert that the stream, which began first, echoes message `number`."""
        self._more.release()
        assert next(self._stream) == b"%d" % number

    def close(self) -> None:
        self._stream.cancel()
        self._more.release()
        self._channel.close()
        self._rest.close()


@pytest.fixture
def good(host: HostProcess) -> Iterator[GoodClient]:
    """Yield a client that calls before and after the test."""
    with contextlib.closing(GoodClient(host)) as client:
        client.call()
        client.stream(0)
        yield client
        client.call()
        client.stream(1)


def connect(host: HostProcess, protocol: str = "rest") -> socket.socket:
    address, port = host.listening[protocol].rsplit(":", 1)
    return socket.create_connection((address, int(port)), timeout=PATIENCE_S)


def read_all(client: socket.socket) -> bytes:
    """Read until the server closes the connection."""
    received = b""
    with contextlib.suppress(ConnectionResetError):
        while piece := client.recv(MEBIBYTE):
            received += piece
    return received


def statuses(client: socket.socket) -> list[bytes]:
    """Return the statuses of all responses until the server closes the connection."""
    return [head[:3] for head in read_all(client).split(b"HTTP/1.1 ")[1:]]


def send(client: socket.socket, data: bytes) -> None:
    """Send until the server closes the connection."""
    with contextlib.suppress(ConnectionError):
        client.sendall(data)


def read_frames(client: socket.socket, seen: list[int]) -> None:
    with contextlib.suppress(OSError):
        seen.extend(kind for kind, _ in raw_http2.frames(client))


def test_a_rapid_reset_cancels_no_call_of_others(host: HostProcess, good: GoodClient) -> None:
    client = raw_http2.connect(host.grpc)
    reader = threading.Thread(target=read_frames, args=(client, []))
    reader.start()

    def attack() -> None:
        for first in range(1, 20_000, 200):
            calls = (
                raw_http2.grpc_call(at, "/echo.Echo/Unary") + raw_http2.reset(at) for at in range(first, first + 200, 2)
            )
            send(client, b"".join(calls))

    attacker = threading.Thread(target=attack)
    attacker.start()
    while attacker.is_alive():
        good.call()
    client.shutdown(socket.SHUT_RDWR)
    reader.join()
    client.close()


def test_calls_over_the_limit_of_a_connection_are_refused(host: HostProcess, good: GoodClient) -> None:
    more = 100
    with contextlib.closing(raw_http2.connect(host.grpc)) as client:
        streams = range(1, 2 * (MAX_STREAMS_PER_CONNECTION + more), 2)
        client.sendall(b"".join(raw_http2.grpc_call(stream, "/echo.Echo/Each") for stream in streams))
        assert raw_http2.ended_streams(client, more) <= set(streams)
        good.call()


def test_metadata_below_the_limit_is_accepted(host: HostProcess) -> None:
    with grpc.insecure_channel(host.grpc) as channel:
        metadata = [("x-long", "x" * (MAX_HEADER_BYTES - 2000))]
        assert unary(channel, "Unary")(b"x", metadata=metadata) == b"x"


def test_connections_without_a_request_are_closed(host: HostProcess, good: GoodClient) -> None:
    with connect(host, "grpc") as silent, connect(host, "grpc") as half:
        half.sendall(b"PRI * HTTP/2.0\r\n")
        poll = select.poll()
        waiting = {client.fileno(): client for client in (silent, half)}
        for number in waiting:
            poll.register(number, select.POLLIN)
        while waiting:
            good.call()
            for number, _ in poll.poll(100):
                assert read_all(waiting.pop(number)) == b""
                poll.unregister(number)


@pytest.mark.parametrize(
    "headers",
    [
        pytest.param(b"long: " + b"x" * 100_000 + b"\r\n", id="long"),
        pytest.param(b"a: b\r\n" * (MAX_HEADERS_COUNT + 1), id="many"),
        pytest.param(b"a: " + b"x" * 100 * MEBIBYTE, id="endless"),
    ],
)
def test_headers_over_a_limit_are_431(host: HostProcess, good: GoodClient, headers: bytes) -> None:
    with connect(host) as client:
        # The response to the complete request before comes first.
        sender = threading.Thread(target=send, args=(client, GET[:-2] + b"\r\n" + GET[:-2] + headers + b"\r\n"))
        sender.start()
        assert statuses(client) == [b"200", b"431"]
        sender.join()


@pytest.mark.parametrize("trailers", [b"a: " + b"x" * 10 * MEBIBYTE, b"a: b\r\n" * 100_000])
def test_trailers_without_end_end_the_connection(host: HostProcess, good: GoodClient, trailers: bytes) -> None:
    with connect(host) as client:
        request = b"POST /echo HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n"
        sender = threading.Thread(target=send, args=(client, request + trailers))
        sender.start()
        assert statuses(client) in ([], [b"431"])
        sender.join()


def test_many_pipelined_requests_are_answered_in_bounded_memory(host: HostProcess, good: GoodClient) -> None:
    process = psutil.Process(host.process.pid)
    before_bytes = process.memory_info().rss
    with connect(host) as client:
        # Like many simple clients, this one reads only after its last request.
        client.sendall(GET * 20_000)
        good.call()
        client.sendall(GET.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n"))
        assert statuses(client) == [b"200"] * 20_001
    assert process.memory_info().rss - before_bytes < 32 * MEBIBYTE


def test_a_malformed_request_ends_the_connection_after_earlier_responses(host: HostProcess, good: GoodClient) -> None:
    with connect(host) as client:
        client.sendall(GET * 3 + b"no request\r\n\r\n" + GET)
        assert statuses(client) == [b"200"] * 3


def test_clients_that_leave_are_not_in_the_log() -> None:
    with running() as host:
        calls: list[Any] = []
        with grpc.insecure_channel(host.grpc, UNLIMITED) as channel:
            for _ in range(5):
                calls += [unary(channel, "Held").future(b""), server_stream(channel, "Count")(b"100000")]
                calls += [unary(channel, "Size").future(b"%d" % (4 * MEBIBYTE)), server_stream(channel, "Watch")(b"")]
                assert next(calls[-3]) == b"0"
                host.wait_for("held")
            for call in calls:
                call.cancel()
            assert unary(channel, "Unary")(b"next") == b"next"
        with connect(host) as client:
            client.sendall(b"GET /held HTTP/1.1\r\nhost: x\r\n\r\n")
            host.wait_for("held")
        with connect(host) as client:
            client.sendall(b"POST /echo HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\nhalf")
        host.wait_for("http.disconnect")
        host.terminate()
        assert host.exit_code() == 0
        assert [line for line in host.errors if "Traceback" in line or "Error" in line] == []
