"""JSON data of a tensor: values in row-major order, flat or in nested lists of any form.

Numbers go to numpy without a Python object for each. As in Triton, only the order and the count of the values matter.
"""

from collections.abc import Callable
from functools import partial
from itertools import chain
from typing import Any, Final, NamedTuple, NoReturn

import numpy as np
import simdjson

from tpuserve_formats.dtypes import STRING, Array, DType
from tpuserve_server.core.serving.budgets import DecodedBudget
from tpuserve_server.core.system.threads import let_others_run
from tpuserve_server.core.terms.errors import InvalidArgument
from tpuserve_server.wire.json.array_text import array_text, string_text
from tpuserve_server.wire.json.body import MAX_DEPTH, JsonValue
from tpuserve_server.wire.json.large import MEDIUM_BYTES
from tpuserve_server.wire.json.layout import Layout, Span
from tpuserve_server.wire.json.leaves import decode_flat
from tpuserve_server.wire.json.numbers import REFUSALS, SOURCES, narrow

# More inputs or outputs than a model has.
MAX_TENSORS: Final = 1024
_MEMBERS: Final = frozenset({"id", "inputs", "outputs", "parameters"})
# The values of longer unknown members are not parsed.
_MOST_UNKNOWN: Final = 1 << 10


class LargeArray(NamedTuple):
    """A JSON array of any nesting in a large body."""

    layout: Layout
    span: Span


class LargeDocument(NamedTuple):
    """The text of a request with empty lists as data, and the data of each input that had a list."""

    text: bytes
    arrays: dict[int, LargeArray]


def split_document(text: bytes, budget: DecodedBudget) -> LargeDocument:
    """Take the data out of `text`. Call it in a worker thread.

    Raises:
        InvalidArgument: the document is malformed, would take more than `budget`, or is large without its data.
    """
    layout = Layout(text, budget)
    text = layout.body
    arrays: dict[int, LargeArray] = {}
    unknown = [span for name, span in layout.members.items() if name not in _MEMBERS]
    cuts = [(span, b"0") for span in unknown if span.stop - span.start > _MOST_UNKNOWN]
    for index, tensor in enumerate(_inputs(layout)):
        data = layout.members_of(tensor).get("data") if layout.first(tensor) == b"{" else None
        if data is not None and layout.first(data) == b"[":
            arrays[index] = LargeArray(layout, data)
            cuts.append((data, b"[]"))
    rest_bytes = len(text) - sum(span.stop - span.start for span, _ in cuts)
    if rest_bytes > MEDIUM_BYTES:
        raise InvalidArgument(
            f"The request has {rest_bytes} bytes of JSON beside its data. The limit is {MEDIUM_BYTES} bytes"
        )
    kept: list[bytes] = []
    position = 0
    for span, instead in sorted(cuts):
        kept += (text[position : span.start], instead)
        position = span.stop
    kept.append(text[position:])
    let_others_run()
    return LargeDocument(b"".join(kept), arrays)


def _inputs(layout: Layout) -> list[Span]:
    """Return the items of `inputs`, or none if it is no list, which the reader of the rest reports."""
    span = layout.members.get("inputs")
    inner = None if span is None else layout.inner(span)
    if inner is None:
        return []
    found: list[Span] = []
    for tensor in layout.pieces(inner, 1, depth=2):
        if len(found) == MAX_TENSORS:
            raise InvalidArgument(f"the request has more than {MAX_TENSORS} inputs")
        found.append(tensor)
    return found


# simdjson's arrays, lists from the slower parsers, and LargeArray.
JsonArray = Any
ARRAYS: Final = (simdjson.Array, list)
# dtypes without a JSON form, because clients and servers disagree on it.
_NO_FORM: Final = frozenset({"FP16", "BF16"})
_TYPES: Final[dict[str, frozenset[type]]] = {
    "b": frozenset({bool}),
    "i": frozenset({int}),
    "u": frozenset({int}),
    "f": frozenset({int, float}),
    "O": frozenset({str}),
}
_EXPECTED: Final = {
    "b": "non-boolean as boolean",
    "i": "non-signed-integer as signed-integer",
    "u": "non-unsigned-integer as unsigned-integer",
    "f": "non-number as double",
    "O": "non-string as string",
}
_MOST_SHOWN: Final = 32


class TakesLong(Exception):  # Never an error to a client.
    """A JSON document or its data take more than a millisecond to read, so a worker thread should do it."""


class JsonData(NamedTuple):
    """The value of `data`.

    If its values may take long as objects, `find_large` returns None or a function that finds it as a LargeArray.
    """

    value: JsonArray
    find_large: Callable[[], Callable[[], LargeArray] | None] = lambda: None


def decode_json(name: str, datatype: str, dtype: DType, count: int, data: JsonData, *, quickly: bool = False) -> Array:
    """Return the `count` values as a flat array. Without `quickly`, call it in a worker thread.

    Raises:
        TakesLong: with `quickly`, it would take more than a millisecond.
        InvalidArgument: with Triton's messages: the datatype has no JSON form, or the values differ from it in their
            type, range or number.
    """
    if datatype in _NO_FORM:
        raise InvalidArgument(
            f"receiving {datatype} data via JSON is not supported. Please use the binary data format for input {name}"
        )
    if not count:
        # As in Triton, the values of an empty tensor do not matter.
        return np.empty(0, dtype)
    value = data.value
    flat = None if type(value) is LargeArray else _fast(name, value, dtype)
    if flat is None and (find := data.find_large()) is not None:
        if quickly:
            raise TakesLong
        value = find()
    if type(value) is LargeArray:
        flat = decode_flat(value.layout, value.span, dtype, partial(_slow, name, datatype, dtype))
    elif flat is None:
        flat = _slow(name, datatype, dtype, value.as_list() if type(value) is simdjson.Array else value)
    if flat.size != count:
        raise _wrong_count(name, datatype, flat.size, count)
    return flat


def values_text(name: str, datatype: str, array: Array) -> bytes:
    """Return `array` as a flat JSON list. NaN and infinities are bare tokens.

    Raises:
        InvalidArgument: the datatype has no JSON form, or a string is not UTF-8.
    """
    if datatype in _NO_FORM:
        raise InvalidArgument(
            f"sending {datatype} data via JSON is not supported. Please use the binary data format for output '{name}'"
        )
    if array.dtype == STRING:
        try:
            texts = np.empty(array.size, STRING)
            texts[:] = [string_text(value) for value in array.flat]
            return array_text(texts)
        except UnicodeDecodeError:
            raise InvalidArgument(
                f"output '{name}' has a string that is not UTF-8. Please use the binary data format for this output"
            ) from None
    return array_text(array.ravel())


def _fast(name: str, value: JsonArray, dtype: DType) -> Array | None:
    """Return all numbers, or None if the value is not simdjson's or does not fit."""
    if len(value) and type(value[0]) in ARRAYS:
        _check_depth(name, value[0])
    if type(value) is not simdjson.Array or dtype not in SOURCES:
        return None
    source, of_type = SOURCES[dtype]
    try:
        flat = np.frombuffer(value.as_buffer(of_type=of_type), source)  # type: ignore[arg-type]  # SOURCES has only these
        return flat if source is dtype else narrow(flat, dtype)
    except REFUSALS:
        return None


def _slow(name: str, datatype: str, dtype: DType, value: list[JsonValue]) -> Array:
    items = _flatten(name, value)
    kinds = {*map(type, items)}
    if not kinds <= _TYPES[dtype.kind]:
        wrong = next(item for item in items if type(item) not in _TYPES[dtype.kind])
        _refuse(name, datatype, _EXPECTED[dtype.kind], wrong)
    if dtype is STRING:
        strings = np.empty(len(items), STRING)
        strings[:] = [item.encode() for item in items]
        return strings
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        for item in items:
            if not limits.min <= item <= limits.max:
                _refuse(name, datatype, _EXPECTED[dtype.kind], item, f", expected {limits.min} to {limits.max}")
    with np.errstate(over="ignore"):
        try:
            return np.array(items, dtype)
        except OverflowError:
            # An integer beyond a double's range, which only Python's parser keeps.
            _refuse(name, datatype, _EXPECTED[dtype.kind], next(item for item in items if abs(item) > 1e308))


def _flatten(name: str, value: list[JsonValue]) -> list[JsonValue]:
    items = value
    for _ in range(MAX_DEPTH):
        if not any(type(item) is list for item in items):
            return items
        items = list(chain.from_iterable(item if type(item) is list else (item,) for item in items))
    return _refuse_depth(name)


def _check_depth(name: str, value: JsonArray) -> None:
    """Check the nesting of the first values. simdjson itself limits the nesting of all values to 1024."""
    for _ in range(MAX_DEPTH - 1):
        if not len(value) or type(value[0]) not in ARRAYS:
            return
        value = value[0]
    _refuse_depth(name)


def _refuse_depth(name: str) -> NoReturn:
    raise InvalidArgument(
        f"Unable to parse 'data' of input '{name}': JSON nesting depth exceeds maximum allowed limit ({MAX_DEPTH})"
    )


def _refuse(name: str, datatype: str, expected: str, value: JsonValue, more: str = "") -> NoReturn:
    raise InvalidArgument(
        f"Unable to parse 'data': attempt to access JSON {expected}: {datatype} input '{name}' has the value "
        f"{repr(value)[:_MOST_SHOWN]}{more}"
    )


def _wrong_count(name: str, datatype: str, got: int, count: int) -> InvalidArgument:
    counts = f"input '{name}' has {got} elements, expected {count}"
    if datatype == "BYTES":
        return InvalidArgument(f"expected {count} string elements for inference input '{name}', got {got}")
    if got < count:
        return InvalidArgument(f"Failed to parse 'data' field: shape does not match true shape: {counts}")
    return InvalidArgument(f"Unable to parse 'data': Shape does not match true shape of 'data' field: {counts}")
