"""Tests that lists of numbers that stay text give the same arrays as parsed lists, and accept no more."""

import json
import tracemalloc
from collections.abc import Callable
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import DTypeLike

from tpuserve_formats.dtypes import BY_DTYPE
from tpuserve_server.core.terms.errors import ServingError
from tpuserve_server.core.terms.types import Signature, TensorSpec
from tpuserve_server.wire.json import numbers
from tpuserve_server.wire.json.numbers import NumberList, has_slow_numbers
from tpuserve_server.wire.json.predict import JsonInputs, _holders, decode_predict_inputs, parse_predict_body

NUMERIC = [dtype for dtype in BY_DTYPE if dtype.kind not in "Ocb"]
PADDING = b" " * 4096


@pytest.fixture(autouse=True)
def _short_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read short lists as long ones are read."""
    monkeypatch.setattr(numbers, "_LONG_LIST", 2)


# Texts of numbers, including invalid JSON and values that some dtypes reject.
NUMBERS = st.one_of(
    st.integers(-300, 300).map(str),
    st.integers(-(2**65), 2**65).map(str),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.floats(allow_nan=False, allow_infinity=False, width=32).map(repr),
    st.sampled_from(["-0", "-0.0", "0e5", "1E+2", "1e400", "-1e400", "1e-400", "16777217", "9007199254740993"]),
    st.sampled_from(["9" * 400, "3.4028235677973366e38", "3.4028235677973365e38", "65520", "65519.99", "1e39"]),
    st.sampled_from(["01", "1.", ".5", "+1", "0x1", "NaN", "Infinity", "1_0", "-", "true", "null", '"1"', "{}", "[]"]),
)
ALMOST_ALWAYS_GOOD = st.one_of(*[st.floats(-1e5, 1e5).map(repr)] * 9, *[st.integers(-9, 9).map(str)] * 9, NUMBERS)
SPACES = st.sampled_from(["", "", "", " ", "\n", "\t ", "\r\n"])


def signature(**inputs: DTypeLike) -> Signature:
    specs = {name: TensorSpec(name, np.dtype(dtype), None) for name, dtype in inputs.items()}
    return Signature("serving_default", specs, {})


@st.composite
def arrays_as_text(draw: st.DrawFn) -> str:
    """Draw nested arrays of numbers as text, nearly all of them regular, with whitespace anywhere."""
    shape = draw(hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=3))
    flaw = draw(st.sampled_from(["", "", "", "longer", "shorter", "deeper", "shallower"]))
    flat = json.dumps(np.zeros(shape).tolist())
    flat = {
        "": flat,
        "longer": flat.replace("0.0]", "0.0,0.0]", 1),
        "shorter": flat[::-1].replace("0.0 ,", "", 1)[::-1],
        "deeper": flat[::-1].replace("0.0", "]0.0[", 1)[::-1],
        "shallower": flat.replace("[0.0]", "0.0", 1),
    }[flaw]
    first, *rest = flat.replace(" ", "").split("0.0")
    return first + "".join(draw(NUMBERS_TEXT) + part for part in rest)


@st.composite
def spaced_number(draw: st.DrawFn) -> str:
    text: str = draw(SPACES) + draw(ALMOST_ALWAYS_GOOD) + draw(SPACES)
    return text


NUMBERS_TEXT = spaced_number()
KEYS = st.sampled_from(["x", "x", "x", "y", "e1.", "\\u0078", "[", ","])


@st.composite
def objects_as_text(draw: st.DrawFn) -> str:
    members = [f'{draw(SPACES)}"{key}":{draw(arrays_as_text())}' for key in draw(st.lists(KEYS, max_size=3))]
    return "{" + ",".join(members) + "}"


@st.composite
def rows_as_text(draw: st.DrawFn) -> str:
    rows = draw(st.lists(objects_as_text(), max_size=3) | objects_as_text().map(lambda row: [row] * 3))
    return "[" + ",".join(rows) + "]"


@st.composite
def bodies(draw: st.DrawFn) -> bytes:
    key = draw(st.sampled_from(["instances", "instances", "inputs", "inputs", "inst\\u0061nces", "inpu.ts"]))
    value = draw(arrays_as_text() | objects_as_text() | rows_as_text())
    members = [f'"{key}"{draw(SPACES)}:{value}']
    names = ["s", "", "[1]", '"', "é", "3.e", "\ud800"]
    more = [f'"signature_name": {json.dumps(draw(st.sampled_from(names)))}', members[0], '"more": 1', '"more": [[1]]']
    members += draw(st.lists(st.sampled_from(more), max_size=2))
    text = "{" + ",".join(draw(st.permutations(members))) + "}"
    return text.encode() + draw(st.sampled_from([b"", PADDING, PADDING, b" x"]))


def kept_apart(body: bytes) -> list[NumberList]:
    """Return the lists of numbers that stay text in a parsed body."""
    members = [
        holder.get(name) for holder, names in _holders(parse_predict_body(body).document or {}) for name in names
    ]
    return [member for member in members if isinstance(member, NumberList)]


def outcome(act: Callable[[], JsonInputs]) -> JsonInputs | str:
    try:
        return act()
    except ServingError as error:
        return f"{error.code} {error.message}"


def decode(body: bytes, wanted: Signature) -> JsonInputs:
    return decode_predict_inputs(parse_predict_body(body), wanted)


def decode_plainly(body: bytes, wanted: Signature) -> JsonInputs:
    with mock.patch.object(numbers, "_LONG_LIST", 1 << 30):
        return decode(body, wanted)


def check_same(body: bytes, wanted: Signature) -> None:
    check_equal(outcome(lambda: decode(body, wanted)), outcome(lambda: decode_plainly(body, wanted)))


def check_equal(fast: JsonInputs | str, plain: JsonInputs | str) -> None:
    if isinstance(fast, str) or isinstance(plain, str):
        assert fast == plain
        return
    assert fast.is_row == plain.is_row
    assert fast.inputs.keys() == plain.inputs.keys()
    for name, array in fast.inputs.items():
        other = plain.inputs[name]
        assert (array.dtype, array.shape) == (other.dtype, other.shape)
        # Compare bytes, because -0.0 and 0.0 differ there.
        assert array.tobytes() == other.tobytes()


@given(body=bodies(), dtypes=st.lists(st.sampled_from([*BY_DTYPE]), min_size=2, max_size=2), inputs=st.integers(1, 2))
@settings(max_examples=400, deadline=None)
def test_both_ways_give_the_same_arrays_and_refuse_in_the_same_words(
    body: bytes, dtypes: list[np.dtype[Any]], inputs: int
) -> None:
    check_same(body, signature(**dict(zip(("x", "y")[:inputs], dtypes, strict=False))))


TEXTS = ["-0", "-0.0", "1e400", "-1e400", "1e-400", "16777217", "9007199791611905", "-9007199791611905", "9" * 400]
TEXTS += ["3.4028235677973366e38", "3.4028235677973365e38", "65520", "65519.99", "1e39", str(2**63), str(2**64)]
TEXTS += [str(2**63 - 1), str(-(2**63)), str(-(2**63) - 1), "0.1", "5e-324", "1.00390625", "1.01171875", "448", "464.1"]


@pytest.mark.parametrize("text", TEXTS)
def test_hard_numbers_come_out_the_same(text: str) -> None:
    for dtype in NUMERIC:
        for more in ("", ",1", ",0.5"):
            check_same(f'{{"instances":[{text}{more}]}}'.encode(), signature(x=dtype))


@pytest.mark.parametrize(
    ("text", "is_slow"),
    [
        ("1.2345678901234567890123e-310", True),
        ("12345678901234567890E300", True),
        ("0." + "0" * 30 + "1", False),
        ("-1.2345678901234567e-05", False),
        ("3.4e38", False),
        ("1.2345678901234567890123", False),
        ("0.5", False),
    ],
)
@pytest.mark.parametrize("before", [[], ["1e-05"], ["1e-05"] * 100])
def test_numbers_that_simdjson_reads_slowly_are_left_to_another_parser(
    text: str, is_slow: bool, before: list[str]
) -> None:
    numbers = ", ".join([*before, text, *["1"] * 2000])
    body = f'{{"signature_name": "some name", "instances": [{numbers}]}}'
    assert has_slow_numbers(body.encode()) is is_slow
    assert (not kept_apart(body.encode())) is is_slow
    check_same(body.encode(), signature(x=np.dtype(np.float32)))


@given(
    array=st.sampled_from(NUMERIC).flatmap(
        lambda dtype: hnp.arrays(
            np.float64 if dtype.kind not in "iu" else dtype,
            hnp.array_shapes(max_dims=5, max_side=4),
            elements=st.floats(-1e300, 1e300) if dtype.kind not in "iu" else None,
        ).map(lambda array: (dtype, array))
    ),
    form=st.sampled_from(
        [
            '{"instances":%s}',
            '{"inputs" : %s }',
            '{"inputs": {"x": %s}}',
            '{"instances": [{"x": %s}, {"x":%s}]}',
            '{"signature_name": "s1.e[", "instances": %s}',
            '{"instances": %s, "signature_name": "é"}',
        ]
    ),
)
@settings(max_examples=300, deadline=None)
def test_every_regular_array_of_numbers_takes_the_fast_way(array: tuple[np.dtype[Any], Any], form: str) -> None:
    dtype, values = array
    text = json.dumps(values.tolist())
    body = form.replace("%s", text).encode() + PADDING
    wanted = signature(x=dtype)
    assume(not has_slow_numbers(body))
    found = [each.nested(dtype) for each in kept_apart(body)]
    assert [None if each is None else each.shape for each in found] == [values.shape] * form.count("%s")
    check_same(body, wanted)


@pytest.mark.parametrize(
    "value",
    [
        "[[1,2],[3],[4,5,6]]",
        "[[1,2],[3,[4]]]",
        "[[1,[2,3]],[[],4]]",
        "[[1],[]]",
        "[[],[1]]",
        "[[[1],[]],[[2,3]]]",
        "[[1,2],[3,4],5,6]",
        "[[1,2],3,4]",
        "[[[[1]]],[[[2]],[[3]]],[]]",
    ],
)
def test_ragged_arrays_with_as_many_numbers_as_a_regular_one_are_refused(value: str) -> None:
    for body in (f'{{"instances": {value}}}', f'{{"inputs": {{"x": {value}}}}}'):
        check_same(body.encode() + PADDING, signature(x=np.float32))
        assert all(each.nested(np.dtype(np.float32)) is None for each in kept_apart(body.encode()))


@pytest.mark.parametrize(
    "body",
    [
        b'{"instances": [1], "instances": [2]}',
        b'{"instances": [1], "inputs": [2]}',
        b'{"instances": [1], "signature_name": "a", "signature_name": "b"}',
        b'{"instances": [1], "signature_name": 1}',
        b'{"instances": [1], "more": [1]}',
        b'{"inputs": {"x": [1], "x": [2]}}',
        b'{"inputs": {"x": [1], "y": [2]}}',
        b'{"instances": [{"x": [1]}, {"x": [1], "x": [1]}]}',
        b'{"instances": [{"x": [1]}, {"y": [1]}]}',
        b'{"instances": [{"x": [1]}, {}]}',
        b'{"instances": [{"x": [1]}, "x"]}',
        b'{"instances": [{"x": [1]}, ["x"]]}',
        b'{"instances": [{"x": [1]}, {"x": 1}]}',
        b'{"instances": [{"x": [1]}, {"x": [[1]]}]}',
        b'{"instances": [{"x": [1]}, [1]]}',
        b'{"instances": [1, {"x": [1]}]}',
        b'{"inst1ances": [1]}',
        b'{"instances": [1, NaN]}',
        b'{"instances": [1, 1e400]}',
        b'\xef\xbb\xbf{"instances": [1]}',
        b'\xef\xbb\xbf\xef\xbb\xbf{"instances": [1]}',
        b'{"instances": []}',
        b"[1]",
    ],
)
def test_whatever_is_unusual_is_left_to_the_other_way(body: bytes) -> None:
    for padded in (body, body + PADDING):
        check_same(padded, signature(x=np.float32))


@pytest.mark.parametrize(
    ("dtype", "good", "bad"),
    [
        (np.int64, [-(2**63), 2**63 - 1, 2**53 + 1], 2**63),
        (np.uint64, [0, 2**64 - 1, 2**53 + 1], -1),
        (np.int8, [-128, 127], 128),
        (np.uint32, [0, 2**32 - 1], 2**32),
    ],
)
def test_integers_are_exact_and_in_range(dtype: DTypeLike, good: list[int], bad: int) -> None:
    (found,) = kept_apart(json.dumps({"instances": good}).encode())
    inputs = found.nested(np.dtype(dtype))
    assert inputs is not None
    assert inputs.tolist() == good
    for wrong in (bad, 1.0):
        check_same(json.dumps({"instances": [*good, wrong]}).encode(), signature(x=dtype))


def test_floats_are_rounded_to_double_first_as_upstream() -> None:
    # A direct conversion to float32 would give 16777218 + 2**30 * …: the double in between decides a tie.
    texts = ["9007199791611905", "16777217", "0.1", "3.4028235677973366e38"]
    (found,) = kept_apart(f'{{"instances": [{",".join(texts)}]}}'.encode())
    inputs = found.nested(np.dtype(np.float32))
    assert inputs is not None
    with np.errstate(over="ignore"):
        expected = np.array([float(text) for text in texts]).astype(np.float32)
    assert inputs.tobytes() == expected.tobytes()


def test_shapes_that_only_the_first_value_has_take_no_memory() -> None:
    # By its first value the body has 2,000 * 60 brackets per number.
    deep = "[" * 60 + "1" + "]" * 60
    body = f'{{"instances": [{deep}{",1" * 200_000}]}}'.encode()
    tracemalloc.start()
    try:
        (found,) = kept_apart(body)
        assert found.nested(np.dtype(np.float32)) is None
        assert tracemalloc.get_traced_memory()[1] < 10 * len(body)
    finally:
        tracemalloc.stop()
