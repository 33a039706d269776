"""Positions of the length-delimited fields of a serialized message (protobuf.dev/programming-guides/encoding)."""

from typing import Final

from tpuserve_formats.errors import FormatError
from tpuserve_formats.varint import read_varint

# Wire types, and the sizes in bytes of those that have a fixed one.
_VARINT, _LENGTH_DELIMITED = 0, 2
_FIXED: Final = {1: 8, 5: 4}


def delimited_fields(body: bytes, position: int, end: int, most_fields: int) -> list[tuple[int, int, int]]:
    """Return number, start and stop of the content of each length-delimited field of a message.

    Raises:
        FormatError: the message is malformed, has more than `most_fields` of any kind, or has groups, which are
            obsolete.
    """
    found = []
    left = most_fields
    while position < end:
        if not left:
            raise FormatError(f"a message has more than {most_fields} fields")
        left -= 1
        tag, position = read_varint(body, position)
        number, kind = tag >> 3, tag & 7
        if kind == _LENGTH_DELIMITED:
            size, position = read_varint(body, position)
            stop = position + size
            found.append((number, position, stop))
        elif kind in _FIXED:
            stop = position + _FIXED[kind]
        elif kind == _VARINT:
            _, stop = read_varint(body, position)
        else:
            raise FormatError("groups are not supported")
        if stop > end:
            raise FormatError("a field is longer than its message")
        position = stop
    return found
