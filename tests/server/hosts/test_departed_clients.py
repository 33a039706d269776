"""Tests for departed clients, with real connections whose requests wait."""

import asyncio
import contextlib
import socket
import struct
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from tpuserve_server.hosts import departed_clients
from tpuserve_server.hosts.departed_clients import DepartedClients

if TYPE_CHECKING:
    from starlette.types import Message

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux shows connections to their owner")


class Connections:
    """A listening socket, and connections that it has accepted."""

    def __init__(self, stack: contextlib.ExitStack, family: socket.AddressFamily, host: str) -> None:
        self._stack = stack
        self.listener = stack.enter_context(socket.create_server((host, 0), family=family))

    def accepted(self) -> tuple[socket.socket, dict[str, Any]]:
        """Return the client's socket of a new connection, and the scope of a request on it."""
        address = self.listener.getsockname()[:2]
        client = self._stack.enter_context(socket.create_connection(address))
        accepted = self._stack.enter_context(self.listener.accept()[0])
        return client, {"client": client.getsockname()[:2], "server": accepted.getsockname()[:2]}


@pytest.fixture
def connections() -> Iterator[Connections]:
    with contextlib.ExitStack() as stack:
        yield Connections(stack, socket.AF_INET, "127.0.0.1")


async def whole_body() -> dict[str, Any]:
    return {"type": "http.request", "body": b"", "more_body": False}


async def waiting(clients: DepartedClients, scope: dict[str, Any]) -> "asyncio.Future[Message]":
    """Return the pending `receive` of a request whose body has been read."""
    receive = clients.receive(scope, whole_body)
    assert (await receive())["type"] == "http.request"
    pending = asyncio.ensure_future(receive())
    await asyncio.sleep(0)
    return pending


def reset(client: socket.socket) -> None:
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()


@pytest.mark.parametrize("leave", [socket.socket.close, reset], ids=["close", "reset"])
@pytest.mark.parametrize(
    ("family", "host"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")], ids=["IPv4", "IPv6"]
)
async def test_a_client_that_leaves_is_noticed(
    leave: Callable[[socket.socket], None], family: socket.AddressFamily, host: str
) -> None:
    with contextlib.ExitStack() as stack:
        connections = Connections(stack, family, host)
        clients = DepartedClients()
        (leaving, its_scope), (_, other_scope) = connections.accepted(), connections.accepted()
        other, departure = await waiting(clients, other_scope), await waiting(clients, its_scope)
        leave(leaving)
        assert (await departure)["type"] == "http.disconnect"
        assert not other.done()
        other.cancel()


async def test_every_client_is_noticed_among_more_than_the_kernel_is_asked_about_at_once(
    connections: Connections, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(departed_clients, "_MOST_QUERIES", 2)
    clients = DepartedClients()
    accepted = [connections.accepted() for _ in range(5)]
    waits = [await waiting(clients, scope) for _, scope in accepted]
    for leaving in (4, 0):
        accepted[leaving][0].close()
        assert (await waits[leaving])["type"] == "http.disconnect"
    assert not any(wait.done() for wait in waits[1:4])
    for wait in waits[1:4]:
        wait.cancel()


async def test_a_connection_that_the_kernel_does_not_know_counts_as_connected(connections: Connections) -> None:
    clients = DepartedClients()
    (unknown, its_scope), (leaving, other_scope) = connections.accepted(), connections.accepted()
    # Otherwise the kernel shows the listening socket in place of a connection that was reset.
    connections.listener.close()
    reset(unknown)
    wait, departure = await waiting(clients, its_scope), await waiting(clients, other_scope)
    leaving.close()
    assert (await departure)["type"] == "http.disconnect"
    assert not wait.done()
    wait.cancel()


@pytest.mark.parametrize(
    ("client", "server"),
    [(None, ("/run/tpuserve.sock", None)), (("fe80::1%2", 40000), ("fe80::2", 8501))],
    ids=["UNIX socket", "link-local"],
)
async def test_a_client_that_the_kernel_cannot_find_counts_as_connected(
    client: tuple[str, int] | None, server: tuple[str, int | None], connections: Connections
) -> None:
    clients = DepartedClients()
    wait = await waiting(clients, {"client": client, "server": server})
    leaving, scope = connections.accepted()
    departure = await waiting(clients, scope)
    leaving.close()
    assert (await departure)["type"] == "http.disconnect"
    assert not wait.done()
    wait.cancel()
