"""HTTP/2 by hand, for clients that behave in ways that no library allows (RFC 9113, RFC 7541)."""

import socket
import struct
from collections.abc import Iterator

from tests.server.hosts.host_process import PATIENCE_S

_DATA, _HEADERS, _RST_STREAM, _SETTINGS, _PING, GOAWAY, _WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
_ACK, _END_STREAM, _END_HEADERS = 1, 1, 4
_CANCEL = 8
_INITIAL_WINDOW_SIZE = 4
_MAX_FRAME_BYTES = 1 << 14


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """Return one frame."""
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def connect(address: str, window_bytes: int | None = None) -> socket.socket:
    """Connect, and wait for the server's settings, which widen the window of a stream.

    The server may send `window_bytes` of each response, by default HTTP/2's 64 KiB, and 1 GiB of all responses.
    """
    host, _, port = address.rpartition(":")
    client = socket.create_connection((host, int(port)), timeout=PATIENCE_S)
    window = b"" if window_bytes is None else struct.pack(">HI", _INITIAL_WINDOW_SIZE, window_bytes)
    client.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _frame(_SETTINGS, 0, 0, window) + widen(0, 1 << 30))
    next(kind for kind, _ in frames(client) if kind == _SETTINGS)
    client.sendall(_frame(_SETTINGS, _ACK, 0, b""))
    return client


def grpc_call(stream: int, path: str, *, encoding: str = "utf-8", **more: str) -> bytes:
    """Return the headers of a gRPC call and `more`, as literals without compression, in an encoding of text."""
    fields = {
        ":method": "POST",
        ":scheme": "http",
        ":path": path,
        ":authority": "localhost",
        "te": "trailers",
        "content-type": "application/grpc",
        **{name.replace("_", "-"): value for name, value in more.items()},
    }
    block = b"".join(
        b"\x00" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode(encoding)
        for name, value in fields.items()
    )
    return _frame(_HEADERS, _END_HEADERS, stream, block)


def unary_call(stream: int, path: str, content: bytes, timeout: str) -> bytes:
    """Return a whole call with its framed message, which fits the windows, and a `grpc-timeout`."""
    return grpc_call(stream, path, grpc_timeout=timeout) + _frame(_DATA, _END_STREAM, stream, content)


def data(stream: int, content: bytes) -> bytes:
    """Return `content` as data frames that do not end the stream."""
    parts = range(0, len(content), _MAX_FRAME_BYTES)
    return b"".join(_frame(_DATA, 0, stream, content[at : at + _MAX_FRAME_BYTES]) for at in parts)


def empty_data(stream: int, *, end: bool = False) -> bytes:
    """Return a data frame without data, which may end the stream."""
    return _frame(_DATA, _END_STREAM if end else 0, stream, b"")


def widen(stream: int, more_bytes: int) -> bytes:
    """Return the frame that lets the server send more of a stream's response, or of all responses for stream 0."""
    return _frame(_WINDOW_UPDATE, 0, stream, struct.pack(">I", more_bytes))


def reset(stream: int) -> bytes:
    """Return the frame that cancels the stream."""
    return _frame(_RST_STREAM, 0, stream, struct.pack(">I", _CANCEL))


def ping(content: bytes = bytes(8)) -> bytes:
    """Return a ping of 8 bytes."""
    return _frame(_PING, 0, 0, content)


def settings() -> bytes:
    """Return empty settings, which the server must acknowledge."""
    return _frame(_SETTINGS, 0, 0, b"")


def ended_streams(client: socket.socket, wanted: int) -> set[int]:
    """Read until the server has reset `wanted` streams, and return them."""
    ended: set[int] = set()
    for kind, stream in frames(client):
        if kind == _RST_STREAM:
            ended.add(stream)
        if len(ended) >= wanted:
            break
    return ended


def finished_streams(client: socket.socket, wanted: int) -> set[int]:
    """Read until the server has reset or ended `wanted` streams, and return them."""
    finished: set[int] = set()
    for kind, flags, stream, _ in _all(client):
        if kind == _RST_STREAM or (flags & _END_STREAM and kind in (_DATA, _HEADERS)):
            finished.add(stream)
        if len(finished) >= wanted:
            break
    return finished


def granted_bytes(client: socket.socket, stream: int) -> int:
    """Read until the server has reset the stream, and return by how many bytes it has widened the stream's window."""
    granted = 0
    for kind, found, payload in _frames(client):
        if found == stream and kind == _WINDOW_UPDATE:
            granted += int.from_bytes(payload, "big")
        if found == stream and kind == _RST_STREAM:
            break
    return granted


def wait_for_data(client: socket.socket, stream: int) -> None:
    """Read until data of the stream arrives. Raises ConnectionError if the server ends the stream or the connection."""
    for kind, found in frames(client):
        if (kind, found) == (_DATA, stream):
            return
        if (kind, found) == (_RST_STREAM, stream) or kind == GOAWAY:
            raise ConnectionError("the server ended the stream")


def read_data(client: socket.socket, stream: int) -> Iterator[bytes]:
    """Yield the data of a stream until its end. Raises ConnectionError if the server ends the connection first."""
    is_begun = False
    for kind, flags, found, payload in _all(client):
        if found != stream:
            continue
        if kind == _DATA:
            yield payload
        if kind == _RST_STREAM or (flags & _END_STREAM and kind in (_DATA, _HEADERS) and is_begun):
            return
        is_begun = True


def wait_for_headers(client: socket.socket, stream: int) -> None:
    """Read until the server answers the stream, or resets it."""
    next(kind for kind, found in frames(client) if found == stream and kind in (_HEADERS, _RST_STREAM))


def is_told_to_go_away(client: socket.socket) -> bool:
    """Read until the connection ends, and return whether the server announced it (GOAWAY)."""
    try:
        return any(kind == GOAWAY for kind, _ in frames(client))
    except ConnectionError:
        return False


def frames(client: socket.socket) -> Iterator[tuple[int, int]]:
    """Yield the type and the stream of each frame. Raises ConnectionError when the server closes the connection."""
    return ((kind, stream) for kind, stream, _ in _frames(client))


def _frames(client: socket.socket) -> Iterator[tuple[int, int, bytes]]:
    return ((kind, stream, payload) for kind, _, stream, payload in _all(client))


def _all(client: socket.socket) -> Iterator[tuple[int, int, int, bytes]]:
    """Yield the type, the flags, the stream and the payload of each frame."""
    while True:
        head = _read(client, 9)
        payload = _read(client, int.from_bytes(head[:3], "big"))
        yield head[3], head[4], int.from_bytes(head[5:], "big") & 0x7FFFFFFF, payload


def _read(client: socket.socket, size_bytes: int) -> bytes:
    received = b""
    while len(received) < size_bytes:
        piece = client.recv(size_bytes - len(received))
        if not piece:
            raise ConnectionError("the server closed the connection")
        received += piece
    return received
