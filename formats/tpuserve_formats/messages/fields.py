"""Reader of a serialized message's fields, without parsing the message, which may have any size."""

from collections.abc import Iterator

from tpuserve_formats.errors import FormatError

# Wire types (https://protobuf.dev/programming-guides/encoding).
_VARINT, _LENGTH_DELIMITED = 0, 2
_FIXED_BYTES = {1: 8, 5: 4}
# protobuf in C++ keeps only the low 32 bits of a tag, and would read another field.
_LONGEST_TAG, _MOST_FIELD = 5, (1 << 29) - 1


def message_fields(message: bytes | memoryview) -> Iterator[tuple[int, int, int, int]]:
    """Yield each length-delimited field of a serialized message: its number, start, start of its content, and end.

    Numbers are omitted.

    Raises:
        FormatError: the message is damaged.
    """
    at = 0
    while at < len(message):
        start = at
        tag, at = _varint(message, at)
        kind = tag & 7
        if at - start > _LONGEST_TAG or not 0 < tag >> 3 <= _MOST_FIELD:
            raise FormatError("the message is damaged")
        if kind == _VARINT:
            _, at = _varint(message, at)
            continue
        length, at = (_FIXED_BYTES[kind], at) if kind in _FIXED_BYTES else _varint(message, at)
        if kind not in (_LENGTH_DELIMITED, *_FIXED_BYTES) or at + length > len(message):
            raise FormatError("the message is damaged")
        if kind == _LENGTH_DELIMITED:
            yield tag >> 3, start, at, at + length
        at += length


def field_contents(message: memoryview, wanted: int) -> Iterator[memoryview]:
    """Yield the contents of a length-delimited field of a serialized message. Raises FormatError as above."""
    return (message[start:end] for number, _, start, end in message_fields(message) if number == wanted)


def _varint(message: bytes | memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(message) and shift < 64:
        byte = message[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
    raise FormatError("the message is damaged")
