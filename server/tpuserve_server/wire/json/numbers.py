"""Lists of numbers in JSON, which become arrays without a Python object for each number.

simdjson reads all numbers of a list in one pass, whatever its nesting. The *skeleton* of a list is its text without
numbers and whitespace: it proves that the nesting is regular. A document with long lists keeps them apart, and orjson
parses the rest. None means everywhere: another parser must read the text, and explains its faults.
"""

import math
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any, Final, TypeAlias

import numpy as np
import simdjson

from tpuserve_formats.dtypes import BY_DTYPE
from tpuserve_server.core.system.threads import let_others_run
from tpuserve_server.core.terms.errors import InvalidArgument
from tpuserve_server.core.terms.types import Array
from tpuserve_server.wire.json.body import MEDIUM_BYTES, JsonObject, JsonValue, is_large, parse_json
from tpuserve_server.wire.json.per_thread import per_thread
from tpuserve_server.wire.layouts import NUMBER_TEXT

# numpy's limit on dimensions.
MAX_RANK: Final = 64
# Shorter lists become objects in the same time (python -m benchmarks codecs).
_LONG_LIST: Final = 1 << 11
# A search for lists between more strings would take long.
_MOST_STRINGS: Final = 1 << 9
_BRACKETS: Final = b"[ \t\r\n"
_FIRST: Final = frozenset(b"-0123456789")
# A parser keeps the memory of its largest text.
_KEPT_BYTES: Final = 1 << 16
# Shapes of shorter skeletons are kept, because clients send the same shape repeatedly.
_SHORT_SKELETON: Final = 1 << 11
# Longer skeletons are compared in steps.
_STEP_BYTES: Final = 1 << 18
# simdjson takes up to 20 us for a number with more digits and an exponent. The longest double of Python has 17 digits.
_SLOW_DIGITS: Final = 20
_SHORT_TEXT: Final = 1 << 11
_FEW_EXPONENTS: Final = 8
_MANTISSA: Final = frozenset(b"0123456789.")
_IS_MANTISSA: Final = np.isin(np.arange(256), list(_MANTISSA))
_CASE_BIT: Final = 0x20
# Errors of simdjson, and errors that follow from a value of an unexpected type.
REFUSALS: Final = (TypeError, ValueError, LookupError, RuntimeError, AttributeError, OverflowError)

_Shape: TypeAlias = tuple[int, ...]
# The objects of a document that may hold lists of numbers, each with the names of these members.
_Holders: TypeAlias = Iterable[tuple[JsonObject, Iterable[str]]]


def _source_types() -> dict[np.dtype[Any], tuple[np.dtype[Any], str]]:
    """Return, for each numeric dtype, the dtype that simdjson exports and its type code.

    Float dtypes go through doubles even if the text has integers, as in rapidjson's GetFloat.
    """
    double, signed, unsigned = (np.dtype(np.float64), "d"), (np.dtype(np.int64), "i"), (np.dtype(np.uint64), "u")
    sources: dict[str, tuple[np.dtype[Any], str]] = {"uint64_val": unsigned}
    sources |= dict.fromkeys(("float_val", "double_val", "half_val", "float8_val"), double)
    sources |= dict.fromkeys(("int_val", "int64_val", "uint32_val"), signed)
    return {dtype: sources[wire_type.field] for dtype, wire_type in BY_DTYPE.items() if wire_type.field in sources}


SOURCES: Final = _source_types()


def read_numbers(text: bytes, dtype: np.dtype[Any], shape: _Shape | None = None) -> Array | None:
    """Return the numbers of a list, flat or in a shape, or None for another type, range or fewer numbers.

    Text with the skeleton of lists of `shape` has no more numbers. Holds the GIL for 1.3 ms per megabyte.
    """
    if has_slow_numbers(text):
        return None
    try:
        parse = per_thread.parse if len(text) <= _KEPT_BYTES else simdjson.Parser().parse
        return _exported(parse(text), dtype, shape)
    except REFUSALS:
        return None


def _exported(parsed: Any, dtype: np.dtype[Any], shape: _Shape | None) -> Array:  # noqa: ANN401 (simdjson's array)
    """Return the numbers of simdjson's array. Raises one of REFUSALS."""
    source, of_type = SOURCES[dtype]
    return _array(parsed.as_buffer(of_type=of_type), source, dtype, shape)


def _array(
    buffer: Any,  # noqa: ANN401 (bytes, or a buffer of simdjson)
    source: np.dtype[Any],
    dtype: np.dtype[Any],
    shape: _Shape | None,
) -> Array:
    # numpy raises TypeError for fewer numbers than the shape has.
    array: Array = np.frombuffer(buffer, source) if shape is None else np.ndarray(shape, source, buffer)
    if source is dtype:
        return array
    if source.kind == "f":
        # Doubles out of range become infinities.
        narrowed: Array = per_thread.quietly(array.astype, dtype)
        return narrowed
    info = np.iinfo(dtype)
    if array.min() < info.min or array.max() > info.max:
        raise ValueError
    return array.astype(dtype)


class NumberList:
    """A list in a document that begins with a number. It holds several times the memory of its text."""

    __slots__ = ("_parsed", "_view")

    def __init__(self, view: memoryview) -> None:
        """Parse the text. Raises one of REFUSALS if it is no JSON."""
        self._view = view
        self._parsed: Any = simdjson.Parser().parse(view)

    @property
    def text(self) -> bytes:
        """The text of the list, copied."""
        return bytes(self._view)

    def flat(self, dtype: np.dtype[Any]) -> Array | None:
        """Return all numbers, or None if a value is not of the dtype."""
        try:
            return _exported(self._parsed, dtype, None)
        except REFUSALS:
            return None

    def nested(self, dtype: np.dtype[Any]) -> Array | None:
        """Return the array, or None if a value is not of the dtype, or the nesting is not that of an array."""
        stacked = NumberList.stacked([self], dtype)
        return None if stacked is None else stacked[0]

    @staticmethod
    def stacked(lists: "list[NumberList]", dtype: np.dtype[Any]) -> Array | None:
        """Return lists of one shape as one array, or None as `nested` does."""
        shapes = {shape_of(each.text.translate(None, NUMBER_TEXT)) for each in lists}
        shape = shapes.pop()
        if shape is None or shapes:
            return None
        try:
            source, of_type = SOURCES[dtype]
            buffers = [each._parsed.as_buffer(of_type=of_type) for each in lists]
            size_bytes = source.itemsize * math.prod(shape)
            if any(len(memoryview(buffer).cast("B")) != size_bytes for buffer in buffers):
                return None
            whole = buffers[0] if len(buffers) == 1 else b"".join(buffers)
            return _array(whole, source, dtype, (len(lists), *shape))
        except REFUSALS:
            return None


def parse_quickly(
    body: bytes, holders: Callable[[JsonValue], _Holders], parse: Callable[[bytes], JsonValue] = parse_json
) -> JsonValue:
    """Parse a body, which is not null, in a millisecond. Return None for one that takes longer.

    Long lists of numbers become NumberLists if they are members of `holders`, which gets the document. The size of a
    body, and the number of its other values, bound the memory of its objects: 2 MiB. `parse` parses all else, and
    raises InvalidArgument.
    """
    if len(body) > MEDIUM_BYTES:
        return None
    document = _parse_apart(body, holders, parse) if len(body) > _LONG_LIST else None
    if document is not None:
        return document
    return None if is_large(body) else parse(body)


def _parse_apart(
    body: bytes, holders: Callable[[JsonValue], _Holders], parse: Callable[[bytes], JsonValue]
) -> JsonValue:
    """Parse a body with long lists of numbers, or return None if it has none, or is unusual."""
    if b"\\" in body:
        # Quotes may be escaped.
        return None
    lists: dict[str, NumberList] = {}
    rest: list[bytes] = []
    # `start` is outside of strings.
    kept = start = 0
    for _ in range(_MOST_STRINGS):
        quote = body.find(b'"', start)
        stop = len(body) if quote < 0 else quote
        if stop - start > _LONG_LIST and (span := _find_list(body, start, stop)) is not None:
            # No other string has an escape.
            rest += (body[kept : span.start], b'"\\u0000%d"' % len(lists))
            kept = span.stop
            try:
                lists[f"\0{len(lists)}"] = NumberList(memoryview(body)[span])
            except REFUSALS:
                return None
        start = body.find(b'"', quote + 1) + 1
        if quote < 0 or not start:
            break
    else:
        return None
    rest.append(body[kept:])
    if not lists or is_large(small := b"".join(rest)):
        return None
    try:
        document = parse(small)
    except InvalidArgument:
        # The whole body has the positions of faults.
        return None
    for holder, names in holders(document):
        for name in names:
            value = holder.get(name)
            if type(value) is str and value in lists:
                holder[name] = lists.pop(value)
    return None if lists else document


def _find_list(body: bytes, start: int, stop: int) -> "slice[int, int, None] | None":
    """Return the place of a long list of numbers between two places without strings, or None."""
    first = body.find(b"[", start, stop)
    brace = body.find(b"}", start, stop)
    last = body.rfind(b"]", first, stop if brace < 0 else brace) + 1
    if first < 0 or last - first <= _LONG_LIST or body[last : last + MAX_RANK].lstrip()[:1] == b":":
        return None
    number = body[first : first + MAX_RANK].lstrip(_BRACKETS)[:1]
    if not number or number[0] not in _FIRST:
        return None
    return None if has_slow_numbers(body, first, last) else slice(first, last)


def has_slow_numbers(text: bytes, start: int = 0, stop: int | None = None) -> bool:
    """Return whether a number in a text may take simdjson so long that many of them hold the GIL too long."""
    stop = len(text) if stop is None else stop
    if stop - start <= _SHORT_TEXT:
        return False
    for exponent in (b"e", b"E"):
        position = text.find(exponent, start, stop)
        for _ in range(_FEW_EXPONENTS):
            if position < 0:
                break
            if _MANTISSA.issuperset(text[max(0, position - _SLOW_DIGITS) : position]):
                return True
            position = text.find(exponent, position + 1, stop)
        else:
            return _has_slow_number(np.frombuffer(text, np.uint8)[start:stop])
    return False


def _has_slow_number(text: "np.ndarray[Any, np.dtype[np.uint8]]") -> bool:
    """Search all exponents of a text for a slow number."""
    ends = np.flatnonzero((text | _CASE_BIT) == ord("e"))
    ends = ends[ends >= _SLOW_DIGITS]
    for before in range(_SLOW_DIGITS, 0, -1):
        if not ends.size:
            return False
        ends = ends[_IS_MANTISSA[text[ends - before]]]
    return bool(ends.size)


def shape_of(skeleton: bytes) -> _Shape | None:
    """Return the shape of nested lists, or None if they are not regular.

    A list of one number and an empty list look the same. The result has size 1 for both, so the caller must check the
    count of numbers. Pauses between the steps of a long comparison.
    """
    return _short_shape(skeleton) if len(skeleton) <= _SHORT_SKELETON else _find_shape(skeleton)


def _find_shape(skeleton: bytes) -> _Shape | None:
    start = skeleton[: MAX_RANK + 1]
    rank = len(start) - len(start.lstrip(b"["))
    if rank > MAX_RANK:
        return None
    shape: list[int] = []
    # The length of the first list of the level before. It begins one bracket later.
    unit = 0
    for level in range(1, rank + 1):
        # The first list of this level ends at the first run of as many brackets.
        end = find_text(skeleton, b"]" * level)
        first, stop = rank - level, end + level
        size, rest = divmod(stop - first - 1, unit + 1)
        if end < 0 or rest or size < 1 or not _repeats(skeleton, first + 1, stop - 1, unit):
            return None
        shape.insert(0, size)
        unit = stop - first
    return tuple(shape) if unit == len(skeleton) else None


_short_shape = lru_cache(maxsize=256)(_find_shape)


def find_text(text: bytes, wanted: bytes) -> int:
    """Find `wanted` as `text.find` does, in steps that do not hold the GIL for long."""
    for start in range(0, len(text), _STEP_BYTES):
        found = text.find(wanted, start, start + _STEP_BYTES + len(wanted) - 1)
        if found >= 0:
            return found
        if len(text) > _STEP_BYTES:
            let_others_run()
    return -1


def _repeats(skeleton: bytes, start: int, stop: int, unit: int) -> bool:
    """Return whether the text from `start` to `stop` repeats its first `unit` characters, with a comma between."""
    step = unit + 1
    if stop - start < step:
        return True
    if skeleton[start + unit] != ord(","):
        return False
    for at in range(start, stop - step, _STEP_BYTES):
        end = min(at + _STEP_BYTES, stop - step)
        if skeleton[at:end] != skeleton[at + step : end + step]:
            return False
        if stop - start > _STEP_BYTES:
            let_others_run()
    return True
