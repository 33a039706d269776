"""Tests that unfinished uploads take bounded memory on a real host: 16 MiB for a connection, 64 MiB for all."""

import contextlib
import os
import struct
from collections.abc import Callable, Iterator

import grpc
import psutil
import pytest

from tests.faults.fault_row import FaultRow
from tests.server.hosts import raw_http2
from tests.server.hosts.grpc_calls import UNLIMITED, unary
from tests.server.hosts.host_process import HostProcess, running

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


def test_unfinished_messages_of_one_connection_are_cut_and_others_are_served(
    host: HostProcess, record: Callable[[FaultRow], None]
) -> None:
    before_bytes = resident_bytes(host)
    with contextlib.closing(raw_http2.connect(host.grpc)) as client:
        for stream in range(1, 17, 2):
            # The client claims another address for each, which the server must not believe.
            head = raw_http2.grpc_call(stream, "/echo.Echo/Unary", x_forwarded_for=f"203.0.113.{stream}")
            client.sendall(head + raw_http2.data(stream, UNFINISHED))
        # Three of eight fit, beside what is on its way.
        assert len(raw_http2.ended_streams(client, 4)) == 4
        with grpc.insecure_channel(host.grpc, UNLIMITED) as channel:
            assert unary(channel, "Unary")(b"next") == b"next"
        after_bytes = resident_bytes(host)
        assert after_bytes - before_bytes < 128 * MEBIBYTE
    fault = "8 unfinished messages, 4 of 15 MiB each, one connection"
    memory_mb = (before_bytes / 1e6, after_bytes / 1e6)
    record(FaultRow(34, fault, "gRPC (echo)", "reset", "reset (4 of 8)", *memory_mb))
