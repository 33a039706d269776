"""JSON data of a tensor: values in row-major order, flat or in nested lists of any form.

Numbers go to numpy without a Python object for each. As in Triton, only the order and the count of the values matter.
"""

from functools import partial
from itertools import chain
from typing import Final, NamedTuple, NoReturn, TypeAlias

import numpy as np

from tpuserve_formats.dtypes import BY_DTYPE, STRING, Array, DType
from tpuserve_server.core.serving.budgets import DEFAULT_DECODED, DecodedBudget
from tpuserve_server.core.system.threads import let_others_run
from tpuserve_server.core.terms.errors import InvalidArgument
from tpuserve_server.wire.json.array_text import array_text, string_text
from tpuserve_server.wire.json.body import MAX_DEPTH, MEDIUM_BYTES, JsonObject, JsonValue, is_large, parse_json
from tpuserve_server.wire.json.conversion import convert_leaves
from tpuserve_server.wire.json.layout import Layout, Span
from tpuserve_server.wire.json.leaves import decode_flat
from tpuserve_server.wire.json.numbers import NumberList

# More inputs or outputs than a model has.
MAX_TENSORS: Final = 1024
_MEMBERS: Final = frozenset({"id", "inputs", "outputs", "parameters"})
# The values of longer unknown members are not parsed.
_MOST_UNKNOWN: Final = 1 << 10


class LargeArray(NamedTuple):
    """A JSON array of any nesting in a large body."""

    layout: Layout
    span: Span


def parse_large(text: bytes, budget: DecodedBudget) -> JsonObject:
    """Parse a request whose data become LargeArrays. Call it in a worker thread.

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
    document: JsonObject = parse_json(b"".join(kept), keeps_repeated=True)
    for index, array in arrays.items():
        document["inputs"][index]["data"] = array
    return document


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


# The value of `data`: a list, or text of one.
JsonArray: TypeAlias = list[JsonValue] | NumberList | LargeArray
ARRAYS: Final = (list, NumberList, LargeArray)

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


def decode_json(
    name: str,
    datatype: str,
    dtype: DType,
    count: int,
    data: JsonArray,
    budget: DecodedBudget = DEFAULT_DECODED,
    *,
    quickly: bool = False,
) -> Array:
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
    if isinstance(data, NumberList):
        flat = data.flat(dtype)
        if flat is None:
            text = data.text
            if not is_large(text):
                data = parse_json(text)
            elif quickly:
                raise TakesLong
            else:
                layout = Layout(b'{"data":%b}' % text, budget)
                data = LargeArray(layout, layout.members["data"])
    if isinstance(data, LargeArray):
        flat = decode_flat(data.layout, data.span, dtype, partial(_convert, name, datatype, dtype))
    elif isinstance(data, list):
        flat = _convert(name, datatype, dtype, data)
    assert flat is not None
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


def _convert(name: str, datatype: str, dtype: DType, value: list[JsonValue]) -> Array:
    """Return all values of nested lists, or raise the error for the first fault."""
    items = value
    for _ in range(MAX_DEPTH):
        kinds = {*map(type, items)}
        if list not in kinds:
            break
        lists = items if len(kinds) == 1 else [item if type(item) is list else (item,) for item in items]
        items = [*chain.from_iterable(lists)]
    else:
        raise InvalidArgument(
            f"Unable to parse 'data' of input '{name}': JSON nesting depth exceeds maximum allowed limit ({MAX_DEPTH})"
        )
    if not kinds <= _TYPES[dtype.kind]:
        wrong = next(item for item in items if type(item) not in _TYPES[dtype.kind])
        _refuse(name, datatype, _EXPECTED[dtype.kind], wrong)
    array = convert_leaves(items, kinds, BY_DTYPE[dtype])
    if array is None:
        limits = np.iinfo(dtype)
        wrong = next(item for item in items if not limits.min <= item <= limits.max)
        _refuse(name, datatype, _EXPECTED[dtype.kind], wrong, f", expected {limits.min} to {limits.max}")
    if int in kinds and dtype.kind == "f" and np.isinf(array).any():
        # An integer beyond a double's range, which only Python's parser keeps.
        huge = next((item for item in items if type(item) is int and abs(item) > 1e308), None)
        if huge is not None:
            _refuse(name, datatype, _EXPECTED[dtype.kind], huge)
    return array


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
