"""Layouts: messages that differ only in the contents of their tensors, so that one parse serves all of them.

A layout is everything in a serialized message except these contents: its length, and every byte outside of them. A
message that has both gets the model, the names, the dtypes and the shapes of the layout. Only its contents are read,
and its id if the protocol has one. The subject of a message is the part that its protocol sends outside of it, such as
HTTP's path. Each subject has its own layouts.

Bodies that differ only in the numbers of one JSON list have a layout, too. The texts before and after the list decide
everything else about a request. The *skeleton* of a list is its text without numbers and whitespace. If simdjson
accepts another list with the same skeleton, both have the same nesting. The skeleton does not determine whether a place
holds a number or nothing, so the count of numbers must match, too.
"""

import re
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from itertools import count
from typing import Any, Final, Generic, NamedTuple, TypeVar

import numpy as np
import orjson

from tpuserve_server.core.terms.types import Array, Body, ModelSpec

# Layouts of a process. Each keeps at most _MOST_FRAME_BYTES, and the values that its user binds to it.
MOST_LAYOUTS: Final = 64
_MOST_OF_A_KIND: Final = 8
_MOST_FRAME_BYTES: Final = 4096
# Learning from larger messages would block the event loop.
MOST_BYTES: Final = 1 << 20
MOST_TENSORS: Final = 32
# A layout costs as much as three messages. Messages without a layout pay for it: one in this many may become one.
_PRICE: Final = 16
_MOST_CREDIT: Final = _PRICE * MOST_LAYOUTS
# Kinds that were seen once.
_MOST_SEEN: Final = 256
_Subject = TypeVar("_Subject", bound=Hashable)
# Translates contents to others.
_OTHER_BYTES: Final = bytes(byte ^ 0x55 for byte in range(256))


class Unusual(Exception):
    """A message may be valid, but is not one that a layout describes."""


class Span(NamedTuple):
    """The contents of one tensor in a message: its bytes from `start` to `stop` are the values in the tensor's order.

    Any bytes must be valid contents.
    """

    name: str
    dtype: np.dtype[np.generic]
    shape: tuple[int, ...]
    start: int
    stop: int


class Frame(NamedTuple):
    """What a parser learned from one message: its spec, the outputs that it requests, and where its tensors are.

    `id_span` is the place of the request's id, whose bytes may be any ASCII text. `form` has the other facts that
    the response depends on.
    """

    spec: ModelSpec
    output_filter: tuple[str, ...]
    spans: tuple[Span, ...]
    id_span: tuple[int, int] | None = None
    form: Any = None


def check_frame(body: Body, places: Sequence[tuple[int, int]]) -> None:
    """Check that few bytes are outside of `places`, before a parser makes objects of them. Raises Unusual."""
    if len(body) - sum(stop - start for start, stop in places) > _MOST_FRAME_BYTES:
        raise Unusual


def with_other_contents(body: Body, spans: Sequence[Span]) -> bytearray:
    """Return a message with other contents in the places of its tensors, for the proof of a layout."""
    other = bytearray(body)
    for span in spans:
        other[span.start : span.stop] = body[span.start : span.stop].translate(_OTHER_BYTES)
    return other


class Layout:
    """The messages of one kind and one frame. All messages of a kind have the same length."""

    __slots__ = ("_id", "_pieces", "_tensors", "bound", "form", "is_used", "kind", "output_filter", "spec")

    def __init__(self, frame: Frame, body: Body, kind: Hashable) -> None:
        """Accept the messages that equal `body` outside of the spans of `frame`."""
        self.spec = frame.spec
        self.output_filter = frame.output_filter
        self.form = frame.form
        self.kind = kind
        self._id = frame.id_span
        places = [(span.start, span.stop) for span in frame.spans]
        self._pieces = _pieces_between(places if frame.id_span is None else [*places, frame.id_span], body)
        self._tensors = tuple((name, shape, dtype, start) for name, dtype, shape, start, _ in frame.spans)
        # Whether a message had this layout since the last search for one to forget.
        self.is_used = False
        # The user's facts about messages of this layout. They are forgotten with it.
        self.bound: object | None = None

    def fits(self, body: Body) -> bool:
        """Return whether `body`, of this `kind`, has this layout."""
        for start, piece in self._pieces:
            if not body.startswith(piece, start):
                return False
        return self.read_id(body).isascii()

    def read_id(self, body: Body) -> bytes:
        """Return the id of a message that fits, or b"" if the messages have none."""
        if self._id is None:
            return b""
        start, stop = self._id
        return bytes(body[start:stop])

    def inputs(self, body: Body) -> dict[str, Array]:
        """Return the tensors of a message that fits, as read-only views of its bytes."""
        contents = body if type(body) is bytes else memoryview(body).toreadonly()
        return {name: np.ndarray(shape, dtype, contents, start) for name, shape, dtype, start in self._tensors}

    @property
    def frame_bytes(self) -> int:
        """Number of bytes outside of the contents."""
        return sum(len(piece) for _, piece in self._pieces)


class _LayoutStore:
    """Layouts by their kind. One event loop's thread owns it.

    The cost of messages without a layout is bounded, whatever clients send. A kind is only noted the first time, and
    each message buys a sixteenth of an attempt to learn. Layouts that no message has had for a while leave first. A
    client whose layout had to leave pays with a few messages to get it back.
    """

    def __init__(self) -> None:
        """Start without layouts."""
        # Users find layouts here, set `is_used`, and change nothing else. A method would cost each message a frame.
        self.by_kind: dict[Hashable, list[Layout]] = {}
        # All layouts, the next candidate to forget first.
        self._all: deque[Layout] = deque()
        self._seen: dict[Hashable, None] = {}
        self._credit = _MOST_CREDIT

    def __len__(self) -> int:
        """Return the number of layouts."""
        return len(self._all)

    def consider(self, kind: Hashable, learn: Callable[[], Layout | None]) -> None:
        """Learn the layout of a message for those that follow, if its kind was seen before and there is credit.

        `learn` returns None for a message without a layout, raises nothing, and is quick.
        """
        if self._credit < _MOST_CREDIT:
            self._credit += 1
        if kind not in self._seen:
            if len(self._seen) >= _MOST_SEEN:
                del self._seen[next(iter(self._seen))]
            self._seen[kind] = None
        elif self._credit >= _PRICE:
            self._credit -= _PRICE
            layout = learn()
            if layout is not None:
                self._add(layout)

    def _add(self, layout: Layout) -> None:
        if layout.frame_bytes > _MOST_FRAME_BYTES:
            return
        if len(self.by_kind.get(layout.kind, ())) >= _MOST_OF_A_KIND:
            self._forget(layout.kind)
        elif len(self._all) >= MOST_LAYOUTS:
            self._forget(None)
        self.by_kind.setdefault(layout.kind, []).append(layout)
        self._all.append(layout)

    def _forget(self, kind: Hashable | None) -> None:
        """Forget the first layout that is not used, of `kind` if it is given. All others get a second chance."""
        for _ in range(2 * len(self._all)):
            layout = self._all.popleft()
            if layout.is_used or kind not in (None, layout.kind):
                layout.is_used = layout.is_used and kind not in (None, layout.kind)
                self._all.append(layout)
                continue
            siblings = self.by_kind[layout.kind]
            siblings.remove(layout)
            if not siblings:
                del self.by_kind[layout.kind]
            return


class Layouts(Generic[_Subject]):
    """The layouts of one method's messages, by their subject and length. One event loop's thread owns it."""

    def __init__(self, learn: Callable[[Body, _Subject], Frame | None]) -> None:
        """Learn with `learn`, which returns None for a message without a layout, raises nothing, and is quick.

        It runs on the event loop for messages that no one has checked. It must check the frame before it parses.
        """
        self._learn = learn
        self._store = _LayoutStore()
        self._by_kind = self._store.by_kind

    def find(self, body: Body, subject: _Subject) -> Layout | None:
        """Return the layout of a serialized message, or None if a parser must read it."""
        kind = (subject, len(body))
        for layout in self._by_kind.get(kind, ()):
            if layout.fits(body):
                layout.is_used = True
                return layout
        self._store.consider(kind, lambda: self._learned(body, subject))
        return None

    def __len__(self) -> int:
        """Return the number of layouts."""
        return len(self._store)

    def _learned(self, body: Body, subject: _Subject) -> Layout | None:
        frame = self._learn(body, subject) if len(body) <= MOST_BYTES else None
        return None if frame is None else Layout(frame, body, (subject, len(body)))


def _pieces_between(places: Sequence[tuple[int, int]], body: Body) -> tuple[tuple[int, bytes], ...]:
    """Return the parts of `body` outside of the places, each with its position, if they have bytes."""
    pieces, position = [], 0
    for start, stop in sorted(places):
        pieces.append((position, bytes(body[position:start])))
        position = stop
    pieces.append((position, bytes(body[position:])))
    return tuple((start, piece) for start, piece in pieces if piece)


# All characters of numbers and of the whitespace between tokens.
NUMBER_TEXT: Final = b"0123456789+-.eE \t\r\n"
# Larger bodies with a list spend their time elsewhere.
_MOST_LIST_BYTES: Final = 1 << 14
_MOST_SKELETON_BYTES: Final = 1 << 11
# Longer texts around the list, and longer names of models, would be kept in memory with the subjects that were seen.
_MOST_AROUND: Final = 1 << 10
_START: Final = 64
_STRUCTURE: Final = b"[],"
# Each place of a number in a skeleton.
_PLACE: Final = re.compile(rb"(?<=[\[,])(?=[,\]])")
# Numbers of an example, which every dtype holds.
_EXAMPLES: Final = 97


class ListSubject(NamedTuple):
    """The parts of a REST request outside of the list: the model, and the texts before and after it."""

    spec: ModelSpec
    before: bytes
    after: bytes


class Example(NamedTuple):
    """The text of a list with a given skeleton, and its numbers as doubles in the list's shape."""

    text: bytes
    numbers: Array


class NumberLists:
    """The layouts of one method's bodies. One event loop's thread owns it."""

    def __init__(self, learn: Callable[[bytes, ListSubject], Frame | None]) -> None:
        """Learn with `learn`, which gets a skeleton and its subject. See `_LayoutStore` for its obligations."""
        self._learn = learn
        self._store = _LayoutStore()
        self._by_kind = self._store.by_kind

    def find(self, spec: ModelSpec, body: bytes, start: int, stop: int) -> tuple[Layout, bytes] | None:
        """Return the layout of a body and the text of its list, or None if a parser must read it.

        The list is at `start` to `stop`. Other places are no error. `read_numbers` reads it.
        """
        if not 0 <= start < stop or len(body) > _MOST_LIST_BYTES:
            return None
        # A quote near its start shows a list of strings or objects.
        if -1 < body.find(b'"', start, start + _START) < stop:
            return None
        text, before, after = body[start:stop], body[:start], body[stop:]
        skeleton = text.translate(None, NUMBER_TEXT)
        # The fields of the spec, because its own hash takes longer.
        kind = (spec.name, spec.version, spec.version_label, before, after, skeleton)
        found = self._by_kind.get(kind)
        if found is None:
            self._consider(kind, ListSubject(spec, before, after), skeleton)
            return None
        # The kind has the whole frame.
        layout = found[0]
        layout.is_used = True
        return layout, text

    def _consider(self, kind: Hashable, subject: ListSubject, skeleton: bytes) -> None:
        spec, before, after = subject
        if len(before) + len(after) + len(spec.name) > _MOST_AROUND or len(skeleton) > _MOST_SKELETON_BYTES:
            return
        # A skeleton of something else than numbers.
        if skeleton.translate(None, _STRUCTURE):
            return

        def learn() -> Layout | None:
            frame = self._learn(skeleton, subject)
            return None if frame is None else Layout(frame, skeleton, kind)

        self._store.consider(kind, learn)


def example_list(skeleton: bytes) -> Example | None:
    """Return a list with this skeleton, or None if it has other values than numbers, or rows of unequal length."""
    numbers = count(1)
    text = _PLACE.sub(lambda _: b"%d" % (next(numbers) % _EXAMPLES), skeleton)
    try:
        return Example(text, np.array(orjson.loads(text), np.float64))
    except (ValueError, TypeError):
        return None
