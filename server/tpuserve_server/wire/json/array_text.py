"""JSON text of arrays and of nested lists of arrays and strings, with bare tokens for numbers that are not finite.

The text is written in parts of at most about a millisecond. Between them, other threads run. Memory is that of the
text: orjson would take about 100 bytes for each list in an array, and more for each level of nesting.
"""

from binascii import b2a_base64
from codecs import getincrementaldecoder
from collections.abc import Iterator, Sequence
from itertools import accumulate
from operator import mul
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import orjson

from tpuserve_formats.dtypes import DType
from tpuserve_server.core.system.threads import let_others_run
from tpuserve_server.core.terms.types import Array, Tensors

# orjson holds the GIL for a millisecond at most to write so many numbers and lists.
_PART_NODES: Final = 1 << 15
# Characters of strings that orjson writes in the same time. A string counts as more than its characters.
_PART_CHARACTERS: Final = 1 << 18
# Longer strings are written in parts of this size. Base64 needs a multiple of three.
_LONG_STRING: Final = 3 << 16
_STRING_CHARACTERS: Final = 64
# Arrays of at most so many strings, none of which is long, are written at once.
_FEW_STRINGS: Final = 8
_TEXTS: Final = frozenset((str, bytes))
_FEW_NUMBERS: Final = 1 << 10
_COUNTED_STRINGS: Final = 1 << 12
# Joining parts of this size releases the GIL.
_COPIED_BYTES: Final = 1 << 16

# An array that orjson takes, an array of strings (str, {"b64": str}, or bytes of JSON), or lists of them.
Column = Any
Ends: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]


def array_text(value: Column) -> bytes:
    """Return `value` as JSON. NaN and infinities are the tokens NaN, Infinity and -Infinity.

    An array of many strings has none after it.
    """
    if isinstance(value, np.ndarray) and value.ndim:
        if 0 < value.size <= _FEW_NUMBERS and value.ndim <= 2 and not value.dtype.hasobject:
            return _finite(dumps(value), value)
        parts = _array_parts(value, _ends_of_strings(value) if value.size > _FEW_STRINGS else None)
    elif isinstance(value, list):
        parts = _list_parts(value)
    else:
        return _finite(dumps(value), value)
    text = [next(parts)]
    for part in parts:
        text.append(part)
        let_others_run()
    # Joining releases the GIL for long parts.
    return text[0] if len(text) == 1 else b"".join(text)


def string_text(value: bytes) -> str | bytes:
    """Return a string of a column: its characters, or JSON if they are many. Raises UnicodeDecodeError."""
    if len(value) <= _LONG_STRING:
        return value.decode()
    decode = getincrementaldecoder("utf-8")().decode
    parts = [b'"']
    for start in range(0, len(value), _LONG_STRING):
        end = start + _LONG_STRING
        parts.append(orjson.dumps(decode(value[start:end], end >= len(value)))[1:-1])
        let_others_run()
    return b"".join((*parts, b'"'))


def base64_text(value: bytes) -> dict[str, str] | bytes:
    """Return a string of a column for bytes that are not text: `{"b64": …}`, or JSON if they are many."""
    if len(value) <= _LONG_STRING:
        return {"b64": b2a_base64(value, newline=False).decode()}
    parts = [b'{"b64":"']
    for start in range(0, len(value), _LONG_STRING):
        parts.append(b2a_base64(value[start : start + _LONG_STRING], newline=False))
        let_others_run()
    return b"".join((*parts, b'"}'))


def count_nodes(shape: tuple[int, ...]) -> int:
    """Return the number of lists and values in the JSON of an array."""
    nodes: int = 1 + sum(accumulate(shape, mul))
    return nodes


def column_nodes(column: Column) -> int:
    """Return how many numbers orjson writes in the time of a column."""
    if isinstance(column, list):
        return 1 + sum(map(column_nodes, column))
    if isinstance(column, str | bytes | dict):
        return 1 + _PART_NODES * (_characters(column) + _STRING_CHARACTERS) // _PART_CHARACTERS
    nodes = count_nodes(column.shape)
    if (ends := _ends_of_strings(column)) is not None:
        return nodes + _PART_NODES * int(ends[-1]) // _PART_CHARACTERS
    # orjson's time for a list grows with its level.
    return nodes if _is_shallow(column) else nodes * column.ndim


def dumps(value: Column) -> bytes:
    """Return `value` as JSON in one step, with null for numbers that are not finite."""
    if isinstance(value, np.ndarray) and value.dtype.hasobject:
        value = value.tolist()
    return orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY, default=_other)


def _other(value: Any) -> Any:  # noqa: ANN401 (an orjson.Fragment has no stub)
    return orjson.Fragment(value) if type(value) is bytes else value.tolist()


def _array_parts(array: Array, ends: Ends | None) -> Iterator[bytes]:
    """Yield the text of an array that has dimensions. `ends` has the ends of its strings if they count."""
    if not array.size:
        yield _empty_text(array.shape)
        return
    nodes = count_nodes(array.shape)
    if ends is not None:
        nodes += _PART_NODES * int(ends[-1] - ends[0]) // _PART_CHARACTERS
    if nodes <= _PART_NODES:
        yield _small_text(array)
        return
    yield b"["
    step = _PART_NODES * len(array) // nodes
    values = array.size // len(array)
    for start in range(0, len(array), max(step, 1)):
        if start:
            yield b","
        if step or array.ndim == 1:
            part = array[start : start + max(step, 1)]
            yield _inner_text(part)
            if ends is not None:
                # To free all strings in one step would hold the GIL.
                part[...] = None
        else:
            inner = None if ends is None else ends[start * values : (start + 1) * values + 1]
            yield from _array_parts(array[start], inner)
    yield b"]"


def _ends_of_strings(array: Array) -> Ends | None:
    """Return where each string of an array ends in the text of all, in characters, or None for numbers."""
    if not array.dtype.hasobject:
        return None
    ends = np.zeros(array.size + 1, np.int64)
    flat = array.reshape(-1)
    for start in range(0, array.size, _COUNTED_STRINGS):
        some = flat[start : start + _COUNTED_STRINGS].tolist()
        is_plain = _TEXTS.issuperset(map(type, some))
        ends[start + 1 : start + 1 + len(some)] = [*map(len if is_plain else _characters, some)]
        if array.size > _COUNTED_STRINGS:
            let_others_run()
    ends[1:] += _STRING_CHARACTERS
    return np.cumsum(ends, out=ends)


def _characters(string: Any) -> int:  # noqa: ANN401 (a string of a column)
    return len(string["b64"] if type(string) is dict else string)


def _inner_text(array: Array) -> bytes:
    """Return the text of an array between its brackets."""
    if array.dtype.hasobject and array.ndim == 1 and bytes in {*map(type, array)}:
        return b",".join(map(_string_json, array))
    return _small_text(array)[1:-1]


def _string_json(string: Any) -> bytes:  # noqa: ANN401 (a string of a column)
    return string if type(string) is bytes else dumps(string)


def _small_text(array: Array) -> bytes:
    """Return the text of an array that has dimensions and values."""
    if array.dtype.hasobject and bytes in {*map(type, array.flat)}:
        # orjson would copy long strings with the GIL held.
        return _nested([*map(_string_json, array.flat)], array.shape)
    if _is_shallow(array):
        return _finite(dumps(array), array)
    # orjson's time and memory for a list grow with its level.
    flat = array.ravel()
    items = [*map(dumps, flat)] if array.dtype.hasobject else _finite(dumps(flat), flat)[1:-1].split(b",")
    return _nested(items, array.shape)


def _is_shallow(array: Array) -> bool:
    return count_nodes(array.shape) <= 2 * array.size + max(array.ndim, 1)


def _nested(items: list[bytes], shape: tuple[int, ...]) -> bytes:
    """Return the text of nested lists of this shape, whose values are `items`."""
    brackets = 0
    for size in reversed(shape):
        if size != 1:
            if brackets:
                opened, closed = b"[" * brackets, b"]" * brackets
                items = [b"".join((opened, item, closed)) for item in items]
            items = [b",".join(items[start : start + size]) for start in range(0, len(items), size)]
            brackets = 0
        brackets += 1
    return b"".join((b"[" * brackets, items[0], b"]" * brackets))


def _empty_text(shape: tuple[int, ...]) -> bytes:
    """Return the text of an array without values: its lists down to the empty ones."""
    text = b"[]"
    for size in reversed(shape[: shape.index(0)]):
        several = min(size, max(1, _COPIED_BYTES // len(text)))
        part = b",".join([text] * several)
        whole, rest = divmod(size, several)
        parts = [part] * whole + [b",".join([text] * rest)] * (rest > 0)
        text = b"".join((b"[", b",".join(parts), b"]"))
        if len(text) > _COPIED_BYTES:
            let_others_run()
    return text


def _list_parts(items: list[Column]) -> Iterator[bytes]:
    """Yield the text of a list of columns."""
    taken: list[Column] = []
    nodes = 0
    before = b"["
    for item in items:
        size = column_nodes(item)
        if nodes + size > _PART_NODES and taken:
            yield before + _finite(dumps(taken), taken)[1:-1]
            taken, nodes, before = [], 0, b","
        if size > _PART_NODES:
            yield before
            yield array_text(item)
            before = b","
        else:
            taken.append(item)
            nodes += size
    yield before + _finite(dumps(taken), taken)[1:-1] + b"]" if taken or not items else b"]"


def _finite(text: bytes, value: Column) -> bytes:
    """Return orjson's text of a value with tokens for the numbers that are not finite."""
    if b"null" not in text:
        return text
    numbers = [np.asarray(array).reshape(-1) for array in _arrays(value)]
    return _with_tokens(text, np.concatenate(numbers)) if numbers else text


def _arrays(value: Column) -> Iterator[Any]:
    """Yield the numeric arrays and scalars of a column in order, without strings."""
    if isinstance(value, np.ndarray | np.floating):
        if not value.dtype.hasobject:
            yield value
    elif isinstance(value, list):
        for item in value:
            yield from _arrays(item)


def _with_tokens(text: bytes, values: Array) -> bytes:
    """Replace each null in `text` by its number's token. orjson writes null for a number that is not finite."""
    special = values[~np.isfinite(values)].tolist()
    parts = [b""] * (2 * len(special) + 1)
    parts[::2] = text.split(b"null")
    parts[1::2] = [b"NaN" if value != value else b"Infinity" if value > 0 else b"-Infinity" for value in special]
    return b"".join(parts)


class ListOutput(NamedTuple):
    """An output, and the text after its list. `is_flat` writes its numbers without nesting."""

    name: str
    dtype: DType
    shape: tuple[int, ...]
    after: bytes
    is_flat: bool = False


class ListTemplate:
    """The texts around the lists of responses whose outputs have the same names, dtypes and shapes."""

    __slots__ = ("_before", "_names", "_outputs")

    def __init__(self, before: bytes, outputs: Sequence[ListOutput]) -> None:
        """Create it with the text before the first list. orjson must write the dtypes, and no output is a scalar."""
        self._before = before
        self._names = [output.name for output in outputs]
        self._outputs = tuple(outputs)

    def encode(self, outputs: Tensors) -> bytes | None:
        """Return the response, or None for other outputs, and for numbers that JSON does not have."""
        if [*outputs] != self._names:
            return None
        parts = [self._before]
        for name, dtype, shape, after, is_flat in self._outputs:
            array = outputs[name]
            if array.shape != shape or array.dtype != dtype:
                return None
            values = array.ravel() if is_flat else np.ascontiguousarray(array)
            text = orjson.dumps(values, option=orjson.OPT_SERIALIZE_NUMPY)
            # orjson's text of NaN and infinities.
            if b"null" in text:
                return None
            parts += (text, after)
        return b"".join(parts)
