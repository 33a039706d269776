"""Bodies that differ only in the numbers of one JSON list: their layouts, and the numbers of a body with a layout.

The texts before and after the list decide everything else about a request. The *skeleton* of a list is its text without
numbers and whitespace. If simdjson accepts another list with the same skeleton, both have the same nesting. The
skeleton does not determine whether a place holds a number or nothing, so the count of numbers must match, too.
"""

import contextvars
import re
from collections.abc import Callable, Hashable
from itertools import count
from typing import Any, Final, NamedTuple

import numpy as np
import orjson
import simdjson

from tpuserve_server.core.terms.types import Array, ModelSpec
from tpuserve_server.wire.json.numbers import NUMBER_TEXT, REFUSALS, SOURCES, has_slow_numbers, narrow
from tpuserve_server.wire.layouts import Frame, Layout, LayoutStore

# Larger bodies spend their time elsewhere.
_MOST_BYTES: Final = 1 << 14
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
        """Learn with `learn`, which gets a skeleton and its subject. See `LayoutStore` for its obligations."""
        self._learn = learn
        self._store = LayoutStore()
        self._by_kind = self._store.by_kind

    def find(self, spec: ModelSpec, body: bytes, start: int, stop: int) -> tuple[Layout, bytes] | None:
        """Return the layout of a body and the text of its list, or None if a parser must read it.

        The list is at `start` to `stop`. Other places are no error.
        """
        if not 0 <= start < stop or len(body) > _MOST_BYTES:
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


class NumberReader:
    """Reads the numbers of lists in one pass. One event loop's thread owns it, so that all lists share one parser."""

    __slots__ = ("_parse", "_quietly")

    def __init__(self) -> None:
        """Create the parser."""
        self._parse: Callable[[bytes], Any] = simdjson.Parser().parse
        quiet = contextvars.Context()
        quiet.run(np.seterr, over="ignore")
        # Runs a conversion whose overflows are no error. See numbers.narrow.
        self._quietly = quiet.run

    def read(self, text: bytes, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array | None:
        """Return the numbers of a list as the parsers of requests do, or None for another count, type or range.

        The list must have the skeleton of lists of this shape.
        """
        if has_slow_numbers(text):
            return None
        try:
            source, of_type = SOURCES[dtype]
            # No list with this skeleton has more numbers. numpy raises TypeError for fewer.
            array: Array = np.ndarray(shape, source, self._parse(text).as_buffer(of_type=of_type))
            if source is dtype:
                return array
            return self._quietly(array.astype, dtype) if of_type == "d" else narrow(array, dtype)
        except REFUSALS:
            return None


def example_list(skeleton: bytes) -> Example | None:
    """Return a list with this skeleton, or None if it has other values than numbers, or rows of unequal length."""
    numbers = count(1)
    text = _PLACE.sub(lambda _: b"%d" % (next(numbers) % _EXAMPLES), skeleton)
    try:
        return Example(text, np.array(orjson.loads(text), np.float64))
    except (ValueError, TypeError):
        return None
