"""Tests for REST predict requests: upstream's cases (json_tensor_test.cc), types, shapes and messages."""

import base64
import json
import math
import tracemalloc
from collections.abc import Callable, Mapping
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import DTypeLike

from tpuserve_formats.dtypes import BY_DTYPE
from tpuserve_server.core.terms.errors import InvalidArgument, ServingError, Unimplemented
from tpuserve_server.core.terms.types import Signature, TensorSpec
from tpuserve_server.wire.json.conversion import explain_columns, explain_rows
from tpuserve_server.wire.json.predict import JsonInputs, decode_predict_inputs, parse_predict_body, with_parameters

STRING = np.dtype(np.object_)


def signature(**inputs: DTypeLike) -> Signature:
    specs = {name: TensorSpec(name, np.dtype(dtype), None) for name, dtype in inputs.items()}
    return Signature("serving_default", specs, {})


def decode(body: str, **inputs: DTypeLike) -> JsonInputs:
    return decode_predict_inputs(parse_predict_body(body.encode()), signature(**inputs))


def lists(decoded: JsonInputs) -> Mapping[str, object]:
    return {name: array.tolist() for name, array in decoded.inputs.items()}


def fail(body: str, **inputs: DTypeLike) -> str:
    with pytest.raises(InvalidArgument) as caught:
        decode(body, **inputs)
    return caught.value.message


def test_rows_of_one_input_are_a_plain_list() -> None:
    decoded = decode('{"instances": [[1,2],[3,4],[5,6]]}', x=np.int32)
    assert decoded.is_row
    assert decoded.inputs["x"].dtype == np.int32
    assert lists(decoded) == {"x": [[1, 2], [3, 4], [5, 6]]}


def test_rows_of_one_input_may_name_it() -> None:
    assert lists(decode('{"instances": [{"x": [1, 2]}, {"x": [3, 4]}]}', x=np.int32)) == {"x": [[1, 2], [3, 4]]}


def test_rows_of_several_inputs_are_objects() -> None:
    decoded = decode(
        """{"instances": [
            {"i": [[1,2],[3,4]], "s": ["foo", "bar"], "f": [1.0, NaN], "d": [NaN], "b": true},
            {"b": false, "i": [[7,8],[9,0]], "s": ["baz", "bat"], "f": [2.0, Infinity], "d": [2.0]}
        ]}""",
        i=np.int32,
        s=STRING,
        f=np.float32,
        d=np.float64,
        b=np.bool_,
    )
    assert decoded.inputs["i"].shape == (2, 2, 2)
    assert decoded.inputs["s"].tolist() == [[b"foo", b"bar"], [b"baz", b"bat"]]
    np.testing.assert_array_equal(decoded.inputs["f"], np.array([[1, math.nan], [2, math.inf]], np.float32))
    np.testing.assert_array_equal(decoded.inputs["d"], [[math.nan], [2]])
    assert decoded.inputs["b"].tolist() == [True, False]


def test_columns_are_an_object_or_the_one_input() -> None:
    for body in ('{"inputs": {"x": [[[1,2],[3,4]]]}}', '{"inputs": [[[1,2],[3,4]]]}'):
        decoded = decode(body, x=np.int32)
        assert not decoded.is_row
        assert lists(decoded) == {"x": [[[1, 2], [3, 4]]]}


def test_columns_may_be_scalars_and_bring_more_than_is_wanted() -> None:
    decoded = decode('{"inputs": {"i": 3, "s": {"b64": "aGVsbG8="}, "more": {"b64": 1}}}', i=np.int64, s=STRING)
    assert lists(decoded) == {"i": 3, "s": b"hello"}
    assert decoded.inputs["s"].shape == ()


def test_signature_name_is_read_before_inputs() -> None:
    assert parse_predict_body(b'{"signature_name": "s", "instances": 1}').signature_name == "s"
    assert parse_predict_body(b"{}").signature_name == ""


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("aGVsbG8=", b"hello"),
        ("aGVsbG8", b"hello"),
        ("aGVs\\nbG8 =", b"hello"),
        ("", b""),
        ("/+8=", b"\xff\xef"),
    ],
)
def test_base64_as_absl_reads_it(text: str, value: bytes) -> None:
    assert lists(decode(f'{{"instances": [{{"b64": "{text}"}}, "é"]}}', s=STRING)) == {"s": [value, "é".encode()]}


def test_base64_may_be_nested() -> None:
    decoded = decode('{"instances": [[{"b64": "aGVsbG8="}], [{"b64": "d29ybGQ="}]]}', s=STRING)
    assert lists(decoded) == {"s": [[b"hello"], [b"world"]]}


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e5m2])
def test_floats_take_any_number(dtype: DTypeLike) -> None:
    numbers = decode('{"instances": [1, 2.0, 1435774380, 0.007, -0.0, 1e300, -1e300]}', x=dtype).inputs["x"]
    assert numbers.dtype == np.dtype(dtype)
    with np.errstate(over="ignore"):
        expected = np.array([1, 2, 1435774380, 0.007, -0.0, 1e300, -1e300]).astype(dtype)
    assert numbers.tobytes() == expected.tobytes()


@pytest.mark.parametrize("dtype", [np.float64, ml_dtypes.bfloat16, ml_dtypes.float8_e5m2])
def test_floats_take_integers_over_64_bits(dtype: DTypeLike) -> None:
    array = decode(f'{{"instances": [1, {2**63}]}}', x=dtype).inputs["x"]
    np.testing.assert_array_equal(
        array.astype(np.float64), np.array([1, 2**63], np.float64).astype(dtype).astype(np.float64)
    )


def test_integers_beyond_a_double_become_infinite_floats() -> None:
    huge = "9" * 400
    assert lists(decode(f'{{"instances": [NaN, {huge}, -{huge}, 1.5]}}', x=np.float64))["x"][1:] == [  # type: ignore[index]  # a list
        math.inf,
        -math.inf,
        1.5,
    ]


@pytest.mark.parametrize("dtype", ["i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8"])
def test_integers_take_their_whole_range_and_nothing_else(dtype: str) -> None:
    info = np.iinfo(dtype)
    assert lists(decode(f'{{"instances": [{info.min}, {info.max}]}}', x=dtype)) == {"x": [info.min, info.max]}
    for value in (str(info.max + 1), str(info.min - 1), "1.0", "true", "null", '"1"', "NaN", '{"b64": ""}'):
        assert "is not of expected type: " in fail(f'{{"instances": [0, {value}]}}', x=dtype)


def test_booleans_are_strict() -> None:
    assert lists(decode('{"instances": [true, false]}', x=np.bool_)) == {"x": [True, False]}
    for value in ("1", "0.0", '"true"', "null"):
        assert "is not of expected type: bool" in fail(f'{{"instances": [true, {value}]}}', x=np.bool_)


@pytest.mark.parametrize("value", ["true", "null", '"1.5"', '{"b64": "MQ=="}'])
def test_floats_take_nothing_but_numbers(value: str) -> None:
    assert "is not of expected type: float" in fail(f'{{"instances": [[1.5, {value}]]}}', x=np.float32)


@pytest.mark.parametrize("body", ['{"instances": [[], []]}', '{"inputs": [[], []]}'])
@pytest.mark.parametrize("dtype", [*BY_DTYPE], ids=str)
def test_empty_lists_have_a_shape_and_no_values(body: str, dtype: np.dtype[Any]) -> None:
    if dtype.kind == "c":
        return
    array = decode(body, x=dtype).inputs["x"]
    assert (array.shape, array.dtype) == ((2, 0), dtype)


ROW = "Failed to process element: {} of 'instances' list. Error: INVALID_ARGUMENT: {}".format
PLAIN = "as multiple input tensors required as per tensorinfo_map"
ONE_INT = {"x": np.int32}
TWO = {"i": np.int32, "s": STRING}


@pytest.mark.parametrize(
    ("body", "inputs", "message"),
    [
        ("[1]", ONE_INT, "JSON Value: [1] Is not object"),
        ("{}", ONE_INT, "Missing 'inputs' or 'instances' key"),
        (
            '{"signature_name": 5}',
            ONE_INT,
            'JSON Value: {\n    "signature_name": 5\n} not formatted correctly. '
            "'signature_name' key must be a string value.",
        ),
        (
            '{"instances": [1], "inputs": [1]}',
            ONE_INT,
            'JSON Value: {\n    "instances": [1],\n    "inputs": [1]\n} Not formatted correctly expecting only one of '
            "'inputs' or 'instances' keys to exist ",
        ),
        (
            '{"instances": 1}',
            ONE_INT,
            "JSON Value: {\n    \"instances\": 1\n} Expecting 'instances' to be an list/array",
        ),
        ('{"instances": []}', ONE_INT, "JSON Value: {\n    \"instances\": []\n} No values in 'instances' array"),
        ('{"instances": [1]}', {}, "Failed to get input map for signature: DEFAULT"),
        ('{"instances": [[1,2],[3,4],[5,6,7]]}', ONE_INT, ROW(2, "Expecting tensor size: 2 but got: 3")),
        ('{"instances": [[1,2],[3,4],[[5,6]]]}', ONE_INT, ROW(2, "Expecting shape [2] but got: [1,2]")),
        ('{"instances": [1, [1]]}', ONE_INT, ROW(1, "Expecting shape [] but got: [1]")),
        (
            '{"instances": [[1,2],["a", "b"]]}',
            ONE_INT,
            ROW(1, 'JSON Value: "a" Type: String is not of expected type: int32'),
        ),
        (
            '{"instances": [[[1],2]]}',
            ONE_INT,
            ROW(0, "JSON Value: 2 found at incorrect level: 2 in the JSON DOM. Expected at level: 2"),
        ),
        ('{"instances": [[1,[2]]]}', ONE_INT, ROW(0, "Encountered list at unexpected level: 1 expected < 1")),
        (
            '{"instances": [[[1],[2,3]]]}',
            ONE_INT,
            ROW(0, "Encountered list at unexpected size: 2 at level: 1 expected size: 1"),
        ),
        ('{"instances": [1, {"x": 1}]}', ONE_INT, "Expecting value/list but got object at item 1 of input list"),
        ('{"instances": [{"x": 1}, 1]}', ONE_INT, "Expecting object but got list at item 1 of input list"),
        (
            '{"instances": [{"y": 1}]}',
            ONE_INT,
            "Failed to process element: 0 key: y of 'instances' list. Error: INVALID_ARGUMENT: "
            "JSON object: does not have named input: y",
        ),
        (
            '{"instances": [{"i": 1, "s": ""}, {"i": 1}]}',
            TWO,
            "Failed to process element: 1 of 'instances' list. JSON object: {\n    \"i\": 1\n} keys must be equal"
            " to: i,s",
        ),
        ('{"instances": [1]}', TWO, f"instances is a plain list, but expecting list of objects {PLAIN}"),
        ('{"instances": [{"b64": ""}]}', TWO, f"instances is a plain list, but expecting list of objects {PLAIN}"),
        (
            '{"instances": [{"i": 1, "s": {"b64": "!"}}]}',
            TWO,
            "Failed to process element: 0 key: s of 'instances' list. Error: INVALID_ARGUMENT: Unable to base64 decode",
        ),
        (
            '{"instances": [{"i": 1, "s": {"b64": 1}}]}',
            TWO,
            "Failed to process element: 0 key: s of 'instances' list. Error: INVALID_ARGUMENT: "
            'JSON Value: {\n    "b64": 1\n} not formatted correctly for base64 data',
        ),
        (
            '{"instances": [{"i": 1, "s": {"b64": "YQ=="}}, {"s": "a", "i": "x"}]}',
            TWO,
            "Failed to process element: 1 key: i of 'instances' list. Error: INVALID_ARGUMENT: "
            'JSON Value: "x" Type: String is not of expected type: int32',
        ),
        ('{"inputs": [1]}', TWO, f"inputs is a plain value/list, but expecting an object {PLAIN}"),
        ('{"inputs": {"i": 1}}', TWO, "Missing named input: s in 'inputs' object."),
        ('{"inputs": {"i": 1, "s": 2}}', TWO, "JSON Value: 2 Type: Number is not of expected type: string"),
        ('{"inputs": [1, null]}', ONE_INT, "JSON Value: null Type: Null is not of expected type: int32"),
        ('{"inputs": {"x": true}}', ONE_INT, "JSON Value: true Type: True is not of expected type: int32"),
    ],
)
def test_faults_are_told_in_upstreams_words(body: str, inputs: dict[str, DTypeLike], message: str) -> None:
    assert fail(body, **inputs) == message


@pytest.mark.parametrize("dtype", [np.complex64, np.complex128, "datetime64[s]"])
@pytest.mark.parametrize("body", ['{"instances": [[1]]}', '{"inputs": [1]}'])
def test_types_without_json_are_unimplemented(dtype: str, body: str) -> None:
    with pytest.raises(Unimplemented, match="Conversion of JSON Value: 1 to type: "):
        decode(body, x=dtype)


@pytest.mark.parametrize("text", ["\\ud800", "\\udc00\\ud800", "\\ud83d\\u0041", "\\uD83Dx", "\\\\\\ud800"])
def test_lone_surrogates_are_no_text(text: str) -> None:
    for body in (f'{{"instances": [NaN, "{text}"]}}', f'{{"inputs": [1], "n": NaN, "{text}": 1}}'):
        assert fail(body, x=STRING) == "JSON Parse error: The surrogate pair in string is invalid."
    assert fail(f'{{"inputs": ["{text}"]}}', x=STRING).startswith("JSON Parse error: ")


def test_surrogate_pairs_are_text_beside_numbers_that_are_not_finite() -> None:
    body = r'{"inputs": ["\ud83D\ude00\\ud800\u00e9"], "n": NaN}'
    assert decode(body, x=STRING).inputs["x"].tolist() == ["\U0001f600\\ud800é".encode()]


@pytest.mark.parametrize(
    "body",
    [
        '{"instances": [1], "more": %s}',
        '{"instances": %s}',
        '{"instances": [{"x": %s}]}',
        '{"inputs": %s}',
        '{"inputs": {"x": %s}}',
        '{"inputs": {"x": 1, "more": %s}}',
    ],
)
def test_deep_nesting_is_refused_wherever_it_is(body: str) -> None:
    deep = "[" * 200 + "]" * 200
    assert fail(body % deep, x=np.int32) == "JSON Parse error: nested more than 100 levels deep"


def test_more_dimensions_than_numpy_has_are_refused() -> None:
    deep = "[" * 70 + "1" + "]" * 70
    assert fail(f'{{"instances": {deep}}}', x=np.int32) == "'instances' cannot be converted to tensors"
    assert fail(f'{{"inputs": {deep}}}', x=np.int32) == "'inputs' cannot be converted to tensors"


LEAVES = (
    st.integers(-300, 300)
    | st.sampled_from([2**31, 2**63, 2**64, -(2**70), 1.5, 1e39, math.nan, True, None, "a", "\ud800"])
    | st.sampled_from([{"b64": "YQ"}, {"b64": "!"}, {"b64": 1}, {"x": 1}, {}])
)
NESTED = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=3), max_leaves=8)
ITEMS = NESTED | st.fixed_dictionaries({"x": NESTED}, optional={"y": NESTED})


def refusal_of(act: Callable[[], object]) -> str | None:
    try:
        act()
    except ServingError as error:
        return error.message
    return None


@given(
    form=st.tuples(st.just(True), st.lists(ITEMS, min_size=1, max_size=4)) | st.tuples(st.just(False), ITEMS),
    dtypes=st.lists(st.sampled_from([*BY_DTYPE]), min_size=1, max_size=2),
)
@settings(max_examples=600, deadline=None)
def test_a_request_is_refused_if_and_only_if_upstreams_walk_finds_a_fault(
    form: tuple[bool, Any],
    dtypes: list[np.dtype[Any]],
) -> None:
    is_row, value = form
    wanted = signature(**dict(zip(("x", "y"), dtypes, strict=False)))
    body = json.dumps({"instances" if is_row else "inputs": value, "more": math.nan})
    # The message of a walk that finds no fault.
    no_fault = "cannot be converted to tensors"
    refusal = refusal_of(lambda: decode_predict_inputs(parse_predict_body(body.encode()), wanted))
    if refusal is None:
        refusal = refusal_of(lambda: explain_rows(value, wanted) if is_row else explain_columns(value, wanted))
        assert refusal is not None
        assert no_fault in refusal
    else:
        assert no_fault not in refusal


@given(st.lists(st.binary(max_size=5), min_size=1))
@settings(deadline=None)
def test_any_bytes_pass_as_base64(values: list[bytes]) -> None:
    rows = [{"b64": base64.b64encode(value).decode()} for value in values]
    assert lists(decode(json.dumps({"instances": rows}), s=STRING)) == {"s": values}


MIXED = [
    '{"instances": [%s, "%s"]}',
    '{"instances": [[%s, "%s"]]}',
    '{"instances": [{"x": [%s, "%s"]}]}',
    '{"inputs": [%s, "%s"]}',
    '{"inputs": {"x": [%s, "%s"]}}',
    '{"signature_name": "", "inputs": {"x": [%s, "%s"]}}',
    # The string adds as many colons as one more member.
    '{"inputs": {"x": [%s, ":%s"]}}',
    '{":": 1, "inputs": [%s, "%s"]}',
    '{"instances": [%s, "\\":%s"]}',
]


def peak_bytes(body: bytes) -> int:
    """Return the peak memory, in bytes, of decoding or rejecting `body`."""
    tracemalloc.start()
    try:
        refusal_of(lambda: decode_predict_inputs(parse_predict_body(body), signature(x=np.float32)))
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("form", MIXED)
def test_a_string_among_numbers_takes_memory_in_proportion_to_the_body(form: str) -> None:
    # numpy would give each number the string's size: 4 bytes * 10,000 * 10,000.
    body = (form % (",".join(["1"] * 10_000), "s" * 10_000)).encode()
    assert peak_bytes(body) < 100 * len(body)


@pytest.mark.parametrize("other", ["null", '{"y": 1}', "{}", "[]", "1e400", str(10**30)])
def test_what_is_no_string_takes_little_memory_too(other: str) -> None:
    body = f'{{"instances": [{",".join([other, "1.5"] * 10_000)}]}}'.encode()
    assert peak_bytes(body) < 100 * len(body)


@pytest.mark.parametrize(
    ("body", "name"),
    [
        (b'{"instances": [1]}', ""),
        (b'{"instances": [1], "signature_name": "s"}', "s"),
        (b'{"instances": [1], "parameters": null}', ""),
        (b'{"instances": [1], "parameters": {}}', ""),
        (b'{"instances": [1], "parameters": {"signature_name": ""}}', ""),
        (b'{"instances": [1], "parameters": {"signature_name": "s"}}', "s"),
        (b'{"instances": [1], "param\\u0065ters": {"signature_name": "s"}}', "s"),
        (b'{"instances": [1], "signature_name": "s", "parameters": {"signature_name": "s"}}', "s"),
        (b'{"instances": [{"parameters": 1}]}', ""),
        (b'{"instances": ["\\n"]}', ""),
    ],
)
def test_the_signature_comes_from_the_body_or_its_parameters(body: bytes, name: str) -> None:
    assert with_parameters(parse_predict_body(body)).signature_name == name


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        (b"[]", '\'parameters\' must be an object, such as {"signature_name": "serving_default"}'),
        (b'"s"', '\'parameters\' must be an object, such as {"signature_name": "serving_default"}'),
        (b'{"top_k": 5}', "'parameters' may hold only 'signature_name'; it also holds 'top_k'"),
        (b'{"signature_name": 3}', "'signature_name' in 'parameters' must be a string"),
        (b'{"signature_name": "t"}', "The request names two signatures: 's', and 't' in 'parameters'"),
    ],
)
def test_other_parameters_are_refused_by_name(parameters: bytes, message: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        with_parameters(parse_predict_body(b'{"instances": [1], "signature_name": "s", "parameters": %b}' % parameters))
    assert caught.value.message == message
