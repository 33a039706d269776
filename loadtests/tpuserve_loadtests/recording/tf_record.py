"""TFRecord, the file of records: each with its length before it and checksums of both (tensorflow/tsl/lib/io).

A record is its length as 8 bytes, their checksum, the bytes, their checksum; all little-endian. A checksum is CRC-32C,
masked, for records hold checksums themselves (tsl/lib/hash/crc32c.h, Mask).
"""

import struct
from collections.abc import Iterator
from typing import BinaryIO, Final

import google_crc32c

_LENGTH: Final = struct.Struct("<Q")
_CHECKSUM: Final = struct.Struct("<I")
_HEADER_BYTES: Final = _LENGTH.size + _CHECKSUM.size
_MASK_DELTA: Final = 0xA282EAD8


class CutShort(ValueError):
    """The file ends within a record, as one does that is being written."""


def read_tf_records(file: BinaryIO, size_bytes: int) -> Iterator[bytes]:
    """The records of an open file of that size. CutShort at its end; ValueError for a damaged file, or another."""
    left = size_bytes
    while header := file.read(_HEADER_BYTES):
        if len(header) < _HEADER_BYTES:
            raise CutShort
        _check(header[: _LENGTH.size], header[_LENGTH.size :], "a length")
        (length,) = _LENGTH.unpack(header[: _LENGTH.size])
        left -= _HEADER_BYTES + length + _CHECKSUM.size
        # Before it is read: a length that somebody made up must not take the memory.
        if left < 0:
            raise CutShort
        record = file.read(length)
        _check(record, file.read(_CHECKSUM.size), "a record")
        yield record


def _check(content: bytes, checksum: bytes, what: str) -> None:
    masked = google_crc32c.value(content)
    rotated = masked >> 15 | masked << 17
    if checksum != _CHECKSUM.pack((rotated + _MASK_DELTA) & 0xFFFFFFFF):
        raise ValueError(f"{what} does not have its checksum: damaged, or no recording (TFRecord or JSON lines)")
