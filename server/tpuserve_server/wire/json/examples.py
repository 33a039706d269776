"""REST classify and regress requests: `{"signature_name"?, "context"?, "examples": […]}` to serialized tf.Examples.

Source of the rules and messages: tensorflow_serving/util/json_tensor.cc, FillClassifyRegressRequestFromJson. The module
writes messages as bytes, without protobuf objects for lists of numbers.
"""

import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import GeneratorType
from typing import NoReturn

import numpy as np

from tpuserve_formats.tensor_proto import MAX_REPEATED_BYTES
from tpuserve_formats.varint import packed_varints, varint
from tpuserve_server.core.serving.budgets import DEFAULT_DECODED, DecodedBudget
from tpuserve_server.core.terms.errors import InvalidArgument, shown
from tpuserve_server.core.terms.types import DEFAULT_SIGNATURE_NAME, Array
from tpuserve_server.wire.example_request import example_array, with_context
from tpuserve_server.wire.json.body import (
    JsonObject,
    JsonValue,
    check_object,
    decode_base64_object,
    is_base64_object,
    is_large,
    parse_json,
    signature_name,
    type_text,
    value_text,
)
from tpuserve_server.wire.json.large import LargeBody
from tpuserve_server.wire.json.layout import Span

_MIN_INT64, _MAX_INT64, _MAX_UINT64 = -(1 << 63), (1 << 63) - 1, (1 << 64) - 1
_FLOATS, _INTEGERS, _TEXTS = {float}, {int, bool}, {str, dict}
# Encode up to this many integers one by one: for so few, numpy's calls cost more.
_FEW = 16

# Fields 1 to 3 with wire type 2 (length-delimited). Example, Features and its map entries use 1 and 2. Feature uses 1
# to 3 for bytes_list, float_list and int64_list; their values are in field 1, packed for numbers
# (tensorflow/core/example/*.proto).
_FIELD_1, _FIELD_2, _FIELD_3 = b"\x0a", b"\x12", b"\x1a"
# The head of a float_list of 6 bytes with 4 bytes of values.
_ONE_FLOAT = b"\x12\x06\x0a\x04"


@dataclass(frozen=True, slots=True)
class JsonExamples:
    """The requested or default signature, and a [n] object array of serialized Examples, each with the context."""

    signature_name: str
    examples: Array


def decode_json_examples(
    body: bytes, max_repeated_bytes: int = MAX_REPEATED_BYTES, budget: DecodedBudget = DEFAULT_DECODED
) -> JsonExamples:
    """Decode a request. Raises InvalidArgument with upstream's messages.

    Raises it also for too many copies of the context, and for a large body whose decoded objects would exceed `budget`.
    """
    writer = _ExampleWriter()
    if is_large(body):
        return _decode_large(LargeBody(body, budget), writer, max_repeated_bytes)
    document = check_object(parse_json(body))
    name = signature_name(document)
    context = writer.example(document["context"]) if "context" in document else b""
    return _examples(
        name, context, [writer.example(value) for value in _list_of_examples(document)], max_repeated_bytes
    )


def _decode_large(body: LargeBody, writer: "_ExampleWriter", max_repeated_bytes: int) -> JsonExamples:
    # Each example stays an object until the model runs.
    body.check_objects()

    def encoded(rows: list[JsonValue] | Mapping[str, Span]) -> list[bytes]:
        if isinstance(rows, list):
            return list(map(writer.example, rows))
        return [writer.large_example({name: body.values(span) for name, span in rows.items()})]

    context = b"" if (value := body.item("context")) is None else b"".join(encoded(value))
    examples = [example for rows in body.rows("examples") for example in encoded(rows)]
    if not examples:
        _list_of_examples({"examples": []})
    return _examples(body.signature_name, context, examples, max_repeated_bytes)


def _examples(name: str, context: bytes, examples: list[bytes], max_repeated_bytes: int) -> JsonExamples:
    name = name or DEFAULT_SIGNATURE_NAME
    if context:
        return JsonExamples(name, with_context(context, examples, max_repeated_bytes))
    return JsonExamples(name, example_array(examples))


def _list_of_examples(document: JsonObject) -> list[JsonValue]:
    if "examples" not in document:
        # Upstream's message names classify for regress requests, too.
        _fail(document, "When method is classify, key 'examples' is expected and was not found")
    examples = document["examples"]
    if type(examples) is not list:
        _fail(document, "Expecting 'examples' value to be an list/array")
    if not examples:
        _fail(document, "'examples' value is an empty array")
    return examples


def _fail(document: JsonObject, fault: str) -> NoReturn:
    raise InvalidArgument(f"JSON Value: {value_text(document)} {fault}")


class _ExampleWriter:
    """Writes the Examples of one request. It encodes each feature name once, because names repeat."""

    def __init__(self) -> None:
        self._keys: dict[str, bytes] = {}

    def example(self, value: JsonValue) -> bytes:
        """Encode Example {features = 1 {feature = 1 {key = 1, value = 2}, …}}."""
        if type(value) is not dict:
            raise InvalidArgument(f"Example must be JSON object but got JSON {type_text(value)}")
        if not value:
            return b""
        features = b"".join([self._entry(name, content) for name, content in value.items()])
        return b"".join((_FIELD_1, varint(len(features)), features))

    def large_example(self, members: Mapping[str, Iterator[list[JsonValue]]]) -> bytes:
        """Encode an Example whose features come in parts."""
        if not members:
            return b""
        features = b"".join([self._entry(name, parts) for name, parts in members.items()])
        return b"".join((_FIELD_1, varint(len(features)), features))

    def _entry(self, name: str, content: JsonValue) -> bytes:
        """Encode a feature of a value, a list of values, or a generator of such lists."""
        key = self._keys.get(name)
        if key is None:
            key = self._keys[name] = _key(name)
        if type(content) is float:
            # Fast path for the most common feature: it takes half the time.
            feature = _ONE_FLOAT + array.array("f", (content,)).tobytes()
        elif type(content) is GeneratorType:
            feature = _feature_of_parts(name, content)
        else:
            feature = _feature(name, content if type(content) is list else [content])
        size = varint(len(feature))
        return b"".join((_FIELD_1, varint(len(key) + len(size) + len(feature)), key, size, feature))


def _key(name: str) -> bytes:
    """Encode the key of a map entry and the tag of its value."""
    encoded = name.encode()
    return b"".join((_FIELD_1, varint(len(encoded)), encoded, _FIELD_2))


def _feature(name: str, values: list[JsonValue]) -> bytes:
    return _list_message(*_values(name, values)) if values else b""


def _feature_of_parts(name: str, parts: Iterator[list[JsonValue]]) -> bytes:
    encoded = [_values(name, values) for values in parts if values]
    if len({tag for tag, _ in encoded}) > 1:
        raise InvalidArgument(f"Unexpected element type in feature: {shown(name)} expecting one type")
    return _list_message(encoded[0][0], b"".join([values for _, values in encoded])) if encoded else b""


def _list_message(tag: bytes, values: bytes) -> bytes:
    """Return the field of Feature with its list. Numbers are packed."""
    if tag != _FIELD_1:
        values = b"".join((_FIELD_1, varint(len(values)), values))
    return b"".join((tag, varint(len(values)), values))


def _values(name: str, values: list[JsonValue]) -> tuple[bytes, bytes]:
    """Return the field of Feature and the values of its list message."""
    encoded = _encode(values)
    if encoded is None:
        encoded = _encode([_number(value) for value in values])
    if encoded is None:
        _explain(name, values)
    return encoded


def _encode(values: list[JsonValue]) -> tuple[bytes, bytes] | None:
    """Return the field of Feature and the values of its list message, or None if they are not all of one kind."""
    kinds = set(map(type, values))
    if kinds == _FLOATS:
        # Values out of float32's range become infinities.
        return _FIELD_2, array.array("f", values).tobytes()
    if kinds <= _INTEGERS:
        return (_FIELD_3, _integers(values)) if _fit_int64(values) else None
    if kinds <= _TEXTS:
        texts = _bytes(values)
        return None if texts is None else (_FIELD_1, texts)
    return None


def _fit_int64(values: list[int]) -> bool:
    return min(values) >= _MIN_INT64 and max(values) <= _MAX_INT64


def _integers(values: list[int]) -> bytes:
    if len(values) <= _FEW:
        return b"".join(map(varint, values))
    return packed_varints(np.array(values, np.int64).view(np.uint64))


def _bytes(values: list[JsonValue]) -> bytes | None:
    parts: list[bytes] = []
    for value in values:
        if type(value) is dict and not is_base64_object(value):
            return None
        try:
            text = value.encode() if type(value) is str else decode_base64_object(value)
        except ValueError:
            # Not base64.
            return None
        parts += (_FIELD_1, varint(len(text)), text)
    return b"".join(parts)


def _number(value: JsonValue) -> JsonValue:
    """Convert an integer beyond 64 bits to a float, as orjson does. Only Python's parser keeps such integers."""
    if type(value) is not int or _MIN_INT64 <= value <= _MAX_UINT64:
        return value
    try:
        return float(value)
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")


def _explain(name: str, values: list[JsonValue]) -> NoReturn:
    """Raise InvalidArgument for the first value that upstream would refuse (AddValueToFeature)."""
    first = ""
    for value in map(_number, values):
        kind = _kind(name, value)
        if first not in ("", kind):
            raise InvalidArgument(f"Unexpected element type in feature: {shown(name)} expecting type: {first}")
        first = kind
        _check_value(name, value)
    raise InvalidArgument(f"Feature: {shown(name)} cannot be converted")


def _kind(name: str, value: JsonValue) -> str:
    if type(value) in _INTEGERS:
        return "int64"
    if type(value) is float:
        return "float"
    if type(value) is str or is_base64_object(value):
        return "bytes"
    raise InvalidArgument(f"Feature: {shown(name)} has element with unexpected JSON type: {type_text(value)}")


def _check_value(name: str, value: JsonValue) -> None:
    if type(value) is int and value > _MAX_INT64:
        raise InvalidArgument(f"Feature: {shown(name)} has uint64_t element. Only int64_t is supported.")
    if type(value) in _TEXTS and _bytes([value]) is None:
        raise InvalidArgument("Unable to base64 decode")
