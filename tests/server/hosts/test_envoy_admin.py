"""The admin interface of a real Envoy."""

import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.server.hosts.plain_envoy import plain_envoy
from tpuserve_server.hosts.application import HostOptions, Listening
from tpuserve_server.hosts.envoy_admin import EnvoyAdmin, drain, until


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


async def test_addresses_are_those_it_found(admin: EnvoyAdmin, tmp_path: Path) -> None:
    listening = admin.listening(options(tmp_path))
    assert listening.grpc_socket == f"unix:{tmp_path}/grpc.sock"
    assert listening.rest is None
    connect(listening).close()


async def test_drain_refuses_new_connections(admin: EnvoyAdmin, tmp_path: Path) -> None:
    listening = admin.listening(options(tmp_path))
    await drain(admin, nothing)
    with pytest.raises(ConnectionRefusedError):
        connect(listening)


async def test_answer_during_a_drain_closes_its_connection(admin: EnvoyAdmin, tmp_path: Path) -> None:
    with connect(admin.listening(options(tmp_path))) as client:
        await until(lambda: not admin.is_deserted())
        admin.say_farewell()
        client.sendall(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        answer = b"".join(iter(lambda: client.recv(4096), b""))
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"connection: close\r\n" in answer
    await until(admin.is_deserted)
    assert admin.is_quiet()
