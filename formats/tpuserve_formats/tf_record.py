"""TFRecord, TensorFlow's file of length-prefixed records with checksums (tensorflow/tsl/lib/io).

A record consists of its length in 8 bytes, the checksum of the length, the bytes, and their checksum, all
little-endian. The checksum is a masked CRC-32C, because records can contain checksums themselves
(tsl/lib/hash/crc32c.h, Mask). Needs the extra `records`.
"""

import os
import struct
from collections.abc import Iterator
from typing import BinaryIO, Final

import google_crc32c

from tpuserve_formats.errors import FormatError

_LENGTH = struct.Struct("<Q")
_CHECKSUM = struct.Struct("<I")
_HEADER_BYTES = _LENGTH.size + _CHECKSUM.size
# Overhead of a record in bytes.
FRAME_BYTES: Final = _HEADER_BYTES + _CHECKSUM.size
_MASK_DELTA = 0xA282EAD8


class CutShort(FormatError):
    """The file ends within a record, for example because a process still writes it."""


class WrongChecksum(FormatError):
    """A length or a record is corrupt, or the file is not a TFRecord."""


def framed(record: bytes) -> bytes:
    """Return `record` with its length and checksums, as in a file."""
    length = _LENGTH.pack(len(record))
    return b"".join((length, _masked_checksum(length), record, _masked_checksum(record)))


def read_records(file: BinaryIO, *, refuse_rest: bool = False) -> Iterator[bytes]:
    """Yield the records of an open file in order.

    A tail too short for a length ends the file, like in TensorFlow, unless `refuse_rest`.

    Raises:
        CutShort: the last record is incomplete.
        WrongChecksum: the file is damaged or not a TFRecord.
        OSError: the file cannot be read.
    """
    left = os.fstat(file.fileno()).st_size
    while header := file.read(_HEADER_BYTES):
        if len(header) < _HEADER_BYTES:
            if refuse_rest:
                raise CutShort("the last length is truncated")
            return
        _check(header[: _LENGTH.size], header[_LENGTH.size :], "length")
        (length,) = _LENGTH.unpack(header[: _LENGTH.size])
        left -= len(header) + length + _CHECKSUM.size
        # Check before reading, so that a forged length does not allocate memory.
        if left < 0:
            raise CutShort("the last record is truncated")
        record = file.read(length)
        _check(record, file.read(_CHECKSUM.size), "record")
        yield record


def _check(content: bytes, checksum: bytes, what: str) -> None:
    if checksum != _masked_checksum(content):
        raise WrongChecksum(f"a {what} has a wrong checksum")


def _masked_checksum(content: bytes) -> bytes:
    checksum = google_crc32c.value(content)
    rotated = checksum >> 15 | checksum << 17
    return _CHECKSUM.pack((rotated + _MASK_DELTA) & 0xFFFFFFFF)
