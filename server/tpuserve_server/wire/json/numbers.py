"""The fast way from a REST body to arrays: bodies of numbers, without a Python object for each number.

simdjson parses, and copies the numbers of an array out whatever their nesting. That the nesting is regular is proved by
the text: what is left of it without digits and whitespace must be what the shapes say. Whatever is unusual is left to
tensor's other way, which also knows what is wrong with a request: None here means "look there".
"""

import contextvars
import math
import threading
from functools import lru_cache
from typing import Any

import numpy as np
import orjson
import simdjson

from tpuserve_formats.dtypes import BY_DTYPE
from tpuserve_server.core.types import Array, Signature, Tensors

# numpy's limit on dimensions.
_MAX_RANK = 64
# All that numbers, and the whitespace between tokens, consist of.
NUMBER_TEXT = b"0123456789+-.eE \t\r\n"
_NUMBERS = frozenset((int, float))
_DOUBLE: np.dtype[Any] = np.dtype(np.float64)
# Skeletons for smaller bodies are kept: a client sends one shape again and again.
_SMALL_BODY_BYTES = 1 << 14
# Smaller bodies of objects are better off as Python's objects, and so are strings, which show at their end
# (python -m benchmarks codecs).
_SMALL_OBJECTS_BYTES = 1 << 11
_STRINGS_END = 4
# simdjson's own, and what follows from a value of a type that nobody expected.
REFUSALS = (TypeError, ValueError, LookupError, RuntimeError, AttributeError, OverflowError)

# simdjson.Array, simdjson.Object, str, int, float, bool or None.
_Parsed = Any
_Shape = tuple[int, ...]


def _source_types() -> dict[np.dtype[Any], tuple[np.dtype[Any], str]]:
    """For each dtype of numbers the one of three that simdjson hands out, and its name there.

    Floats go through doubles even when they were written as integers, as in rapidjson's GetFloat.
    """
    double, signed, unsigned = (_DOUBLE, "d"), (np.dtype(np.int64), "i"), (np.dtype(np.uint64), "u")
    sources: dict[str, tuple[np.dtype[Any], str]] = {"uint64_val": unsigned}
    sources |= dict.fromkeys(("float_val", "double_val", "half_val", "float8_val"), double)
    sources |= dict.fromkeys(("int_val", "int64_val", "uint32_val"), signed)
    return {dtype: sources[wire_type.field] for dtype, wire_type in BY_DTYPE.items() if wire_type.field in sources}


SOURCES = _source_types()


class NumericBody:
    """A parsed body of numbers, as far as its first value tells. Holds several times the text's memory."""

    __slots__ = ("_body", "_document", "_value", "is_row", "signature_name")

    def __init__(
        self, body: bytes, document: simdjson.Object, value: _Parsed, is_row: bool, signature_name: str
    ) -> None:
        """For `parse_numbers` alone."""
        self._body = body
        self._document = document
        self._value = value
        # Whether it has `instances`; it has `inputs` otherwise.
        self.is_row = is_row
        # Empty when the request names none.
        self.signature_name = signature_name

    def convert(self, signature: Signature) -> Tensors | None:
        """Arrays with the signature's dtypes; None unless the body has exactly these inputs, regular and in range."""
        try:
            inputs, skeleton = self._convert(signature)
        except REFUSALS:
            return None
        expected = b"{%b}" % self._members(skeleton)
        return inputs if self._body.translate(None, NUMBER_TEXT) == expected else None

    def _convert(self, signature: Signature) -> tuple[Tensors, bytes]:
        """The arrays, and what the value's text must look like for them to be right."""
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
    """`body` if it is an object of `instances` or `inputs`, perhaps `signature_name`, and nothing else, keys once each.

    None when its first value is no number, and when this way would not pay. Keeps the interpreter to itself meanwhile,
    1.3 ms a megabyte.
    """
    is_small = len(body) < _SMALL_OBJECTS_BYTES
    if is_small and b'"' in body[-_STRINGS_END:]:
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


def _named(document: simdjson.Object) -> str:
    """A document's other member than its inputs. Raises one of REFUSALS when there is none such."""
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
    """The inputs of one or more objects that each have them all."""

    def __init__(self, signature: Signature, rows: list[_Parsed], limit: int) -> None:
        """`limit` is the body's length, which no skeleton can be longer than. Raises ValueError for a fault."""
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
        """The inputs with `rows` before each one's own shape."""
        return {name: flat.reshape(rows + shape) for name, (flat, shape) in self._columns.items()}

    def _object_skeleton(self, order: tuple[str, ...], limit: int) -> bytes:
        members = [_key_skeleton(name) + _skeleton(self._columns[name][1], limit) for name in order]
        return b"{%b}" % b",".join(members)


def _convert_column(values: list[_Parsed], dtype: np.dtype[Any]) -> tuple[Array, _Shape]:
    """All numbers in `values`, flat, and the shape of the first value. Raises one of REFUSALS for a fault.

    There are as many numbers as this shape wants; that they are nested that way remains to be shown.
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
    """The shape that the first values of nested arrays say; raises ValueError for empty ones and too many of them."""
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
    """A context for each thread in which overflows are no warning: entering it takes a third of numpy's errstate."""

    def __init__(self) -> None:
        self.context = contextvars.Context()
        self.context.run(np.seterr, over="ignore")


_quiet = _Quiet()


def narrow(flat: Array, dtype: np.dtype[Any]) -> Array:
    """Numbers as `dtype`: doubles beyond it become infinities; raises ValueError for integers out of its range."""
    if flat.dtype == _DOUBLE:
        narrowed: Array = _quiet.context.run(flat.astype, dtype)
        return narrowed
    info = np.iinfo(dtype)
    if flat.min() < info.min or flat.max() > info.max:
        raise ValueError
    return flat.astype(dtype)


def _skeleton(shape: _Shape, limit: int) -> bytes:
    """Nested arrays of numbers without the numbers; raises ValueError when that is longer than `limit`.

    An array of one number looks like one of none: their number must be known.
    """
    return _small_skeleton(shape) if limit <= _SMALL_BODY_BYTES else _build_skeleton(shape, limit)


def _build_skeleton(shape: _Shape, limit: int) -> bytes:
    text = b""
    for size in reversed(shape):
        if size * (len(text) + 1) > limit:
            raise ValueError
        text = b"[%b]" % b",".join([text] * size)
    return text


@lru_cache(maxsize=256)
def _small_skeleton(shape: _Shape) -> bytes:
    return _build_skeleton(shape, _SMALL_BODY_BYTES)


@lru_cache(maxsize=256)
def _key_skeleton(name: str) -> bytes:
    return _text_skeleton(name) + b":"


def _text_skeleton(text: str) -> bytes:
    return orjson.dumps(text).translate(None, NUMBER_TEXT)
