"""A PNG that a graph can decode: TensorFlow's image decoders read it whatever they are called."""

import struct
import zlib

_SIGNATURE = b"\x89PNG\r\n\x1a\n"


def make_png(variant: int) -> bytes:
    """One pixel of 8-bit RGB, of another colour for each `variant` up to 256."""
    header = struct.pack(">IIBBBBB", 1, 1, 8, 2, 0, 0, 0)
    pixel = bytes([0, 255 - variant % 256, variant * 37 % 256, 255])  # the first byte is the row's filter: none
    return _SIGNATURE + _chunk(b"IHDR", header) + _chunk(b"IDAT", zlib.compress(pixel)) + _chunk(b"IEND", b"")


def _chunk(kind: bytes, data: bytes) -> bytes:
    """Length, kind, data and checksum (PNG specification, 5.3)."""
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
