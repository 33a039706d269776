"""TFRecord, the file of records: each with its length before it and checksums of both (tensorflow/tsl/lib/io).

A record is its length as 8 bytes, their checksum, the bytes, their checksum; all little-endian. A checksum is CRC-32C,
masked, for records hold checksums themselves (tsl/lib/hash/crc32c.h, Mask).
"""

import os
import struct
from collections.abc import Iterator
from typing import BinaryIO, Final

import google_crc32c

_LENGTH = struct.Struct("<Q")
_CHECKSUM = struct.Struct("<I")
_HEADER_BYTES = _LENGTH.size + _CHECKSUM.size
# What a record takes beyond its own bytes.
FRAME_BYTES: Final = _HEADER_BYTES + _CHECKSUM.size
_MASK_DELTA = 0xA282EAD8


def framed(record: bytes) -> bytes:
    """`record` as it stands in a file."""
    length = _LENGTH.pack(len(record))
    return b"".join((length, _masked_checksum(length), record, _masked_checksum(record)))


def read_records(file: BinaryIO) -> Iterator[bytes]:
    """The records of an open file, one after another. What is too short for a length is its end, as for TensorFlow.

    Raises:
        ValueError: it is cut short, damaged or no TFRecord.
        OSError: it cannot be read.
    """
    left = os.fstat(file.fileno()).st_size
    while len(header := file.read(_HEADER_BYTES)) == _HEADER_BYTES:
        _check(header[: _LENGTH.size], header[_LENGTH.size :], "length")
        (length,) = _LENGTH.unpack(header[: _LENGTH.size])
        left -= len(header) + length + _CHECKSUM.size
        # Before it is read: a length that somebody made up must not take the memory.
        if left < 0:
            raise ValueError("the last record is cut short")
        record = file.read(length)
        _check(record, file.read(_CHECKSUM.size), "record")
        yield record


def _check(content: bytes, checksum: bytes, what: str) -> None:
    if checksum != _masked_checksum(content):
        raise ValueError(f"a {what} does not have its checksum")


def _masked_checksum(content: bytes) -> bytes:
    checksum = google_crc32c.value(content)
    rotated = checksum >> 15 | checksum << 17
    return _CHECKSUM.pack((rotated + _MASK_DELTA) & 0xFFFFFFFF)
