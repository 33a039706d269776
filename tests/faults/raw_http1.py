"""HTTP/1.1 by hand, for requests that no library sends."""

import contextlib
import re
import socket
from collections.abc import Iterable, Iterator

from tests.faults.faulted_server import PATIENCE_S, FaultedServer

CLOSED = "closed"


@contextlib.contextmanager
def connected(server: FaultedServer) -> Iterator[socket.socket]:
    """Yield a connection to the REST port."""
    host, _, port = server.rest.removeprefix("http://").rpartition(":")
    with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as client:
        yield client


def exchange(server: FaultedServer, *pieces: bytes) -> bytes:
    """Send the pieces and return everything until the server closes. The server may close before it has read all."""
    with connected(server) as client:
        send(client, pieces)
        return received(client)


def send(client: socket.socket, pieces: Iterable[bytes]) -> None:
    """Send until the server stops reading."""
    with contextlib.suppress(ConnectionError):
        for piece in pieces:
            client.sendall(piece)


def received(client: socket.socket) -> bytes:
    """Return everything until the server closes the connection."""
    parts = []
    with contextlib.suppress(ConnectionError):
        while piece := client.recv(1 << 16):
            parts.append(piece)
    return b"".join(parts)


def statuses(response: bytes) -> str:
    """Return the statuses of the responses, or that there are none."""
    return b" ".join(re.findall(rb"HTTP/1\.[01] (\d{3})", response)).decode() or CLOSED


def post(path: str, body: bytes = b"", close: bool = True, /, **headers: str) -> bytes:
    """Return a POST with a content length, unless `headers` have a transfer encoding."""
    if "content_length" not in headers and "transfer_encoding" not in headers:
        headers["content_length"] = str(len(body))
    if close:
        headers["connection"] = "close"
    lines = [
        f"POST {path} HTTP/1.1",
        "host: x",
        *(f"{name.replace('_', '-')}: {value}" for name, value in headers.items()),
    ]
    return "\r\n".join([*lines, "", ""]).encode() + body
