"""Tests for ending a connection by the address of its client."""

import asyncio
import socket

import pytest

from tpuserve_server.hosts.client_connections import ClientConnections


@pytest.mark.parametrize("listens_on", ["127.0.0.1", "::"])
async def test_only_the_connection_of_the_client_ends(listens_on: str) -> None:
    family = socket.AF_INET6 if ":" in listens_on else socket.AF_INET
    with (
        socket.create_server((listens_on, 0), family=family, dualstack_ipv6=family == socket.AF_INET6) as listening,
        socket.create_connection(("127.0.0.1", listening.getsockname()[1])) as client,
        socket.create_connection(("127.0.0.1", listening.getsockname()[1])) as other,
        listening.accept()[0],
        listening.accept()[0] as answering,
    ):
        client.setblocking(False)
        connections = ClientConnections()
        connections.end(None)
        for _ in range(2):
            # A server for both families may name the address in either form.
            connections.end(client.getsockname())
        assert await asyncio.get_running_loop().sock_recv(client, 1) == b""
        answering.sendall(b"x")
        assert other.recv(1) == b"x"
