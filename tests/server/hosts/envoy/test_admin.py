"""Tests for the admin interface of a real Envoy."""

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.server.hosts.plain_envoy import plain_envoy
from tpuserve_server.hosts.application import HostOptions, Listening
from tpuserve_server.hosts.envoy import admin as envoy_admin
from tpuserve_server.hosts.envoy.admin import EnvoyAdmin, NoResponseYet, drain, until


@pytest.fixture
async def admin(tmp_path: Path) -> AsyncIterator[EnvoyAdmin]:
    with plain_envoy(options(tmp_path), tmp_path) as path:
        admin = EnvoyAdmin(path)
        await until(admin.is_live)
        yield admin


def options(folder: Path) -> HostOptions:
    return HostOptions(bind_address="127.0.0.1", grpc_port=0, rest_port=None, grpc_socket_path=f"{folder}/grpc.sock")


async def nothing() -> None:
    return None


def connect(listening: Listening) -> socket.socket:
    assert listening.grpc is not None
    host, port = listening.grpc.split(":")
    return socket.create_connection((host, int(port)))


def test_no_envoy_is_not_live(tmp_path: Path) -> None:
    assert not EnvoyAdmin(tmp_path / "admin.sock").is_live()


@pytest.fixture
def silent(tmp_path: Path) -> Iterator[socket.socket]:
    """Yield an admin socket whose server never responds."""
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "admin.sock"))
        server.listen()
        server.setblocking(False)
        yield server


def test_slow_answer_does_not_pass_for_the_end_of_the_callers_own_timeout(
    silent: socket.socket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(envoy_admin, "_TIMEOUT_S", 0.05)
    with pytest.raises(NoResponseYet) as raised:
        EnvoyAdmin(tmp_path / "admin.sock").is_quiet()
    assert not isinstance(raised.value, TimeoutError)
    assert str(raised.value).endswith("within 0.05 s")


async def test_drain_asks_again_where_the_answer_is_slow(
    silent: socket.socket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(envoy_admin, "_TIMEOUT_S", 0.05)
    draining = asyncio.create_task(drain(EnvoyAdmin(tmp_path / "admin.sock"), nothing))
    loop = asyncio.get_running_loop()
    for _ in range(3):
        connection, _ = await loop.sock_accept(silent)
        with connection:
            connection.setblocking(False)
            assert (await loop.sock_recv(connection, 4096)).startswith(b"POST /drain_listeners")
            assert await loop.sock_recv(connection, 4096) == b""  # the client gave up on this connection
    assert not draining.done()
    draining.cancel()


async def test_addresses_are_those_it_found(admin: EnvoyAdmin, tmp_path: Path) -> None:
    listening = admin.listening(options(tmp_path))
    assert listening.grpc_socket == f"unix:{tmp_path}/grpc.sock"
    assert listening.rest is None
    connect(listening).close()


async def test_drain_refuses_new_connections(admin: EnvoyAdmin, tmp_path: Path) -> None:
    listening = admin.listening(options(tmp_path))
    await drain(admin, nothing)

    def is_refused() -> bool:
        try:
            connect(listening).close()
        except ConnectionRefusedError:
            return True
        return False

    # Envoy responds before its worker has closed the port.
    await until(is_refused)


async def test_answer_during_a_drain_closes_its_connection(admin: EnvoyAdmin, tmp_path: Path) -> None:
    with connect(admin.listening(options(tmp_path))) as client:
        await until(lambda: not admin.has_no_client())
        admin.begin_drain()
        client.sendall(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        answer = b"".join(iter(lambda: client.recv(4096), b""))
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"connection: close\r\n" in answer
    await until(admin.has_no_client)
    assert admin.is_quiet()
