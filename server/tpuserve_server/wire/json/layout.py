"""The structure of a large JSON body, found before a parser makes objects from it: depth, counts and members.

numpy scans the body in chunks outside the GIL, so that other threads run meanwhile. The scan does not check the syntax
of values. Parsers check it piece by piece, where the pieces begin and end at commas.
"""

import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import orjson

from tpuserve_server.core.serving.budgets import STRING_BYTES, DecodedBudget
from tpuserve_server.core.system.threads import let_others_run
from tpuserve_server.core.terms.errors import InvalidArgument, shown
from tpuserve_server.wire.json.body import MAX_DEPTH, without_mark

Bytes: TypeAlias = np.ndarray[Any, np.dtype[np.uint8]]
Positions: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]

# A chunk's arrays fit a processor's cache, and no operation on a chunk takes more than about a millisecond.
_CHUNK_BYTES: Final = 1 << 17
# More than a model has inputs.
_MAX_MEMBERS: Final = 1 << 12
# A longer name is none of an input. Parsing it would hold the GIL.
_MAX_NAME_BYTES: Final = 1 << 16
# The tensors of the Open Inference Protocol are objects at depth 3. The structure of most bodies down to this depth is
# small, and is kept.
_SHALLOW_DEPTH: Final = 3
_MOST_SHALLOW: Final = 1 << 13

_WHITESPACE: Final = b" \t\r\n"
_BLANK_BYTES: Final = 1 << 16
QUOTE, COMMA, _COLON = ord('"'), ord(","), ord(":")
# The bit that distinguishes [ from { and ] from }.
SHAPE_BIT: Final = 0x20
OPEN, _CLOSE = ord("["), ord("]")

# Memory of a value in arrays: the longest number, its comma twice, and a list's brackets twice.
_VALUE_BYTES: Final = 8 + 2
_NESTING_BYTES: Final = 4
# Memory of Python's objects in a parsed document: a list, an object, and a number or a member.
_LIST_BYTES: Final = 64
_OBJECT_BYTES: Final = 240
_ITEM_BYTES: Final = 32


# The first lists of a value. More whitespace between them ends the match.
_LISTS: Final = re.compile(rb"(?:[ \t\r\n]{0,64}\[){1,128}")


class Span(NamedTuple):
    """A part of the body."""

    start: int
    stop: int


class _Chunk(NamedTuple):
    """The state at the start of a chunk."""

    in_string: bool
    is_escaped: bool
    depth: int


class Structure(NamedTuple):
    """Brackets, braces, commas and colons outside strings: positions, bytes, and the depth after each."""

    positions: Positions
    codes: Bytes
    depths: Positions

    def part(self, index: "slice[int, int] | Positions") -> "Structure":
        """Return the entries at an index."""
        return Structure(self.positions[index], self.codes[index], self.depths[index])


class _Shallow:
    """Collects the structure down to _SHALLOW_DEPTH."""

    __slots__ = ("_is_small", "_parts", "_size")

    def __init__(self) -> None:
        self._parts: list[Structure] = []
        self._size = 0
        self._is_small = True

    def add(self, found: Structure) -> None:
        """Add a chunk."""
        if not self._is_small:
            return
        index = np.flatnonzero(found.depths <= _SHALLOW_DEPTH)
        self._size += len(index)
        self._is_small = self._size <= _MOST_SHALLOW
        self._parts = [*self._parts, found.part(index)] if self._is_small else []

    def joined(self) -> Structure | None:
        """Return all chunks, or None if they are large."""
        if not self._is_small or not self._parts:
            return None
        return Structure(*map(np.concatenate, zip(*self._parts, strict=True)))


class Layout:
    """The structure of one body. `members` are those of the document, by their parsed names."""

    def __init__(self, body: bytes, budget: DecodedBudget) -> None:
        """Scan the body.

        Raises:
            InvalidArgument: the body nests too deep, has too many members, is cut off, or its arrays would take
                more than `budget`.
        """
        self.body = without_mark(body)
        self._chunks: list[_Chunk] = []
        # The chunk that was read last.
        self._last: tuple[int, Structure] | None = None
        self._counts = np.zeros(256, np.int64)
        self._quotes = 0
        self._top: list[tuple[int, int, int]] = []
        # All structure down to _SHALLOW_DEPTH, or None if it is large.
        self._shallow: Structure | None = None
        self._scan(budget)
        self._check_document()
        self.members: dict[str, Span] = _split_members(self.body, self._top, 1)

    def members_of(self, span: Span) -> dict[str, Span]:
        """Return the members of the object that `span` holds, which must begin with a brace.

        Raises:
            InvalidArgument: the object has too many members, or two of the same name.
        """
        top: list[tuple[int, int, int]] = []
        depth = self._shallow_depth(span)
        for _, found in self.structure(span, depth):
            if depth is None and found.depths.size:
                depth = int(found.depths[0])
            if depth is not None:
                _add_own(top, found, depth)
        assert depth is not None
        if self.first(Span(top[-1][0] + 1, span.stop)):
            raise InvalidArgument("JSON Parse error: Missing a comma or } after an object member.")
        return _split_members(self.body, top, depth)

    def first(self, span: Span) -> bytes:
        """Return the first character of a value, or none if it is blank."""
        start = trim(self.body, span).start
        return self.body[start : min(start + 1, span.stop)]

    def inner(self, span: Span) -> Span | None:
        """Return the text between the brackets of a list, or None for another value."""
        start, stop = trim(self.body, span)
        is_list = stop - start > 1 and self.body[start] == OPEN and self.body[stop - 1] == _CLOSE
        return Span(start + 1, stop - 1) if is_list else None

    def structure(self, span: Span, depth: int | None = None) -> Iterator[tuple[Span, Structure]]:
        """Yield the structure of `span` chunk by chunk, each with the part of the body that it covers.

        With `depth`, deeper structure may be missing.
        """
        if depth is not None and depth <= _SHALLOW_DEPTH and self._shallow is not None:
            first, last = np.searchsorted(self._shallow.positions, span).tolist()
            yield span, self._shallow.part(slice(first, last))
            return
        for index in range(span.start // _CHUNK_BYTES, -(-span.stop // _CHUNK_BYTES)):
            start = index * _CHUNK_BYTES
            found = self._chunk(index)
            inside = (found.positions >= span.start) & (found.positions < span.stop)
            part = Span(max(start, span.start), min(start + _CHUNK_BYTES, span.stop))
            yield part, Structure(found.positions[inside], found.codes[inside], found.depths[inside])

    def _chunk(self, index: int) -> Structure:
        """Return the structure of a chunk. Pieces of one chunk share it."""
        if self._last is None or self._last[0] != index:
            found, _, _ = _read_chunk(self.body, index * _CHUNK_BYTES, self._chunks[index])
            self._last = index, found
            let_others_run()
        return self._last[1]

    def starts_deeper(self, span: Span, levels: int) -> bool:
        """Return whether the value in `span` begins with more than that number of lists, before anything is built."""
        opened = _LISTS.match(self.body, span.start, span.stop)
        return opened is not None and self.body.count(b"[", *opened.span()) > levels

    def pieces(self, span: Span, size_bytes: int, depth: int | None = None) -> Iterator[Span]:
        """Cut `span` at commas into pieces of at least `size_bytes`, except the last. The commas are in no piece.

        With `depth`, cut only at commas of this depth.
        """
        if depth is None and not self.has_quotes(span):
            yield from self._plain_pieces(span, size_bytes)
            return
        start = span.start
        for _, found in self.structure(span, depth):
            is_cut = found.codes == COMMA
            if depth is not None:
                is_cut &= found.depths == depth
            commas = found.positions[is_cut]
            while (index := int(np.searchsorted(commas, start + size_bytes))) < len(commas):
                stop = int(commas[index])
                yield Span(start, stop)
                start = stop + 1
        yield Span(start, span.stop)

    def text(self, span: Span) -> bytes:
        """Return the text of `span`."""
        return self.body[span.start : span.stop]

    def _plain_pieces(self, span: Span, size_bytes: int) -> Iterator[Span]:
        """As `pieces`, for a span without strings, where every comma separates values."""
        start = span.start
        while (stop := self.body.find(b",", start + size_bytes, span.stop)) >= 0:
            yield Span(start, stop)
            start = stop + 1
        yield Span(start, span.stop)

    def has_quotes(self, span: Span) -> bool:
        """Return whether there is a string in `span`."""
        for start in range(span.start, span.stop, _CHUNK_BYTES):
            if self.body.find(b'"', start, min(start + _CHUNK_BYTES, span.stop)) >= 0:
                return True
            let_others_run()
        return False

    def _shallow_depth(self, span: Span) -> int | None:
        """Return the depth inside of the object that `span` holds if the shallow structure has it, or else None."""
        if self._shallow is None:
            return None
        positions = self._shallow.positions
        start = trim(self.body, span).start
        index = int(np.searchsorted(positions, start))
        return int(self._shallow.depths[index]) if index < len(positions) and positions[index] == start else None

    def _scan(self, budget: DecodedBudget) -> None:
        shallow = _Shallow()
        state = _Chunk(False, False, 0)
        for start in range(0, len(self.body), _CHUNK_BYTES):
            self._chunks.append(state)
            found, quotes, state = _read_chunk(self.body, start, state)
            self._quotes += quotes
            self._count(found)
            budget.check(self._array_bytes(), self._parts())
            shallow.add(found)
            let_others_run()
        self._shallow = shallow.joined()
        if state.depth or state.in_string:
            raise InvalidArgument("JSON Parse error: the document ends inside a value")

    def _count(self, found: Structure) -> None:
        if not found.codes.size:
            return
        if int(found.depths.max()) > MAX_DEPTH:
            raise InvalidArgument(f"JSON Parse error: nested more than {MAX_DEPTH} levels deep")
        if int(found.depths.min()) < 0:
            raise InvalidArgument("JSON Parse error: a bracket closes no value")
        for code in b"[{,:":
            self._counts[code] += np.count_nonzero(found.codes == code)
        _add_own(self._top, found, 1)

    def check_objects(self, budget: DecodedBudget) -> None:
        """Check the memory of the whole document as Python objects. Raises InvalidArgument if it exceeds `budget`."""
        counts = self._counts
        lists, objects = counts[OPEN] * _LIST_BYTES, counts[ord("{")] * _OBJECT_BYTES
        items = (counts[COMMA] + counts[_COLON]) * _ITEM_BYTES
        budget.check(int(lists + objects + items) + self._quotes // 2 * STRING_BYTES, self._parts())

    def _array_bytes(self) -> int:
        """Return the memory of all values in arrays. The names of members are in none."""
        counts = self._counts
        strings = max(0, self._quotes // 2 - int(counts[_COLON]))
        numbers, lists = int(counts[COMMA]) * _VALUE_BYTES, int(counts[OPEN]) * _NESTING_BYTES
        return numbers + lists + strings * STRING_BYTES

    def _parts(self) -> str:
        counts = self._counts
        return (
            f"{counts[COMMA]} commas, {counts[OPEN]} lists, {counts[ord('{')]} objects and {self._quotes // 2} "
            "strings so far"
        )

    def _check_document(self) -> None:
        top = self._top
        if len(top) < 2 or self.first(Span(0, len(self.body))) != b"{":
            raise InvalidArgument("JSON Parse error: the document is not an object")
        end = Span(top[-1][0] + 1, len(self.body))
        if [depth for _, _, depth in top].index(0) != len(top) - 1 or self.first(end):
            raise InvalidArgument("JSON Parse error: text follows the document")


def read_structure(text: bytes) -> Iterator[Structure]:
    """Yield the structure of a text that begins outside a string, chunk by chunk. Depths count from its start."""
    state = _Chunk(False, False, 0)
    for start in range(0, len(text), _CHUNK_BYTES):
        found, _, state = _read_chunk(text, start, state)
        yield found


def _add_own(top: list[tuple[int, int, int]], found: Structure, depth: int) -> None:
    """Add an object's own structure to `top`: its braces, and the commas and colons at `depth`."""
    is_close = (found.codes | SHAPE_BIT) == (_CLOSE | SHAPE_BIT)
    is_open = (found.codes | SHAPE_BIT) == (OPEN | SHAPE_BIT)
    # A bracket that closes a member's value ends at this depth, too.
    is_own = np.where(is_open, found.depths == depth, np.where(is_close, found.depths < depth, found.depths <= depth))
    own = np.flatnonzero(is_own)[: 2 * _MAX_MEMBERS + 3]
    top.extend(zip(found.positions[own].tolist(), found.codes[own].tolist(), found.depths[own].tolist(), strict=True))
    if len(top) > 2 * _MAX_MEMBERS + 2:
        raise InvalidArgument(f"JSON Parse error: the document has an object with more than {_MAX_MEMBERS} members")


def _split_members(body: bytes, top: list[tuple[int, int, int]], depth: int) -> dict[str, Span]:
    """Split an object at its own commas and colons, from its structure. `depth` is that inside the object."""
    first, last = top[0][0], top[-1][0]
    members: dict[str, Span] = {}
    inner = trim(body, Span(first + 1, last))
    if len(top) == 2 and inner.start == inner.stop:
        return members
    ends = [position for position, code, at in top if code == COMMA or at < depth]
    colons = [position for position, code, _ in top if code == _COLON]
    starts = [first, *ends[:-1]]
    if len(colons) != len(starts):
        raise InvalidArgument("JSON Parse error: a member has no value")
    for start, colon, end in zip(starts, colons, ends, strict=True):
        name = _parse_name(body, trim(body, Span(start + 1, colon)) if start < colon < end else Span(0, 0))
        if name in members:
            raise InvalidArgument(f"JSON Parse error: duplicate key: {shown(name)}")
        members[name] = Span(colon + 1, end)
    return members


def trim(body: bytes, span: Span) -> Span:
    """Return `span` without whitespace at its ends."""
    start, stop = span
    while start < stop:
        part = body[start : min(start + _BLANK_BYTES, stop)]
        rest = part.lstrip(_WHITESPACE)
        start += len(part) - len(rest)
        if rest:
            break
        let_others_run()
    while start < stop:
        part = body[max(stop - _BLANK_BYTES, start) : stop]
        rest = part.rstrip(_WHITESPACE)
        stop -= len(part) - len(rest)
        if rest:
            break
        let_others_run()
    return Span(start, stop)


def _parse_name(body: bytes, span: Span) -> str:
    if span.stop - span.start > _MAX_NAME_BYTES:
        raise InvalidArgument(f"JSON Parse error: a name has more than {_MAX_NAME_BYTES} bytes")
    try:
        name = orjson.loads(body[span.start : span.stop])
    except orjson.JSONDecodeError:
        name = None
    if type(name) is not str:
        raise InvalidArgument("JSON Parse error: Missing a name for object member.")
    return name


def _read_chunk(body: bytes, start: int, state: _Chunk) -> tuple[Structure, int, _Chunk]:
    """Return the structure of the chunk at `start`, the number of its quotes, and the state after it."""
    text, is_escaped = _without_escapes(body[start : start + _CHUNK_BYTES], state.is_escaped)
    array = np.frombuffer(text, np.uint8)
    folded = array | SHAPE_BIT
    is_found = (folded == (OPEN | SHAPE_BIT)) | (folded == (_CLOSE | SHAPE_BIT))
    is_found |= (array == COMMA) | (array == _COLON)
    is_quote = array == QUOTE
    quotes = int(np.count_nonzero(is_quote))
    if quotes:
        # The parity of the quotes before each byte. A byte wraps around without changing it.
        is_inside = (np.cumsum(is_quote, dtype=np.uint8) & 1).view(np.bool_) ^ state.in_string
        is_found &= ~is_inside
    elif state.in_string:
        is_found[:] = False
    positions = np.flatnonzero(is_found)
    codes = array[positions]
    steps = ((codes | SHAPE_BIT) == (OPEN | SHAPE_BIT)).astype(np.int64)
    steps -= (codes | SHAPE_BIT) == (_CLOSE | SHAPE_BIT)
    depths = np.cumsum(steps) + state.depth
    after = _Chunk(state.in_string ^ bool(quotes & 1), is_escaped, int(depths[-1]) if depths.size else state.depth)
    return Structure(positions + start, codes, depths), quotes, after


def _without_escapes(text: bytes, is_escaped: bool) -> tuple[bytes, bool]:
    """Replace escaped quotes and backslashes. Return whether the byte after the text is escaped."""
    if is_escaped:
        text = b"_" + text[1:]
    if b"\\" not in text:
        return text, False
    text = text.replace(rb"\\", b"__").replace(rb"\"", b"__")
    return text, text.endswith(b"\\")
