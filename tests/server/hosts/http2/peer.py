"""A peer that speaks HTTP/2 frame by frame, and reports what the server makes of it (RFC 9113, RFC 7541)."""

import socket
import struct
from collections.abc import Iterable, Iterator
from typing import Self, TypeVar

from h2.errors import ErrorCodes
from h2.settings import SettingCodes
from hpack import Decoder, Encoder
from hyperframe.frame import (
    DataFrame,
    Frame,
    GoAwayFrame,
    HeadersFrame,
    PingFrame,
    RstStreamFrame,
    SettingsFrame,
)

from tests.server.hosts.host_process import PATIENCE_S

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
ACK = END_STREAM = 0x1
END_HEADERS, PADDED, WITH_PRIORITY = 0x4, 0x8, 0x20
# The greatest window and the greatest setting of 31 bits.
MAX_WINDOW = (1 << 31) - 1

# Outcomes, besides those with the name of an error: "GOAWAY name", "RST_STREAM name", "response status".
IGNORED = "ignored"
CLOSED = "closed"
SILENCE = "silence"

_SENTINEL = b"sentinel"
# The path that each server of these tests must answer with status 200, and the method of gRPC that echoes a message.
HELLO, ECHO = "/hello", "/echo.Echo/Unary"

_Kind = TypeVar("_Kind", bound=Frame)

Fields = Iterable[tuple[str | bytes, str | bytes]]


def frame(kind: int, flags: int = 0, stream: int = 0, payload: bytes = b"") -> bytes:
    """Return a frame, valid or not."""
    return len(payload).to_bytes(3, "big") + struct.pack(">BBI", kind, flags, stream) + payload


def settings(*pairs: tuple[int, int]) -> bytes:
    """Return settings with values, valid or not."""
    return frame(SETTINGS, payload=b"".join(struct.pack(">HI", code, value) for code, value in pairs))


def window_update(stream: int, more_bytes: int) -> bytes:
    """Return an update of a window."""
    return frame(WINDOW_UPDATE, stream=stream, payload=struct.pack(">I", more_bytes))


def reset(stream: int, code: int = ErrorCodes.CANCEL) -> bytes:
    """Return the frame that cancels a stream."""
    return frame(RST_STREAM, stream=stream, payload=struct.pack(">I", code))


def block(fields: Fields) -> bytes:
    """Return a header block that leaves the dynamic table alone."""
    return b"".join(literal(name, value) for name, value in fields)


def literal(name: str | bytes, value: str | bytes) -> bytes:
    """Return a header field without compression, valid or not."""
    return b"\x00" + _text(name) + _text(value)


def _text(text: str | bytes) -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return integer(len(raw), bits=7) + raw


def integer(value: int, *, bits: int, prefix: int = 0) -> bytes:
    """Return an integer of RFC 7541, section 5.1, after the bits of `prefix`."""
    most = (1 << bits) - 1
    if value < most:
        return bytes([prefix | value])
    encoded, rest = bytearray([prefix | most]), value - most
    while rest >= 128:
        encoded.append(rest & 127 | 128)
        rest >>= 7
    return bytes([*encoded, rest])


def request(path: str = HELLO, method: str = "GET", **more: str) -> list[tuple[str | bytes, str | bytes]]:
    """Return the fields of a request and `more`, whose names have underscores."""
    pseudo: list[tuple[str | bytes, str | bytes]] = [
        (":method", method),
        (":scheme", "http"),
        (":path", path),
        (":authority", "localhost"),
    ]
    return [*pseudo, *((name.replace("_", "-"), value) for name, value in more.items())]


def call(**more: str) -> list[tuple[str | bytes, str | bytes]]:
    """Return the fields of a gRPC call, whose body follows."""
    return request(ECHO, "POST", content_type="application/grpc", te="trailers", **more)


def headers(fields: Fields, stream: int = 1, flags: int = END_HEADERS) -> bytes:
    """Return headers that do not end the stream."""
    return frame(HEADERS, flags, stream, block(fields))


def whole(fields: Fields, stream: int = 1) -> bytes:
    """Return headers that end the stream."""
    return headers(fields, stream, END_HEADERS | END_STREAM)


def data(content: bytes = b"", stream: int = 1, flags: int = 0) -> bytes:
    """Return a frame of data."""
    return frame(DATA, flags, stream, content)


def message(content: bytes = b"hello") -> bytes:
    """Return a gRPC message."""
    return struct.pack(">BI", 0, len(content)) + content


class Peer:
    """One connection to the server, which has exchanged settings unless it has no preface."""

    def __init__(self, port: int, *, preface: bool = True, own_settings: bytes = b"") -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._received = bytearray()
        self._decoder = Decoder()
        self.encoder = Encoder()
        self.limits: dict[int, int] = {}
        # Fields of the responses and their trailers, by stream.
        self.fields: dict[int, dict[str, str]] = {}
        if preface:
            self.send(PREFACE + (own_settings or settings()))
            self.limits = dict(self.wait_for(SettingsFrame).settings)
            self.send(frame(SETTINGS, ACK))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def send(self, *parts: bytes) -> None:
        """Send bytes. The server may have closed the connection, which `outcome` reports."""
        try:
            self._socket.sendall(b"".join(parts))
        except ConnectionError:
            return

    def limit(self, code: SettingCodes) -> int:
        """Return a setting of the server, or its default."""
        defaults = {SettingCodes.MAX_FRAME_SIZE: 1 << 14, SettingCodes.INITIAL_WINDOW_SIZE: (1 << 16) - 1}
        return self.limits.get(code, defaults.get(code, 0))

    def flood(self, part: bytes, most_bytes: int) -> None:
        """Send `part` again and again without reading, until `most_bytes` are sent or the server stops reading."""
        many = part * max(1, (1 << 16) // len(part))
        self._socket.settimeout(1.0)
        try:
            for _ in range(max(1, most_bytes // len(many))):
                self._socket.sendall(many)
        except (ConnectionError, TimeoutError):
            pass
        finally:
            self._socket.settimeout(PATIENCE_S)

    def wait_for(self, kind: type[_Kind]) -> _Kind:
        """Return the next frame of a kind, and ignore the others. Raises ConnectionError at the end."""
        return next(each for each in self.frames() if isinstance(each, kind))

    def frames(self) -> Iterator[Frame]:
        """Yield the server's frames. Raises ConnectionError at the end of the connection."""
        while True:
            head, length = Frame.parse_frame_header(memoryview(self._read(9)))
            head.parse_body(memoryview(self._read(length)))
            if isinstance(head, HeadersFrame):
                fields = {str(name): str(value) for name, value in self._decoder.decode(head.data)}
                self.fields.setdefault(head.stream_id, {}).update(fields)
            yield head

    def outcome(self, *, stream: int = 1, expects_nothing: bool = False, wait_s: float = PATIENCE_S) -> str:
        """Return what the server makes of all that was sent, on the connection or on `stream`.

        A ping after it shows that the server has ignored it, where `expects_nothing`.
        """
        if expects_nothing:
            self.send(frame(PING, payload=_SENTINEL))
        self._socket.settimeout(wait_s)
        try:
            for each in self.frames():
                if isinstance(each, GoAwayFrame):
                    return f"GOAWAY {ErrorCodes(each.error_code).name}"
                if isinstance(each, PingFrame) and each.opaque_data == _SENTINEL and expects_nothing:
                    return IGNORED
                if each.stream_id != stream:
                    continue
                if isinstance(each, RstStreamFrame):
                    return f"RST_STREAM {ErrorCodes(each.error_code).name}"
                if isinstance(each, HeadersFrame | DataFrame) and "END_STREAM" in each.flags:
                    return f"response {self.fields[stream][':status']}"
        except TimeoutError:
            return SILENCE
        except ConnectionError:
            return CLOSED
        finally:
            self._socket.settimeout(PATIENCE_S)
        raise AssertionError("frames end with an error")

    def ends(self) -> bool:
        """Return whether the server closes the connection without another frame."""
        try:
            return next(self.frames()) is None
        except ConnectionError:
            return True

    def _read(self, size_bytes: int) -> bytes:
        while len(self._received) < size_bytes:
            piece = self._socket.recv(1 << 16)
            if not piece:
                raise ConnectionError("the server closed the connection")
            self._received += piece
        taken = bytes(self._received[:size_bytes])
        del self._received[:size_bytes]
        return taken


def sent_bytes(peer: Peer, stream: int = 1) -> int:
    """Return the bytes of data that the server sends until it answers a ping."""
    peer.send(frame(PING, payload=_SENTINEL))
    total = 0
    for each in peer.frames():
        if isinstance(each, DataFrame) and each.stream_id == stream:
            total += len(each.data)
        if isinstance(each, PingFrame) and each.opaque_data == _SENTINEL:
            return total
    raise AssertionError("frames end with an error")
