"""Long strings in a large JSON value: decoded in parts, so that no step holds the GIL for more than milliseconds.

The rest of the piece of text keeps an empty string in the place of each.
"""

import binascii
import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from tpuserve_server.core.system.threads import let_others_run
from tpuserve_server.core.terms.errors import InvalidArgument
from tpuserve_server.core.terms.types import Array
from tpuserve_server.wire.json.body import parse_json
from tpuserve_server.wire.json.layout import Layout, Span, trim

# A value between two commas or brackets that is longer counts as long.
_LONG_BYTES: Final = 1 << 19
_PART_BYTES: Final = 1 << 18
_COMMA, _COLON, _QUOTE = ord(","), ord(":"), ord('"')
# Text within quotes that may be followed by any other such text: whole escapes, and both halves of a surrogate pair.
_WHOLE: Final = re.compile(rb'(?:[^\\"]++|\\u[dD][89abAB]..\\u....|\\u(?![dD][89abAB])....|\\[^u])*+', re.DOTALL)
_SPACE: Final = b" \t\n\v\f\r"


class LongString(NamedTuple):
    """A long string's bytes, its index among the leaves of the piece, and whether it is the value of a member."""

    value: bytes
    leaf: int
    is_member: bool


class ShortPiece(NamedTuple):
    """A piece with empty strings in place of its long ones."""

    text: bytes
    strings: tuple[LongString, ...]


def is_long(piece: Span) -> bool:
    """Return whether a piece may have a long string. Its size is that of a piece and of its last value."""
    return piece.stop - piece.start > 2 * _LONG_BYTES


def take_long_strings(layout: Layout, piece: Span) -> ShortPiece:
    """Decode the long strings of a piece.

    Raises:
        InvalidArgument: a long value is no string, or is malformed.
    """
    kept: list[bytes] = []
    strings: list[LongString] = []
    start, previous, leaf = piece.start, _COMMA, 0
    for position, code in _structure(layout, piece):
        if position - start > _LONG_BYTES:
            value = trim(layout.body, Span(start, position))
            if value.stop - value.start > _LONG_BYTES:
                strings.append(LongString(_decode(layout.body, value), leaf, previous == _COLON))
                kept.append(b'""')
            else:
                kept.append(layout.text(value))
        else:
            kept.append(layout.body[start:position])
        kept.append(layout.body[position : position + 1])
        start, previous = position + 1, code
        leaf += code == _COMMA
    # The last "bracket" is the end of the piece.
    return ShortPiece(b"".join(kept[:-1]), tuple(strings))


def put_long_strings(values: Array, piece: ShortPiece) -> None:
    """Put the long strings into `values`, the converted leaves of the piece. Raises InvalidArgument for bad base64."""
    for string in piece.strings:
        values[string.leaf] = _decode_base64(string.value) if string.is_member else string.value


def _structure(layout: Layout, piece: Span) -> Iterator[tuple[int, int]]:
    for _, found in layout.structure(piece):
        yield from zip(found.positions.tolist(), found.codes.tolist(), strict=True)
    yield piece.stop, 0


def _decode(body: bytes, span: Span) -> bytes:
    """Return the bytes of the string in `span`, with its quotes."""
    if body[span.start] != _QUOTE or body[span.stop - 1] != _QUOTE:
        raise InvalidArgument(f"JSON Parse error: a value of {span.stop - span.start} bytes is no string")
    return b"".join(_parts(body, Span(span.start + 1, span.stop - 1)))


def _parts(body: bytes, inner: Span) -> Iterator[bytes]:
    start = inner.start
    while start < inner.stop:
        stop = min(start + _PART_BYTES, inner.stop)
        while stop < inner.stop and body[stop] & 0xC0 == 0x80:
            # Within a character of UTF-8.
            stop -= 1
        whole = _WHOLE.match(body, start, stop)
        if whole is None or whole.end() == start:
            raise InvalidArgument("JSON Parse error: Invalid escape in a string.")
        text: str = parse_json(b'"%b"' % body[start : whole.end()])
        yield text.encode()
        start = whole.end()
        let_others_run()


def _decode_base64(text: bytes) -> bytes:
    """Decode as `decode_base64_object` does."""
    view = memoryview(text)
    starts = range(0, len(text), _PART_BYTES)
    compact = memoryview(b"".join([_without_space(view[start : start + _PART_BYTES]) for start in starts]))
    size = len(compact)
    while size and compact[size - 1] == ord("="):
        size -= 1
    try:
        return b"".join(_decode_parts(compact[:size]))
    except ValueError:
        raise InvalidArgument("JSON Parse error: a b64 value is not base64") from None


def _without_space(part: "memoryview[Any]") -> bytes:
    let_others_run()
    return bytes(part).translate(None, _SPACE)


def _decode_parts(compact: "memoryview[Any]") -> Iterator[bytes]:
    for start in range(0, len(compact), _PART_BYTES):
        part = bytes(compact[start : start + _PART_BYTES])
        yield binascii.a2b_base64(part + b"=" * (-len(part) % 4), strict_mode=True)
        let_others_run()
