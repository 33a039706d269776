"""TFRecord, the file of records: each with its length before it and checksums of both (tensorflow/tsl/lib/io).

A record is its length as 8 bytes, their checksum, the bytes, their checksum; all little-endian. A checksum is CRC-32C,
masked, for records hold checksums themselves (tsl/lib/hash/crc32c.h, Mask). Needs the extra `records`.
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
# What a record takes beyond its own bytes.
FRAME_BYTES: Final = _HEADER_BYTES + _CHECKSUM.size
_MASK_DELTA = 0xA282EAD8


class CutShort(FormatError):
    """The file ends within a record, as a file does that is being written."""


class WrongChecksum(FormatError):
    """A length or a record is not what was written, or the file is no TFRecord."""


def framed(record: bytes) -> bytes:
    """`record` as it stands in a file."""
    length = _LENGTH.pack(len(record))
    return b"".join((length, _masked_checksum(length), record, _masked_checksum(record)))


def read_records(file: BinaryIO, *, refuse_rest: bool = False) -> Iterator[bytes]:
    """Yield the records of an open file, one after another.

    Bytes too few for a length are the file's end, as for TensorFlow, unless `refuse_rest`.

    Raises:
        CutShort: the last record is not whole.
        WrongChecksum: the file is damaged, or no TFRecord.
        OSError: it cannot be read.
    """
    left = os.fstat(file.fileno()).st_size
    while header := file.read(_HEADER_BYTES):
        if len(header) < _HEADER_BYTES:
            if refuse_rest:
                raise CutShort("the last length is cut short")
            return
        _check(header[: _LENGTH.size], header[_LENGTH.size :], "length")
        (length,) = _LENGTH.unpack(header[: _LENGTH.size])
        left -= len(header) + length + _CHECKSUM.size
        # Before it is read: a made-up length must not take the memory.
        if left < 0:
            raise CutShort("the last record is cut short")
        record = file.read(length)
        _check(record, file.read(_CHECKSUM.size), "record")
        yield record


def _check(content: bytes, checksum: bytes, what: str) -> None:
    if checksum != _masked_checksum(content):
        raise WrongChecksum(f"a {what} does not have its checksum")


def _masked_checksum(content: bytes) -> bytes:
    checksum = google_crc32c.value(content)
    rotated = checksum >> 15 | checksum << 17
    return _CHECKSUM.pack((rotated + _MASK_DELTA) & 0xFFFFFFFF)
