"""The fast path from a REST body to arrays: bodies of numbers, without a Python object for each number.

simdjson parses the body and copies all numbers of an array, regardless of their nesting. The text proves that the
nesting is regular: without numbers and whitespace it must equal the text that the shapes imply. Unusual bodies take the
slow path in predict.py, which also explains the errors in a request. A result of None here means: take the slow path.
"""

import contextvars
import math
import re
import threading
from functools import lru_cache
from typing import Any

import numpy as np
import orjson
import simdjson

from tpuserve_formats.dtypes import BY_DTYPE
from tpuserve_server.core.terms.types import Array, Signature, Tensors

# numpy's limit on dimensions.
_MAX_RANK = 64
# All characters of numbers and of the whitespace between tokens.
NUMBER_TEXT = b"0123456789+-.eE \t\r\n"
_NUMBERS = frozenset((int, float))
_DOUBLE: np.dtype[Any] = np.dtype(np.float64)
# Skeletons of smaller bodies are cached, because clients send the same shape repeatedly.
_SMALL_BODY_BYTES = 1 << 14
# Smaller bodies of objects convert faster as Python objects (python -m benchmarks codecs). So do strings, which a quote
# among a body's last characters reveals.
_SMALL_OBJECTS_BYTES = 1 << 11
_STRINGS_END = 4
# Rows of objects are Python objects here. More of them are read in pieces (large.py).
_MOST_OBJECTS = 1 << 11
_MANY_BYTES = _MOST_OBJECTS * len('{"x":0},')
# simdjson takes up to 20 us for a number with more digits and an exponent. The longest double of Python has 17 digits.
_SLOW_DIGITS = 20
_SHORT_TEXT = 1 << 11
_FEW_EXPONENTS = 8
_MANTISSA = frozenset(b"0123456789.")
_IS_MANTISSA = np.isin(np.arange(256), list(_MANTISSA))
_CASE_BIT = 0x20
# A body of strings or base64, which simdjson does not read faster.
_TEXT_FIRST = re.compile(
    rb'\s*\{\s*(?:"signature_name"\s*:\s*"[^"\\]{0,99}"\s*,\s*)?"(?:instances|inputs)"\s*:[\[\s]{0,99}(?:"|\{\s*"b64")'
)
# Errors of simdjson, and errors that follow from a value of an unexpected type.
REFUSALS = (TypeError, ValueError, LookupError, RuntimeError, AttributeError, OverflowError)

# simdjson.Array, simdjson.Object, str, int, float, bool or None.
_Parsed = Any
_Shape = tuple[int, ...]


def _source_types() -> dict[np.dtype[Any], tuple[np.dtype[Any], str]]:
    """Return, for each numeric dtype, the dtype that simdjson exports and its type code.

    Float dtypes go through doubles even if the text has integers, as in rapidjson's GetFloat.
    """
    double, signed, unsigned = (_DOUBLE, "d"), (np.dtype(np.int64), "i"), (np.dtype(np.uint64), "u")
    sources: dict[str, tuple[np.dtype[Any], str]] = {"uint64_val": unsigned}
    sources |= dict.fromkeys(("float_val", "double_val", "half_val", "float8_val"), double)
    sources |= dict.fromkeys(("int_val", "int64_val", "uint32_val"), signed)
    return {dtype: sources[wire_type.field] for dtype, wire_type in BY_DTYPE.items() if wire_type.field in sources}


SOURCES = _source_types()


class NumericBody:
    """A parsed body whose first value is a number. Holds several times the memory of its text."""

    __slots__ = ("_body", "_document", "_value", "is_row", "signature_name")

    def __init__(
        self, body: bytes, document: simdjson.Object, value: _Parsed, is_row: bool, signature_name: str
    ) -> None:
        """Create the body; only `parse_numbers` calls this."""
        self._body = body
        self._document = document
        self._value = value
        # Whether the body has `instances` instead of `inputs`.
        self.is_row = is_row
        # Empty if the request names none.
        self.signature_name = signature_name

    def convert(self, signature: Signature) -> Tensors | None:
        """Return arrays with the signature's dtypes, or None.

        None means that the body does not have exactly these inputs, or that an array is irregular or out of range.
        """
        try:
            inputs, skeleton = self._convert(signature)
        except REFUSALS:
            return None
        expected = b"{%b}" % self._members(skeleton)
        return inputs if self._body.translate(None, NUMBER_TEXT) == expected else None

    def _convert(self, signature: Signature) -> tuple[Tensors, bytes]:
        """Return the arrays, and the skeleton that the value's text must have for them to be correct."""
        value, limit = self._value, len(self._body)
        if type(value) is simdjson.Object:
            columns = _Columns(signature, [value], limit)
            return columns.arrays(()), columns.skeleton
        if self.is_row and type(value[0]) is simdjson.Object:
            columns = _Columns(signature, list(value), limit)
            return columns.arrays((len(value),)), b"[%b]" % columns.skeleton
        ((name, spec),) = signature.inputs.items()
        flat, shape = _convert_column([value], spec.dtype)
        return {name: flat.reshape(shape)}, _skeleton(shape, limit)

    def _members(self, skeleton: bytes) -> bytes:
        key = _key_skeleton("instances" if self.is_row else "inputs")
        if not self.signature_name:
            return key + skeleton
        named = _key_skeleton("signature_name") + _text_skeleton(self.signature_name)
        is_first = next(iter(self._document)) == "signature_name"
        return b"%b,%b%b" % (named, key, skeleton) if is_first else b"%b%b,%b" % (key, skeleton, named)


def parse_numbers(body: bytes) -> NumericBody | None:
    """Parse a body whose only members are `instances` or `inputs` and optionally `signature_name`, each once.

    Return None for other bodies, if the first value is not a number, or if the fast path would not be faster. Parsing
    holds the GIL for 1.3 ms per megabyte.
    """
    is_small = len(body) < _SMALL_OBJECTS_BYTES
    if is_small:
        if b'"' in body[-_STRINGS_END:]:
            return None
    elif (
        _TEXT_FIRST.match(body)
        or has_slow_numbers(body)
        or (len(body) > _MANY_BYTES and body.count(b"{") > _MOST_OBJECTS)
    ):
        return None
    try:
        document: _Parsed = simdjson.Parser().parse(body)
        signature_name = "" if len(document) == 1 else _named(document)
        is_row = "instances" in document
        value = document["instances" if is_row else "inputs"]
    except REFUSALS:
        return None
    if type(value) is not simdjson.Array and (is_row or type(value) is not simdjson.Object):
        return None
    if not _starts_with_number(value, with_objects=not is_small):
        return None
    return NumericBody(body, document, value, is_row, signature_name)


def has_slow_numbers(text: bytes) -> bool:
    """Return whether a number in a text may take simdjson so long that many of them hold the GIL too long."""
    if len(text) <= _SHORT_TEXT:
        return False
    for exponent in (b"e", b"E"):
        position = text.find(exponent)
        for _ in range(_FEW_EXPONENTS):
            if position < 0:
                break
            if _MANTISSA.issuperset(text[max(0, position - _SLOW_DIGITS) : position]):
                return True
            position = text.find(exponent, position + 1)
        else:
            return _has_slow_number(np.frombuffer(text, np.uint8))
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


def _named(document: simdjson.Object) -> str:
    """Return the `signature_name` of a document with two members. Raises one of REFUSALS if there is none."""
    name = document["signature_name"]
    if len(document) != 2 or type(name) is not str or not name:
        raise ValueError
    return name


def _starts_with_number(value: _Parsed, *, with_objects: bool) -> bool:
    while type(value) not in _NUMBERS:
        if type(value) is simdjson.Array and len(value):
            value = value[0]
        elif with_objects and type(value) is simdjson.Object and len(value):
            value = value[next(iter(value))]
        else:
            return False
    return True


class _Columns:
    """The inputs of one or more objects, each of which has all inputs."""

    def __init__(self, signature: Signature, rows: list[_Parsed], limit: int) -> None:
        """Convert the inputs. No skeleton is longer than `limit`, the body's length. Raises ValueError for a fault."""
        if {*map(type, rows)} != {simdjson.Object}:
            raise ValueError
        orders = [tuple(row) for row in rows]
        wanted = sorted(signature.inputs)
        self._columns = {
            name: _convert_column([row[name] for row in rows], spec.dtype) for name, spec in signature.inputs.items()
        }
        if any(sorted(order) != wanted for order in {*orders}):
            raise ValueError
        texts = {order: self._object_skeleton(order, limit // len(rows)) for order in {*orders}}
        self.skeleton = b",".join([texts[order] for order in orders])

    def arrays(self, rows: _Shape) -> Tensors:
        """Return the inputs, with `rows` in front of the shape of each."""
        return {name: flat.reshape(rows + shape) for name, (flat, shape) in self._columns.items()}

    def _object_skeleton(self, order: tuple[str, ...], limit: int) -> bytes:
        members = [_key_skeleton(name) + _skeleton(self._columns[name][1], limit) for name in order]
        return b"{%b}" % b",".join(members)


def _convert_column(values: list[_Parsed], dtype: np.dtype[Any]) -> tuple[Array, _Shape]:
    """Return all numbers in `values`, flat, and the shape of the first value. Raises one of REFUSALS for a fault.

    The count of numbers matches the shape. The caller must still verify the nesting.
    """
    source, of_type = SOURCES[dtype]
    shape = _shape_of(values[0])
    if not shape:
        flat = _scalars(values, source)
    elif len(values) == 1:
        flat = np.frombuffer(values[0].as_buffer(of_type=of_type), source)
    else:
        flat = np.frombuffer(b"".join([value.as_buffer(of_type=of_type) for value in values]), source)
    if flat.size != len(values) * math.prod(shape):
        raise ValueError
    return (flat if source is dtype else narrow(flat, dtype)), shape


def _shape_of(value: _Parsed) -> _Shape:
    """Return the shape of nested arrays, from the first element of each.

    Raises ValueError for an empty array and for more than _MAX_RANK levels.
    """
    shape = []
    while type(value) is simdjson.Array:
        shape.append(len(value))
        if not shape[-1] or len(shape) > _MAX_RANK:
            raise ValueError
        value = value[0]
    return tuple(shape)


def _scalars(values: list[_Parsed], source: np.dtype[Any]) -> Array:
    if not {*map(type, values)} <= (_NUMBERS if source == _DOUBLE else {int}):
        raise TypeError
    return np.array(values, source)


class _Quiet(threading.local):
    """A context for each thread that ignores overflows. Entering it takes a third of the time of numpy's errstate."""

    def __init__(self) -> None:
        self.context = contextvars.Context()
        self.context.run(np.seterr, over="ignore")


_quiet = _Quiet()


def narrow(flat: Array, dtype: np.dtype[Any]) -> Array:
    """Convert numbers to `dtype`. Doubles out of range become infinities; integers out of range raise ValueError."""
    if flat.dtype == _DOUBLE:
        narrowed: Array = _quiet.context.run(flat.astype, dtype)
        return narrowed
    info = np.iinfo(dtype)
    if flat.min() < info.min or flat.max() > info.max:
        raise ValueError
    return flat.astype(dtype)


def _skeleton(shape: _Shape, limit: int) -> bytes:
    """Return the text of nested arrays without their numbers. Raises ValueError if it is longer than `limit`.

    An array of one number and an empty array have the same skeleton, so the caller must check the count of numbers.
    """
    return _small_skeleton(shape) if limit <= _SMALL_BODY_BYTES else _build_skeleton(shape, limit)


def _build_skeleton(shape: _Shape, limit: int) -> bytes:
    text = b""
    for size in reversed(shape):
        if size * (len(text) + 1) > limit:
            raise ValueError
        text = b"[%b%b]" % ((text + b",") * (size - 1), text)
    return text


@lru_cache(maxsize=256)
def _small_skeleton(shape: _Shape) -> bytes:
    return _build_skeleton(shape, _SMALL_BODY_BYTES)


@lru_cache(maxsize=256)
def _key_skeleton(name: str) -> bytes:
    return _text_skeleton(name) + b":"


def _text_skeleton(text: str) -> bytes:
    return orjson.dumps(text).translate(None, NUMBER_TEXT)
