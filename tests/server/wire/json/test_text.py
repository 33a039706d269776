"""Tests for JSON values in error messages."""

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tpuserve_server.wire.json.text import MAX_CHARACTERS, type_text, value_text


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
