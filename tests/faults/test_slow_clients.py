"""Tests for clients that send a part of a request, and then wait (case 14)."""

import concurrent.futures
import contextlib
import itertools
import socket
import struct
import time
from collections.abc import Iterator

import pytest

from tests.faults.faulted_server import (
    OIP_GRPC,
    OIP_REST,
    PATHS,
    PATIENCE_S,
    TF_GRPC,
    TF_REST,
    VERTEX,
    FaultedServer,
    Faults,
    good_body,
)
from tests.faults.raw_http1 import CLOSED, connected, post, received, send, statuses
from tests.server.hosts import raw_http2

REST = (TF_REST, OIP_REST, VERTEX)
# The pause of one piece is shorter than each timeout.
PAUSE_S = 0.05
CALL_ENDED = "call ended"


def pieces_until_cut(client: socket.socket, pieces: Iterator[bytes]) -> bytes:
    """Send a piece after each pause until the server answers or closes, and return everything that it sent."""
    deadline = time.monotonic() + PATIENCE_S
    client.settimeout(PAUSE_S)
    while time.monotonic() < deadline:
        send(client, [next(pieces)])
        with contextlib.suppress(TimeoutError, ConnectionError):
            first = client.recv(1 << 16)
            client.settimeout(PATIENCE_S)
            return first + (received(client) if first else b"")
    raise TimeoutError("the server did not cut the client")


@pytest.mark.parametrize("protocol", REST)
def test_headers_that_never_go_on_are_cut(faults: Faults, protocol: str) -> None:
    head = f"POST {PATHS[protocol]} HTTP/1.1\r\nhost: x\r\n".encode()
    fault = "half of the headers, then silence"
    with (
        faults.fault(14, fault, protocol, CLOSED, beside=True, pause_s=0.05) as attempt,
        connected(faults.server) as client,
    ):
        attempt.got = statuses(pieces_until_cut(client, itertools.chain([head], itertools.repeat(b""))))


HALF_BODIES = {
    **dict.fromkeys(REST, ("504",)),
    TF_GRPC: (CALL_ENDED,),
    OIP_GRPC: (CALL_ENDED,),
}


@pytest.fixture(scope="module", autouse=True)
def halves(faulted: FaultedServer) -> Iterator[dict[str, concurrent.futures.Future[str]]]:
    """Leave bodies of every protocol unfinished during the other tests, because each takes the server's 30 s.

    Yields the result of each.
    """
    with concurrent.futures.ThreadPoolExecutor(len(HALF_BODIES)) as pool:
        yield {protocol: pool.submit(leave_half, faulted, protocol) for protocol in HALF_BODIES}


def leave_half(server: FaultedServer, protocol: str) -> str:
    body = good_body(protocol)
    half = body[: len(body) // 2]
    if protocol in REST:
        with connected(server) as client:
            send(client, [post(PATHS[protocol], content_length=str(len(body))), half])
            return statuses(received(client))
    with contextlib.closing(raw_http2.connect(server.grpc)) as client:
        message = struct.pack(">BI", 0, len(body)) + half
        client.sendall(raw_http2.grpc_call(1, PATHS[protocol]) + raw_http2.data(1, message))
        raw_http2.wait_for_headers(client, 1)
    return CALL_ENDED


# Last, because the bodies are left for 30 s.
def test_bodies_that_never_end_are_cut(faults: Faults, halves: dict[str, concurrent.futures.Future[str]]) -> None:
    with contextlib.ExitStack() as stack:
        attempts = {
            protocol: stack.enter_context(faults.fault(14, "half of a body", protocol, *HALF_BODIES[protocol]))
            for protocol in halves
        }
        for protocol, attempt in attempts.items():
            attempt.got = halves[protocol].result()
