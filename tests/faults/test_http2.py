"""Tests for floods of HTTP/2 frames, unfinished uploads and deadlines that pass at once (cases 19, 34 and 49)."""

import contextlib
import itertools
import socket
import struct
from collections.abc import Callable

import numpy as np
import pytest

from tests.faults.faulted_server import OIP_REST, PATHS, TF_GRPC, TF_REST, Faults, good_body
from tests.faults.proto_requests import predict_body
from tests.faults.raw_http1 import connected, post, send, statuses
from tests.server.hosts import raw_http2

MEBIBYTE = 1 << 20
# The budgets of the shared server, and the room of its buffers.
ALL_MB = 256 * MEBIBYTE / 1e6
BUFFERS_MB = 128.0
# The calls that one connection may have at once take about 20 KB each, and allocators keep some of it.
FLOOD_MB = 64.0
FAULT = "30 unfinished bodies, 20 of 60 MiB each"
OPEN, ENDED, GOAWAY = "served", "connection closed", "GOAWAY"


def reset_rapidly(client: socket.socket) -> None:
    for stream in range(1, 40_000, 2):
        client.sendall(raw_http2.grpc_call(stream, PATHS[TF_GRPC]) + raw_http2.reset(stream))


def flood_streams(client: socket.socket) -> None:
    for stream in range(1, 10_000, 2):
        client.sendall(raw_http2.grpc_call(stream, PATHS[TF_GRPC]))


def flood_empty_data(client: socket.socket) -> None:
    client.sendall(raw_http2.grpc_call(1, PATHS[TF_GRPC]) + raw_http2.empty_data(1) * 50_000)


FLOODS: dict[str, Callable[[socket.socket], None]] = {
    "20,000 streams reset at once": reset_rapidly,
    "5,000 open streams": flood_streams,
    "50,000 empty data frames": flood_empty_data,
}


@pytest.mark.parametrize("name", FLOODS)
def test_flood_ends_at_most_its_own_connection(faults: Faults, name: str) -> None:
    with faults.fault(19, name, TF_GRPC, OPEN, ENDED, GOAWAY, memory_mb=FLOOD_MB, beside=True) as attempt:
        attempt.got = OPEN
        with contextlib.closing(raw_http2.connect(faults.server.grpc)) as client:
            try:
                FLOODS[name](client)
                faults.server.check()
                client.shutdown(socket.SHUT_WR)
                if raw_http2.is_told_to_go_away(client):
                    attempt.got = GOAWAY
            except OSError:
                attempt.got = ENDED


# The resets that the HTTP server allows on a connection in 10 s: docs/reference/limits.md.
ROUNDS, CALLS = 4, 50


def test_deadlines_that_pass_at_once_end_no_other_call(faults: Faults) -> None:
    name = f"{ROUNDS * CALLS} deadlines of 2 ms on a shared connection"
    body = struct.pack(">BI", 0, len(good_body(TF_GRPC))) + good_body(TF_GRPC)
    slow = predict_body(model="slow", steps=np.array([10_000], np.int64))
    slow = struct.pack(">BI", 0, len(slow)) + slow
    streams = itertools.count(1, 2)
    with faults.fault(49, name, TF_GRPC, f"{ROUNDS} others served") as attempt:
        served = 0
        with contextlib.closing(raw_http2.connect(faults.server.grpc)) as client:
            for _ in range(ROUNDS):
                late = [next(streams) for _ in range(CALLS)]
                other = next(streams)
                client.sendall(b"".join(raw_http2.unary_call(each, PATHS[TF_GRPC], slow, "2m") for each in late))
                client.sendall(raw_http2.unary_call(other, PATHS[TF_GRPC], body, "60S"))
                # The client's deadline, before the server's: each stream has still to be answered.
                client.sendall(b"".join(map(raw_http2.reset, late)))
                # The server has then ended the late calls, too.
                raw_http2.wait_for_data(client, other)
                served += 1
        attempt.got = f"{served} others served"


@pytest.mark.parametrize("protocol", [TF_REST, OIP_REST])
def test_unfinished_bodies_of_many_connections_are_bounded(faults: Faults, protocol: str) -> None:
    size = 60 * MEBIBYTE
    most = good_body(protocol)[:1] + b" " * (20 * MEBIBYTE)
    with (
        faults.fault(34, FAULT, protocol, "429", memory_mb=BUFFERS_MB, beside=True) as attempt,
        contextlib.ExitStack() as stack,
    ):
        before_mb = faults.server.memory_mb()
        clients = []
        for _ in range(30):
            clients.append(stack.enter_context(connected(faults.server)))
            send(clients[-1], [post(PATHS[protocol], content_length=str(size)), most])
        # The server ended those that did not fit. The last one fitted.
        more_mb = faults.server.memory_mb() - before_mb
        for client in clients:
            client.settimeout(0.05)
        found = [response for client in clients if (response := _response_so_far(client))]
        attempt.got = " ".join(sorted(set(map(statuses, found))))
        attempt.detail = f"{len(found)} of 30 refused, {more_mb:+.0f} MB meanwhile"
        assert more_mb < 1.5 * ALL_MB + BUFFERS_MB


def _response_so_far(client: socket.socket) -> bytes:
    """Return the response of the server, or nothing if it still waits for the body."""
    try:
        return client.recv(1 << 16)
    except TimeoutError:
        return b""
    except ConnectionError:
        return b"HTTP/1.1 429 "
