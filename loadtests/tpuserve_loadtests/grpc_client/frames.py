"""HTTP/2 frames for unary gRPC calls (RFC 9113, section 6)."""

import struct
from typing import Final

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

DATA: Final = 0
HEADERS: Final = 1
RST_STREAM: Final = 3
SETTINGS: Final = 4
PING: Final = 6
GOAWAY: Final = 7
WINDOW_UPDATE: Final = 8
CONTINUATION: Final = 9

END_STREAM: Final = 0x1
ACK: Final = 0x1
END_HEADERS: Final = 0x4
PADDED: Final = 0x8
PRIORITY: Final = 0x20

HEADER_TABLE_SIZE: Final = 1
ENABLE_PUSH: Final = 2
MAX_CONCURRENT_STREAMS: Final = 3
INITIAL_WINDOW_SIZE: Final = 4
MAX_FRAME_SIZE: Final = 5

NO_ERROR: Final = 0
REFUSED_STREAM: Final = 7
CANCEL: Final = 8

HEAD_BYTES: Final = 9
# Defaults for the largest frame and for the receive window, until the peer's settings change them.
DEFAULT_FRAME_BYTES: Final = 16_384
DEFAULT_WINDOW_BYTES: Final = 65_535
LARGEST_WINDOW_BYTES: Final = 2**31 - 1

_HEAD: Final = struct.Struct(">BHBBI")
_SETTING: Final = struct.Struct(">HI")


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """Return an encoded frame."""
    length = len(payload)
    return _HEAD.pack(length >> 16, length & 0xFFFF, kind, flags, stream) + payload


def read_head(buffer: bytearray, at: int) -> tuple[int, int, int, int]:
    """Return payload length, kind, flags and stream of the frame at an offset."""
    high, low, kind, flags, stream = _HEAD.unpack_from(buffer, at)
    return high << 16 | low, kind, flags, stream & 0x7FFFFFFF


def settings(values: dict[int, int]) -> bytes:
    """Return a SETTINGS frame."""
    return frame(SETTINGS, 0, 0, b"".join(_SETTING.pack(*item) for item in values.items()))


def read_settings(payload: bytes) -> dict[int, int]:
    """Parse the payload of a SETTINGS frame."""
    return dict(_SETTING.iter_unpack(payload[: len(payload) // _SETTING.size * _SETTING.size]))


def window_update(stream: int, size_bytes: int) -> bytes:
    """Return a WINDOW_UPDATE frame, which lets the peer send more data."""
    return frame(WINDOW_UPDATE, 0, stream, size_bytes.to_bytes(4, "big"))


def unpadded(flags: int, payload: bytes) -> bytes:
    """Return the payload of a DATA or HEADERS frame without padding and priority."""
    end = len(payload)
    start = 0
    if flags & PADDED:
        start, end = 1, end - payload[0]
    if flags & PRIORITY:
        start += 5
    return payload[start:end]
