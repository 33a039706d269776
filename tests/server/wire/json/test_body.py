"""Tests for bodies as JSON documents: the parser, its limits, and values in error messages."""

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tpuserve_server.core.terms.errors import InvalidArgument
from tpuserve_server.wire.json.body import MAX_CHARACTERS, MAX_DEPTH, check_depth, parse_json, type_text, value_text

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=20,
)


def equal(left: object, right: object) -> bool:
    """Return whether two values are equal, with NaN equal to NaN."""
    return json.dumps(left) == json.dumps(right)


@given(JSON_VALUES)
@settings(deadline=None)
def test_any_document_is_read_as_pythons_parser_reads_it(value: object) -> None:
    text = json.dumps(value)
    assert equal(parse_json(text.encode()), json.loads(text))


def test_bare_tokens_are_numbers() -> None:
    numbers = parse_json(b'{"instances": [NaN, Infinity, -Infinity, 1]}')["instances"]
    assert math.isnan(numbers[0])
    assert numbers[1:] == [math.inf, -math.inf, 1]


@pytest.mark.parametrize("text", ['{"a": [1]}', "[NaN]"])
def test_a_byte_order_mark_is_skipped(text: str) -> None:
    assert str(parse_json(f"\ufeff{text}".encode())) == str(json.loads(text))
    with pytest.raises(InvalidArgument):
        parse_json(f"\ufeff\ufeff{text}".encode())


def test_numbers_beyond_a_double_are_infinite() -> None:
    assert parse_json(b"[1e400, -1e400]") == [math.inf, -math.inf]


@pytest.mark.parametrize(
    "body",
    [
        b'{"a": 1, "b": 2, "a": 3}',
        b'{"instances": [{"x": 1, "x": 2}]}',
        b'{"instances": [{"x": {"b64": "", "b64": ""}}]}',
        b'{"inputs": {"x": 1, "x": 1}}',
        b'{"instances": [1, {"x": 1, "x": 1}]}',
        b'{"u": [[[{"x": ":", "x": 1}]]]}',
        b'[{"x": 1, "x": 1}]',
        b'{"a": NaN, "a": 1}',
    ],
)
def test_equal_keys_in_one_object_are_refused_wherever_it_is(body: bytes) -> None:
    with pytest.raises(InvalidArgument, match=r"^JSON Parse error: duplicate key: [ax]$|duplicate key: b64$"):
        parse_json(body)


@pytest.mark.parametrize(
    "body",
    [
        b'{"a": "b: c: d", "instances": ["x:y"]}',
        b'{"instances": [{"x": {"b64": ""}}, {"x": {"b64": ""}}]}',
        b'{"inputs": {"x": {"b64": ""}, "y": 1}}',
        b'{"deep": [[{"x": 1}], {"x": 2}]}',
        b'":"',
    ],
)
def test_colons_and_equal_keys_in_different_objects_are_fine(body: bytes) -> None:
    assert parse_json(body) == json.loads(body)


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"", "JSON Parse error: The document is empty"),
        (b"instances = [1, 2]", "JSON Parse error: Invalid value. at offset: 0"),
        (b'{"a": 1', "JSON Parse error: Invalid value. at offset: 7"),
        (b'{"a": 1} x', "JSON Parse error: Invalid value. at offset: 9"),
        (b'{"a": nan}', "JSON Parse error: Invalid value. at offset: 6"),
        (b'{"a": NaN', "JSON Parse error: Invalid value. at offset: 9"),
        (b'"\xff"', "JSON Parse error: Invalid value. at offset: 0"),
        (b'[NaN, "\xff"]', "JSON Parse error: Invalid value."),
        (b"[NaN, " + b"1" * 5000 + b"]", "JSON Parse error: Invalid value."),
        (b"[" * 2000, "JSON Parse error: Invalid value. at offset: 1025"),
        (b"[NaN," + b"[" * 100_000, "JSON Parse error: nested more than 100 levels deep"),
    ],
)
def test_what_is_no_json_is_refused(body: bytes, text: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        parse_json(body)
    assert caught.value.message.startswith(text)


@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a":', "}"), ('[1,{"b":0,"a":', "}]")])
def test_nesting_is_bounded(opening: str, closing: str) -> None:
    levels = 2 if opening.startswith("[1") else 1
    for depth, is_fine in ((MAX_DEPTH, True), (MAX_DEPTH + levels, False)):
        text = opening * (depth // levels) + "1" + closing * (depth // levels)
        value = json.loads(text)
        if is_fine:
            check_depth(value, 0)
        else:
            with pytest.raises(InvalidArgument, match="nested more than 100 levels deep"):
                check_depth(value, 0)


def test_what_is_around_a_value_counts() -> None:
    check_depth([[1]], MAX_DEPTH - 2)
    with pytest.raises(InvalidArgument, match="nested more than"):
        check_depth([[1]], MAX_DEPTH - 1)


@pytest.mark.parametrize(
    ("value", "type_name"),
    [
        (None, "Null"),
        (True, "True"),
        (False, "False"),
        ({}, "Object"),
        ([], "Array"),
        ("", "String"),
        (1, "Number"),
        (1.5, "Number"),
    ],
)
def test_types_are_called_what_rapidjson_calls_them(value: object, type_name: str) -> None:
    assert type_text(value) == type_name


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ([1, [2.5, "a"], []], '[1, [2.5, "a"], []]'),
        ({}, "{}"),
        ({"a": [1], "b": {"c": None}}, '{\n    "a": [1],\n    "b": {\n        "c": null\n    }\n}'),
        ([{"a": True}], '[{\n        "a": true\n    }]'),
        ([math.nan, math.inf, -math.inf], "[NaN, Infinity, -Infinity]"),
        (2**80, str(2**80)),
        ("\ud800", '"?"'),
    ],
)
def test_values_are_printed_as_upstream_prints_them(value: object, text: str) -> None:
    assert value_text(value) == text


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=60,
    )
)
@settings(deadline=None)
def test_what_is_short_enough_is_json(value: object) -> None:
    text = value_text(value)
    assert len(text) <= MAX_CHARACTERS
    if len(text) < MAX_CHARACTERS:
        assert json.loads(text) == value


def test_huge_and_deep_values_are_cut() -> None:
    deep: list[object] = []
    for _ in range(10_000):
        deep = [deep]
    for value in (
        "x" * 10**6,
        list(range(10**6)),
        deep,
        {"k" * 10**6: 1, "l": {}},
        {str(key): key for key in range(999)},
    ):
        assert len(value_text(value)) == MAX_CHARACTERS
