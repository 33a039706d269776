"""A large JSON value to one array, piece by piece: no step holds the GIL for more than a few milliseconds.

The text is cut at commas. Each piece becomes a flat list of leaves: without the brackets around them. The brackets of
all pieces together prove that the nesting is regular. Long strings are decoded in parts: the rest of the piece keeps an
empty string in the place of each.
"""

import binascii
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np

from tpuserve_formats.dtypes import BY_DTYPE
from tpuserve_server.core.batching.arrays import empty_aligned
from tpuserve_server.core.system.threads import let_others_run
from tpuserve_server.core.terms.errors import InvalidArgument
from tpuserve_server.core.terms.types import Array
from tpuserve_server.wire.json.body import JsonValue, parse_json
from tpuserve_server.wire.json.conversion import convert_leaves
from tpuserve_server.wire.json.layout import Bytes, Layout, Positions, Span, Structure, read_structure, trim
from tpuserve_server.wire.json.numbers import MAX_RANK, SOURCES, read_numbers, shape_of

# A millisecond at most: numbers that simdjson reads, and other values, which become objects first.
PIECE_BYTES: Final = 1 << 16
_OBJECT_BYTES: Final = 1 << 14
_EXPLAINED: Final = 1 << 8
_WHITESPACE: Final = b" \t\r\n"
_IS_SPACE: Final = np.isin(np.arange(256), list(_WHITESPACE))
_OPEN, _CLOSE, _COMMA, _SPACE = ord("["), ord("]"), ord(","), ord(" ")
_COLON, _QUOTE = ord(":"), ord('"')
# A value between two commas or brackets that is longer counts as long.
_LONG_BYTES: Final = 1 << 19
_PART_BYTES: Final = 1 << 18
# Text within quotes that may be followed by any other such text: whole escapes, and both halves of a surrogate pair.
_WHOLE: Final = re.compile(rb'(?:[^\\"]++|\\u[dD][89abAB]..\\u....|\\u(?![dD][89abAB])....|\\[^u])*+', re.DOTALL)
_BASE64_SPACE: Final = b" \t\n\v\f\r"


class Irregular(Exception):  # Callers report it in their protocol's words.
    """Lists of one level have different sizes, or values and lists are mixed."""


class Unconvertible(Exception):  # As above.
    """A leaf is not of the dtype. `leaves` are those of its piece."""

    def __init__(self, leaves: list[JsonValue]) -> None:
        """Create the error for one piece."""
        super().__init__()
        self.leaves = leaves


class _LongString(NamedTuple):
    """A long string's bytes, its index among the leaves of the piece, and whether it is the value of a member."""

    value: bytes
    leaf: int
    is_member: bool


class _ShortPiece(NamedTuple):
    """A piece with empty strings in place of its long ones."""

    text: bytes
    strings: tuple[_LongString, ...]


def decode_nested(layout: Layout, span: Span, dtype: np.dtype[Any]) -> Array:
    """Return the array in `span`, a value of any nesting.

    Raises:
        InvalidArgument: a piece is malformed.
        Irregular: the nesting is not that of an array.
        Unconvertible: a leaf is not of `dtype`.
    """
    if layout.starts_deeper(span, MAX_RANK):
        raise Irregular
    flat, nesting = _decode(layout, span, dtype, partial(_convert_leaves, dtype))
    shape = shape_of(nesting)
    if shape is None:
        raise Irregular
    if not flat.size and shape:
        # One leaf and none look the same without it.
        shape = (*shape[:-1], 0) if shape[-1] == 1 else shape
    if flat.size != math.prod(shape):
        raise Irregular
    return flat.reshape(shape)


def decode_flat(
    layout: Layout, span: Span, dtype: np.dtype[Any], convert: Callable[[list[JsonValue]], Array | None]
) -> Array:
    """Return all leaves in `span`, whatever their nesting. `convert` converts the leaves of a piece.

    Raises as `decode_nested`, except Irregular.
    """
    return _decode(layout, span, dtype, convert)[0]


def _decode(
    layout: Layout, span: Span, dtype: np.dtype[Any], convert: Callable[[list[JsonValue]], Array | None]
) -> tuple[Array, bytes]:
    arrays, nestings = [], []
    is_numeric = dtype in SOURCES and not layout.has_quotes(span)
    for piece in layout.pieces(span, PIECE_BYTES if is_numeric else _OBJECT_BYTES):
        short = _take_long_strings(layout, piece) if _is_long(piece) else None
        text, nesting = _leaves(layout, piece, short)
        nestings.append(nesting)
        if text.strip(b", \t\r\n"):
            array = _convert(text, dtype, convert)
            if short is not None:
                _put_long_strings(array, short)
            arrays.append(array)
        let_others_run()
    return join_arrays(arrays, dtype), b",".join(nestings)


def join_arrays(arrays: Sequence[Array], dtype: np.dtype[Any]) -> Array:
    """Return `arrays`, which have one inner shape, as one."""
    # Where runtimes read it in place, if it is the only request of a batch.
    whole = empty_aligned((sum(map(len, arrays)), *(arrays[0].shape[1:] if arrays else ())), dtype)
    start = 0
    for array in arrays:
        whole[start : start + len(array)] = array
        start += len(array)
        let_others_run()
    return whole


def _convert(text: bytes, dtype: np.dtype[Any], convert: Callable[[list[JsonValue]], Array | None]) -> Array:
    numbers = read_numbers(b"[%b]" % text, dtype) if dtype in SOURCES else None
    if numbers is not None:
        return numbers
    return np.concatenate([_convert_objects(part, convert) for part in _parts(text)])


def _convert_objects(text: bytes, convert: Callable[[list[JsonValue]], Array | None]) -> Array:
    leaves = parse_json(b"[%b]" % text)
    converted = convert(leaves)
    if converted is None:
        # An explanation takes longer than a conversion, for each leaf.
        some = (leaves[start : start + _EXPLAINED] for start in range(0, len(leaves), _EXPLAINED))
        raise Unconvertible(next(part for part in some if convert(part) is None))
    let_others_run()
    return converted


def _parts(text: bytes) -> Iterator[bytes]:
    """Cut a text of leaves at commas into parts that are parsed in a millisecond, if they are no strings."""
    start = 0
    if b'"' not in text:
        while (stop := text.find(b",", start + _OBJECT_BYTES)) >= 0:
            yield text[start:stop]
            start = stop + 1
    yield text[start:]


def _convert_leaves(dtype: np.dtype[Any], leaves: list[JsonValue]) -> Array | None:
    wire_type = BY_DTYPE.get(dtype)
    return None if wire_type is None else convert_leaves(leaves, {*map(type, leaves)}, wire_type)


def _leaves(layout: Layout, piece: Span, short: _ShortPiece | None) -> tuple[bytes, bytes]:
    """Return the text of a piece without brackets, and its brackets and commas.

    Raises InvalidArgument for a value directly in front of a list or behind it, which is malformed JSON.
    """
    text = layout.text(piece) if short is None else short.text
    if b'"' not in text:
        return _leaves_of_numbers(text)
    if short is None:
        return _leaves_with_strings(text, (found for _, found in layout.structure(piece)), piece.start)
    return _leaves_with_strings(text, read_structure(text), 0)


def _leaves_of_numbers(text: bytes) -> tuple[bytes, bytes]:
    """As `_leaves`, for a text without strings: every bracket and comma in it is nesting."""
    array = np.frombuffer(bytearray(text), np.uint8)
    is_nesting = array == _COMMA
    is_nesting |= array == _OPEN
    is_nesting |= array == _CLOSE
    positions = np.flatnonzero(is_nesting)
    codes = array[positions]
    _check_between(array, positions, codes)
    array[positions[codes != _COMMA]] = _SPACE
    return array.tobytes(), codes.tobytes()


def _check_between(array: Bytes, positions: Positions, codes: Bytes) -> None:
    """Raise InvalidArgument unless the text between a list and its neighbours is blank."""
    if not codes.size:
        return
    before_open, after_close = codes[1:] == _OPEN, codes[:-1] == _CLOSE
    if (before_open & after_close).any():
        raise _malformed()
    first, last = int(positions[0]), int(positions[-1])
    if codes[0] == _OPEN and not _IS_SPACE[array[:first]].all():
        raise _malformed()
    if codes[-1] == _CLOSE and not _IS_SPACE[array[last + 1 :]].all():
        raise _malformed()
    starts = positions[:-1]
    sizes = positions[1:] - starts - 1
    between = np.flatnonzero((before_open | after_close) & (sizes > 0))
    # Most texts have a space there at most.
    is_blank = _IS_SPACE[array[starts[between] + 1]]
    if is_blank.all() and int(sizes[between].max(initial=0)) > 1:
        used = np.cumsum(~_IS_SPACE[array], dtype=np.int64)
        is_blank = used[positions[1:][between] - 1] == used[starts[between]]
    if not is_blank.all():
        raise _malformed()


def _leaves_with_strings(text: bytes, structures: Iterable[Structure], start: int) -> tuple[bytes, bytes]:
    """As `_leaves`. `structures` has positions that count from `start` before the text."""
    array = np.frombuffer(bytearray(text), np.uint8)
    # The number of bytes of values before each position.
    used = np.concatenate(([0], np.cumsum(~_IS_SPACE[array], dtype=np.int64)))
    nesting: list[bytes] = []
    previous, previous_code = -1, _COMMA
    for found in structures:
        is_nesting = (found.codes == _OPEN) | (found.codes == _CLOSE) | (found.codes == _COMMA)
        codes, positions = found.codes[is_nesting], found.positions[is_nesting] - start
        if not codes.size:
            continue
        starts = np.concatenate(([previous], positions[:-1])) + 1
        previous_codes = np.concatenate((np.array([previous_code], np.uint8), codes[:-1]))
        has_value = used[positions] > used[starts]
        if (has_value & ((codes == _OPEN) | (previous_codes == _CLOSE))).any():
            raise _malformed()
        if ((previous_codes == _CLOSE) & (codes == _OPEN)).any():
            raise _malformed()
        previous, previous_code = int(positions[-1]), int(codes[-1])
        array[positions[codes != _COMMA]] = _SPACE
        nesting.append(codes.tobytes())
    if previous_code == _CLOSE and used[-1] > used[previous + 1]:
        raise _malformed()
    return array.tobytes(), b"".join(nesting)


def _malformed() -> InvalidArgument:
    return InvalidArgument("JSON Parse error: Missing a comma or ] after an array element.")


def _is_long(piece: Span) -> bool:
    """Return whether a piece may have a long string. Its size is that of a piece and of its last value."""
    return piece.stop - piece.start > 2 * _LONG_BYTES


def _take_long_strings(layout: Layout, piece: Span) -> _ShortPiece:
    """Decode the long strings of a piece.

    Raises:
        InvalidArgument: a long value is no string, or is malformed.
    """
    kept: list[bytes] = []
    strings: list[_LongString] = []
    start, previous, leaf = piece.start, _COMMA, 0
    for position, code in _structure(layout, piece):
        if position - start > _LONG_BYTES:
            value = trim(layout.body, Span(start, position))
            if value.stop - value.start > _LONG_BYTES:
                strings.append(_LongString(_decode_string(layout.body, value), leaf, previous == _COLON))
                kept.append(b'""')
            else:
                kept.append(layout.text(value))
        else:
            kept.append(layout.body[start:position])
        kept.append(layout.body[position : position + 1])
        start, previous = position + 1, code
        leaf += code == _COMMA
    # The last "bracket" is the end of the piece.
    return _ShortPiece(b"".join(kept[:-1]), tuple(strings))


def _put_long_strings(values: Array, piece: _ShortPiece) -> None:
    """Put the long strings into `values`, the converted leaves of the piece. Raises InvalidArgument for bad base64."""
    for string in piece.strings:
        values[string.leaf] = _decode_base64(string.value) if string.is_member else string.value


def _structure(layout: Layout, piece: Span) -> Iterator[tuple[int, int]]:
    for _, found in layout.structure(piece):
        yield from zip(found.positions.tolist(), found.codes.tolist(), strict=True)
    yield piece.stop, 0


def _decode_string(body: bytes, span: Span) -> bytes:
    """Return the bytes of the string in `span`, with its quotes."""
    if body[span.start] != _QUOTE or body[span.stop - 1] != _QUOTE:
        raise InvalidArgument(f"JSON Parse error: a value of {span.stop - span.start} bytes is no string")
    return b"".join(_string_parts(body, Span(span.start + 1, span.stop - 1)))


def _string_parts(body: bytes, inner: Span) -> Iterator[bytes]:
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
    return bytes(part).translate(None, _BASE64_SPACE)


def _decode_parts(compact: "memoryview[Any]") -> Iterator[bytes]:
    for start in range(0, len(compact), _PART_BYTES):
        part = bytes(compact[start : start + _PART_BYTES])
        yield binascii.a2b_base64(part + b"=" * (-len(part) % 4), strict_mode=True)
        let_others_run()
