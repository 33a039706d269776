"""Tests for the tunnel behind a real Envoy: its own messages, futures, disconnects and drain."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import grpc
import httpx
import pytest

from tests.server.hosts.grpc_calls import UNLIMITED, two_way_stream, unary
from tests.server.hosts.host_process import PATIENCE_S, HostProcess

FOLDER = Path(__file__).parent
BIG = bytes(range(251)) * (32 << 10)


class TunnelledProcess(HostProcess):
    """An Envoy host whose requests all take the tunnel."""

    script: ClassVar[Path] = FOLDER / "tunnelled_echo.py"


@pytest.fixture(scope="module")
def host() -> Iterator[TunnelledProcess]:
    paths = (str(FOLDER), str(FOLDER.parents[2]))
    host = TunnelledProcess.started_in({**os.environ, "PYTHONPATH": os.pathsep.join(paths)}, "envoy")
    try:
        yield host
    finally:
        host.close()


def test_calls_streams_and_disconnects_pass_and_a_drain_ends_a_stream(host: TunnelledProcess) -> None:
    with grpc.insecure_channel(host.grpc, UNLIMITED) as channel:
        assert unary(channel, "Unary")(BIG) == BIG
        assert [*two_way_stream(channel, "Each")(iter([b"a", b"b"]))] == [b"a", b"b"]
        with pytest.raises(grpc.RpcError, match="counted"):
            list(two_way_stream(channel, "Count")(iter([b"2"])))
        assert httpx.post(f"{host.rest}/any", content=BIG, timeout=PATIENCE_S).content == BIG

        held = unary(channel, "Held").future(b"")
        host.wait_for("held")
        held.cancel()
        host.wait_for("cancelled")

        watching = two_way_stream(channel, "Watch")(iter([b""]))
        assert next(watching) == b"watching"
        host.terminate()
        with pytest.raises(grpc.RpcError) as raised:
            next(watching)
        assert (raised.value.code(), raised.value.details()) == (
            grpc.StatusCode.UNAVAILABLE,
            "The server is shutting down",
        )
    assert host.exit_code() == 0
