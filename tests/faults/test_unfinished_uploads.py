"""Tests that unfinished uploads take bounded memory on a real host: 16 MiB for a connection, 64 MiB for all."""

import os
import socket
import struct
from collections.abc import Callable, Iterable, Iterator

import grpc
import psutil
import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import StreamEnded, StreamReset

from tests.faults.fault_row import FaultRow
from tests.server.hosts.grpc_calls import UNLIMITED, unary
from tests.server.hosts.host_process import PATIENCE_S, HostProcess, running

MEBIBYTE = 1 << 20
HELD_BYTES = 4 * MEBIBYTE
# A message of which only a part ever arrives.
UNFINISHED = struct.pack(">BI", 0, 15 * MEBIBYTE) + bytes(HELD_BYTES)


@pytest.fixture(scope="module")
def host() -> Iterator[HostProcess]:
    environment = {**os.environ, "ECHO_RECEIVING_BYTES": str(16 * MEBIBYTE)}
    with running(environment, max_message_bytes=16 * MEBIBYTE) as host:
        yield host


def resident_bytes(host: HostProcess) -> int:
    family = psutil.Process(host.process.pid).children(recursive=True)
    return sum(process.memory_info().rss for process in family)


def upload_until_ended(client: socket.socket, streams: Iterable[int], wanted: int) -> None:
    """Upload on all streams as the server's windows allow, until the server has ended `wanted` of them."""
    connection = H2Connection(H2Configuration(header_encoding="utf-8"))
    connection.initiate_connection()
    left = dict.fromkeys(streams, UNFINISHED)
    for stream in left:
        # The client claims another address for each, which the server must not believe.
        own = {"x-forwarded-for": f"203.0.113.{stream}", "te": "trailers", "content-type": "application/grpc"}
        head = {":method": "POST", ":scheme": "http", ":path": "/echo.Echo/Unary", ":authority": "localhost", **own}
        connection.send_headers(stream, [*head.items()])
    while wanted > 0:
        for stream, rest in left.items():
            while size := min(
                len(rest), connection.local_flow_control_window(stream), connection.max_outbound_frame_size
            ):
                connection.send_data(stream, rest[:size])
                left[stream] = rest = rest[size:]
        client.sendall(connection.data_to_send())
        for event in connection.receive_data(client.recv(1 << 16)):
            if isinstance(event, StreamEnded | StreamReset) and left.pop(event.stream_id, None) is not None:
                wanted -= 1


def test_unfinished_messages_of_one_connection_are_cut_and_others_are_served(
    host: HostProcess, record: Callable[[FaultRow], None]
) -> None:
    before_bytes = resident_bytes(host)
    address, _, port = host.grpc.rpartition(":")
    with socket.create_connection((address, int(port)), timeout=PATIENCE_S) as client:
        # Three of eight fit, in addition to the bytes in flight.
        upload_until_ended(client, range(1, 17, 2), 4)
        with grpc.insecure_channel(host.grpc, UNLIMITED) as channel:
            assert unary(channel, "Unary")(b"next") == b"next"
        after_bytes = resident_bytes(host)
        assert after_bytes - before_bytes < 128 * MEBIBYTE
    fault = "8 unfinished messages, 4 of 15 MiB each, one connection"
    memory_mb = (before_bytes / 1e6, after_bytes / 1e6)
    record(FaultRow(34, fault, "gRPC (echo)", "reset", "reset (4 of 8)", *memory_mb))
