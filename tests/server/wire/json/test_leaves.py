"""Tests for the conversion of large JSON values, against a parser and numpy."""

import base64
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes

from tpuserve_server.core.serving.budgets import DecodedBudget
from tpuserve_server.core.terms.errors import InvalidArgument
from tpuserve_server.core.terms.types import Signature, TensorSpec
from tpuserve_server.wire.json import layout, leaves, numbers
from tpuserve_server.wire.json.layout import Layout
from tpuserve_server.wire.json.leaves import Irregular, Unconvertible, decode_flat, decode_nested
from tpuserve_server.wire.json.predict import decode_predict_inputs, parse_predict_body

BUDGET = DecodedBudget(1 << 24)
FLOAT, INT, STRING = np.dtype(np.float32), np.dtype(np.int64), np.dtype(np.object_)


@pytest.fixture(autouse=True, params=[5, 40])
def _small_pieces(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "_CHUNK_BYTES", 11)
    monkeypatch.setattr(numbers, "_STEP_BYTES", 11)
    monkeypatch.setattr(leaves, "PIECE_BYTES", request.param)
    monkeypatch.setattr(leaves, "_OBJECT_BYTES", request.param)


def value_of(text: str) -> Layout:
    return Layout(f'{{"a":{text}}}'.encode(), BUDGET)


def nested(text: str, dtype: np.dtype = FLOAT) -> np.ndarray:
    found = value_of(text)
    return decode_nested(found, found.members["a"], dtype)


@given(array_shapes(max_dims=4, max_side=4), st.sampled_from([None, 1]))
def test_numbers_keep_their_shape(shape: tuple[int, ...], indent: int | None) -> None:
    array = np.arange(np.prod(shape)).reshape(shape)
    np.testing.assert_array_equal(nested(json.dumps(array.tolist(), indent=indent), INT), array)
    np.testing.assert_array_equal(nested(json.dumps((array / 2).tolist(), indent=indent)), array / 2)


@given(st.lists(st.lists(st.text('a["],\\{ ', max_size=5), min_size=2, max_size=2), min_size=1, max_size=5))
def test_strings_keep_their_brackets(rows: list[list[str]]) -> None:
    assert nested(json.dumps(rows), STRING).tolist() == [[item.encode() for item in row] for row in rows]


def test_base64_objects_are_leaves() -> None:
    assert nested('[{"b64":"YQ=="}, {"b64": "Yg=="}]', STRING).tolist() == [b"a", b"b"]


@pytest.mark.parametrize(
    ("text", "shape"), [("[]", (0,)), ("[[],[]]", (2, 0)), ("[[[]]]", (1, 1, 0)), ("7", ()), (" [ 7 ] ", (1,))]
)
def test_empty_lists_and_scalars_have_their_shape(text: str, shape: tuple[int, ...]) -> None:
    assert nested(text).shape == shape


@pytest.mark.parametrize(
    "text",
    [
        "[[1,2],[3]]",
        "[[1],2]",
        "[1,[2]]",
        "[[1,2],[3,[4]]]",
        "[[],[1]]",
        "[[1],[]]",
        "[[[1],[2]],[[3]]]",
        "[" * 65 + "1" + "]" * 65,
    ],
)
def test_irregular_nesting_is_refused(text: str) -> None:
    with pytest.raises((Irregular, InvalidArgument)):
        nested(text)


@pytest.mark.parametrize(
    "text", ["[1[,2]]", "[[1]2]", "[[1][2]]", "[1 2]", "[1,,2]", "[1,]", '["a"[,"b"]]', '[["a"]"b"]']
)
def test_malformed_lists_are_refused(text: str) -> None:
    with pytest.raises((InvalidArgument, Irregular)):
        nested(text, STRING if '"' in text else FLOAT)


@pytest.mark.parametrize(("text", "dtype"), [("[1,true]", FLOAT), ("[1.5]", INT), ('["a",1]', STRING), ("[{}]", FLOAT)])
def test_leaves_of_another_type_are_reported(text: str, dtype: np.dtype) -> None:
    with pytest.raises(Unconvertible):
        nested(text, dtype)


@given(st.text("[[]],,1 \n", min_size=3, max_size=24).map("[[{}]]".format))
def test_the_parser_decides_which_lists_are_well_formed(text: str) -> None:
    try:
        expected = np.array(json.loads(text), np.int64)
    except ValueError:  # Malformed or irregular. Empty lists differ from the parser's only in their inner sizes.
        with pytest.raises((InvalidArgument, Irregular)):
            nested(text, INT)
    else:
        if expected.size:
            np.testing.assert_array_equal(nested(text, INT), expected)


def test_flat_values_ignore_the_nesting() -> None:
    found = value_of("[1,[2,[3]],4]")
    assert decode_flat(found, found.members["a"], INT, lambda _: None).tolist() == [1, 2, 3, 4]


SIGNATURE = Signature("s", {"s": TensorSpec("s", np.dtype(np.object_), (None,))}, {})
LONG = b"a" * 100


@pytest.fixture
def _short_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Treat short bodies and strings as long ones are treated."""
    monkeypatch.setattr(leaves, "_LONG_BYTES", 8)
    monkeypatch.setattr(leaves, "_PART_BYTES", 12)
    monkeypatch.setattr(numbers, "is_large", lambda body: True)


def decode(body: bytes) -> list[Any]:
    return decode_predict_inputs(parse_predict_body(body), SIGNATURE).inputs["s"].reshape(-1).tolist()


@given(st.lists(st.text('a"\\\n\u00e9\u4e2d\U0001f600/{}[],: ', max_size=60), min_size=1, max_size=4), st.booleans())
@pytest.mark.usefixtures("_short_limits")
def test_strings_of_any_length_read_back(texts: list[str], ascii_only: bool) -> None:
    expected = [text.encode() for text in texts]
    for value in (texts, [[text] for text in texts]):
        assert decode(json.dumps({"instances": value}, ensure_ascii=ascii_only).encode()) == expected
        assert decode(json.dumps({"inputs": {"s": value}}, ensure_ascii=ascii_only, indent=1).encode()) == expected
    rows = [{"s": text} for text in texts]
    assert decode(json.dumps({"instances": rows}, ensure_ascii=ascii_only).encode()) == expected


@given(st.lists(st.binary(max_size=60), min_size=1, max_size=3), st.booleans())
@pytest.mark.usefixtures("_short_limits")
def test_base64_of_any_length_reads_back(values: list[bytes], padded: bool) -> None:
    texts = [base64.b64encode(value).decode() for value in values]
    rows = [{"b64": text if padded else text.rstrip("=")} for text in texts]
    assert decode(json.dumps({"instances": rows}).encode()) == values


@pytest.mark.usefixtures("_short_limits")
def test_whitespace_around_values_is_no_part_of_them() -> None:
    blank = b" \n" * 50
    body = b'{"instances":[' + blank + b'"x"' + blank + b"," + blank + b'"' + LONG + b'"' + blank + b"]}"
    assert decode(body) == [b"x", LONG]


@pytest.mark.parametrize(
    "values",
    [
        b'"%b\\ud83d"' % LONG,
        b'"%b\n"' % LONG,
        b'"%b\xff"' % LONG,
        b'"%b\\u00g0"' % LONG,
        b'"%b"x' % LONG,
        b'x"%b"' % LONG,
        b'"%b" "%b"' % (LONG, LONG),
        b'"x""%b"' % LONG,
        b'"%b",' % LONG,
        b"1" * 100,
        LONG,
        b'{"b64":"%b!"}' % LONG,
        b'{"b65":"%b"}' % LONG,
        b'{"b64":"%b","c":1}' % LONG,
        b'["%b"],"x"' % LONG,
    ],
)
@pytest.mark.usefixtures("_short_limits")
def test_malformed_long_values_are_refused(values: bytes) -> None:
    with pytest.raises(InvalidArgument) as caught:
        decode(b'{"instances":[%b]}' % values)
    assert len(caught.value.message) < 300
