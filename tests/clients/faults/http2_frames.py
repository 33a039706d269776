"""HTTP/2 frames as bytes (RFC 9113), enough to inject faults between two real peers.

Headers are literals without indexing (RFC 7541, 6.2.2), which do not change the compression state of either peer.
"""

import asyncio
import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
END_STREAM: Final = 0x1
END_HEADERS: Final = 0x4


class Kind(enum.IntEnum):
    """Frame types that the faults use."""

    DATA = 0
    HEADERS = 1
    RST_STREAM = 3
    GOAWAY = 7


class ErrorCode(enum.IntEnum):
    """HTTP/2 error codes that the faults use (RFC 9113, 7)."""

    NO_ERROR = 0
    REFUSED_STREAM = 7
    CANCEL = 8
    ENHANCE_YOUR_CALM = 11


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame. `kind` may be a type that `Kind` lacks."""

    kind: int
    flags: int
    stream: int
    payload: bytes

    def __bytes__(self) -> bytes:
        head = len(self.payload).to_bytes(3, "big") + bytes([self.kind, self.flags]) + self.stream.to_bytes(4, "big")
        return head + self.payload

    @property
    def ends_stream(self) -> bool:
        return self.kind in (Kind.DATA, Kind.HEADERS) and bool(self.flags & END_STREAM)


async def read_frame(reader: asyncio.StreamReader) -> Frame:
    """Read one frame. Raises IncompleteReadError at the end of the connection."""
    head = await reader.readexactly(9)
    payload = await reader.readexactly(int.from_bytes(head[:3], "big"))
    return Frame(head[3], head[4], int.from_bytes(head[5:9], "big") & 0x7FFFFFFF, payload)


def rst_stream(stream: int, code: ErrorCode) -> Frame:
    return Frame(Kind.RST_STREAM, 0, stream, code.to_bytes(4, "big"))


def goaway(last_stream: int, code: ErrorCode, debug: bytes = b"") -> Frame:
    """Return a frame that ends the connection. The server processes no stream after `last_stream`."""
    return Frame(Kind.GOAWAY, 0, 0, last_stream.to_bytes(4, "big") + code.to_bytes(4, "big") + debug)


def response(stream: int, headers: Mapping[str, str], body: bytes) -> list[Frame]:
    """Return the frames of a whole response. `headers` include `:status`; without a body they are also the trailers."""
    block = b"".join(_literal(name, value) for name, value in headers.items())
    if not body:
        return [Frame(Kind.HEADERS, END_HEADERS | END_STREAM, stream, block)]
    return [Frame(Kind.HEADERS, END_HEADERS, stream, block), Frame(Kind.DATA, END_STREAM, stream, body)]


def _literal(name: str, value: str) -> bytes:
    return b"\0" + _text(name) + _text(value)


def _text(text: str) -> bytes:
    if len(text) > 126:  # longer texts need a length of several bytes
        raise ValueError(f"the header text is too long: {text!r}")
    return bytes([len(text)]) + text.encode("ascii")
