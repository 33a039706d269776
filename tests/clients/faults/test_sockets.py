"""A call that ends at its deadline leaves no socket behind."""

import asyncio
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.certificates import Authority
from tpuserve_client import AsyncClient, Client, DeadlineExceeded, Tls

LIMIT_S = 30.0


def read_to_end(connection: socket.socket) -> None:
    """Read until the client closes the connection. Raises TimeoutError if it stays open."""
    connection.settimeout(LIMIT_S)
    with connection:
        while connection.recv(2**16):
            pass


@pytest.fixture
def silent() -> Iterator[socket.socket]:
    """Listen and never answer."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener


def address(silent: socket.socket) -> str:
    return f"https://127.0.0.1:{silent.getsockname()[1]}"


def test_blocking_call_closes_a_handshake_that_takes_too_long(silent: socket.socket, tmp_path: Path) -> None:
    with Client(address(silent), tls=Tls(ca=Authority(tmp_path).ca)) as client:
        with pytest.raises(DeadlineExceeded):
            client.predict("affine", {"x": [[1.0]]}, timeout_s=0.3)
        read_to_end(silent.accept()[0])


async def test_awaited_call_closes_a_handshake_that_takes_too_long(silent: socket.socket, tmp_path: Path) -> None:
    async with AsyncClient(address(silent), tls=Tls(ca=Authority(tmp_path).ca)) as client:
        with pytest.raises(DeadlineExceeded):
            await client.predict("affine", {"x": [[1.0]]}, timeout_s=0.3)
        await asyncio.to_thread(read_to_end, silent.accept()[0])
