"""Tests for tf.Examples in REST bodies, against protobuf's own."""

import base64
import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tensorflow.core.example.example_pb2 import Example

from tpuserve_server.core.terms.errors import InvalidArgument
from tpuserve_server.wire.json.examples import decode_json_examples

INT64 = st.integers(-(2**63), 2**63 - 1)
FLOAT = st.floats(allow_nan=False, width=32)
TEXT = st.text(st.characters(exclude_categories=["Cs"]))
INTEGERS = st.one_of(INT64, st.booleans())
VALUES = st.one_of(
    INTEGERS, FLOAT, TEXT, st.binary(), *(st.lists(kind, max_size=40) for kind in (INTEGERS, FLOAT, TEXT, st.binary()))
)
FEATURES = st.dictionaries(TEXT, VALUES, max_size=5)


def to_json(value: object) -> object:
    """Return bytes as base64 objects, and floats in Python's notation, including Infinity."""
    if isinstance(value, list):
        return [to_json(item) for item in value]
    return {"b64": base64.b64encode(value).decode()} if isinstance(value, bytes) else value


def to_example(features: dict[str, object]) -> Example:
    """Return protobuf's Example of the same features."""
    example = Example()
    for name, value in features.items():
        feature = example.features.feature[name]
        for item in value if isinstance(value, list) else [value]:
            if isinstance(item, float):
                feature.float_list.value.append(item)
            elif isinstance(item, int):
                feature.int64_list.value.append(int(item))
            else:
                feature.bytes_list.value.append(item.encode() if isinstance(item, str) else item)
    return example


def decode(body: object) -> list[Example]:
    return [Example.FromString(text) for text in decode_json_examples(json.dumps(body).encode()).examples]


@given(st.lists(FEATURES, min_size=1, max_size=4))
def test_examples_are_protobufs_own(rows: list[dict[str, object]]) -> None:
    body = {"examples": [{name: to_json(value) for name, value in row.items()} for row in rows]}
    assert decode(body) == [to_example(row) for row in rows]


@given(FEATURES, FEATURES)
def test_a_context_is_merged_below_each_example(context: dict[str, object], row: dict[str, object]) -> None:
    body = {
        "context": {name: to_json(value) for name, value in context.items()},
        "examples": [{name: to_json(value) for name, value in row.items()}, {}],
    }
    assert decode(body) == [to_example({**context, **row}), to_example(context)]


def test_the_array_is_flat_and_of_bytes_and_names_the_signature() -> None:
    decoded = decode_json_examples(b'{"signature_name": "s", "examples": [{}, {"a": 1}, {"b": ""}]}')
    assert decoded.signature_name == "s"
    assert decoded.examples.shape == (3,)
    assert decoded.examples.dtype == np.object_
    assert [type(text) for text in decoded.examples] == [bytes] * 3
    assert decode_json_examples(b'{"examples": [{}]}').signature_name == "serving_default"


def test_numbers_keep_the_type_that_they_are_written_with() -> None:
    row = b'{"whole": 1, "decimal": 1.0, "power": 1e2, "zero": -0, "huge": 18446744073709551616, "max": 1e300}'
    (example,) = map(Example.FromString, decode_json_examples(b'{"examples": [%b]}' % row).examples)
    feature = example.features.feature
    assert list(feature["whole"].int64_list.value) == [1]
    assert list(feature["zero"].int64_list.value) == [0]
    assert list(feature["decimal"].float_list.value) == [1.0]
    assert list(feature["power"].float_list.value) == [100.0]
    assert list(feature["huge"].float_list.value) == [2.0**64]
    assert list(feature["max"].float_list.value) == [math.inf]


def test_not_finite_numbers_are_floats_beside_integers_of_any_size() -> None:
    body = b'{"examples": [{"a": [NaN, Infinity, -Infinity], "b": [1%b, -1%b, 0.5, 18446744073709551616]}]}'
    (example,) = map(Example.FromString, decode_json_examples(body % (b"0" * 400, b"0" * 400)).examples)
    first, second, third = example.features.feature["a"].float_list.value
    assert math.isnan(first)
    assert (second, third) == (math.inf, -math.inf)
    assert list(example.features.feature["b"].float_list.value) == [math.inf, -math.inf, 0.5, 2.0**64]


def object_text(members: str) -> str:
    return f"JSON Value: {{\n    {members}\n}}"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "JSON Parse error: The document is empty"),
        (b"[]", "JSON Value: [] Is not object"),
        (
            b'{"signature_name": 1, "examples": [{}]}',
            'JSON Value: {\n    "signature_name": 1,\n    "examples": [{}]\n} not formatted correctly.'
            " 'signature_name' key must be a string value.",
        ),
        (b'{"context": [1]}', "Example must be JSON object but got JSON Array"),
        (
            b'{"a": 1}',
            object_text('"a": 1') + " When method is classify, key 'examples' is expected and was not found",
        ),
        (b'{"examples": 1}', object_text('"examples": 1') + " Expecting 'examples' value to be an list/array"),
        (b'{"examples": []}', object_text('"examples": []') + " 'examples' value is an empty array"),
        (b'{"examples": [[{}]]}', "Example must be JSON object but got JSON Array"),
        (b'{"examples": [{}, null]}', "Example must be JSON object but got JSON Null"),
        (b'{"examples": [{"a": null}]}', "Feature: a has element with unexpected JSON type: Null"),
        (b'{"examples": [{"a": [10, null]}]}', "Feature: a has element with unexpected JSON type: Null"),
        (b'{"examples": [{"a": [[10], 20]}]}', "Feature: a has element with unexpected JSON type: Array"),
        (b'{"examples": [{"a": [10, {"test": 10}]}]}', "Feature: a has element with unexpected JSON type: Object"),
        (b'{"examples": [{"a": {"b64": 10}}]}', "Feature: a has element with unexpected JSON type: Object"),
        (b'{"examples": [{"a": [10, 10.0]}]}', "Unexpected element type in feature: a expecting type: int64"),
        (b'{"examples": [{"a": [0.5, true]}]}', "Unexpected element type in feature: a expecting type: float"),
        (b'{"examples": [{"a": ["x", 1]}]}', "Unexpected element type in feature: a expecting type: bytes"),
        (b'{"examples": [{"a": [1, "x"]}]}', "Unexpected element type in feature: a expecting type: int64"),
        (
            b'{"examples": [{"a": [1, 18446744073709551603]}]}',
            "Feature: a has uint64_t element. Only int64_t is supported.",
        ),
        (
            b'{"examples": [{"a": [1.5, 18446744073709551603]}]}',
            "Unexpected element type in feature: a expecting type: float",
        ),
        (b'{"examples": [{"a": {"b64": "A"}}]}', "Unable to base64 decode"),
        (
            b'{"examples": [{"a": NaN, "b": "\\ud800"}]}',
            "JSON Parse error: The surrogate pair in string is invalid.",
        ),
        (b'{"examples": [{"a": NaN, "\\ud800": 1}]}', "JSON Parse error: The surrogate pair in string is invalid."),
        (b'{"examples": [{"a": 1, "a": 2}]}', "JSON Parse error: duplicate key: a"),
    ],
)
def test_errors_are_upstreams(body: bytes, message: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        decode_json_examples(body)
    assert caught.value.message == message


def test_values_nested_beyond_measure_are_refused_without_recursion() -> None:
    for body in (b'{"examples": [{"a": %b1%b}]}', b'{"examples": %b1%b}', b'{"other": %b1%b, "examples": [{}]}'):
        nested = body % (b"[" * 900, b"]" * 900)
        if b"other" in body:
            # The decoder ignores this member.
            assert len(decode_json_examples(nested).examples) == 1
        else:
            with pytest.raises(InvalidArgument):
                decode_json_examples(nested)


def test_a_context_is_not_copied_without_measure() -> None:
    body = json.dumps({"context": {"a": [1.0] * 1000}, "examples": [{}] * 11}).encode()
    assert len(decode_json_examples(body, 50_000).examples) == 11
    with pytest.raises(InvalidArgument, match="bytes is too large for 11 examples"):
        decode_json_examples(body, 40_000)
