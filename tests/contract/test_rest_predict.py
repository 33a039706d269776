"""TensorFlow Serving's contract: REST's predict, in rows and in columns (json_tensor_test.cc)."""

import base64
import json
import math
from typing import Any

import pytest

from tests.contract.serving_client import Reply, ServingClient


def _predict(serving: ServingClient, signature: str, **body: Any) -> Reply:  # noqa: ANN401  # JSON
    return serving.post("/v1/models/kinds:predict", {"signature_name": signature, **body})


def _raw(serving: ServingClient, body: str, model: str = "kinds") -> Reply:
    return serving.http("POST", f"/v1/models/{model}:predict", body)


def _b64(data: bytes) -> dict[str, str]:
    return {"b64": base64.b64encode(data).decode()}


def test_rows_of_one_input_are_plain(serving: ServingClient) -> None:
    reply = _predict(serving, "serving_default", instances=[[[1, 2], [3, 4]], [[0, 0], [0, 8]]])
    assert (reply.status, reply.json) == (200, {"predictions": [2.5, 2.0]})


def test_rows_of_one_input_may_name_it(serving: ServingClient) -> None:
    reply = _predict(serving, "serving_default", instances=[{"image": [[1, 2], [3, 4]]}])
    assert reply.json == {"predictions": [2.5]}


def test_rows_of_several_inputs_and_outputs(serving: ServingClient) -> None:
    reply = _predict(serving, "two", instances=[{"a": 1, "b": 2}, {"a": 3, "b": 4}])
    assert reply.json == {"predictions": [{"sum": 3.0, "difference": -1.0}, {"sum": 7.0, "difference": -1.0}]}


def test_columns_of_one_input(serving: ServingClient) -> None:
    assert _predict(serving, "echo_float32", inputs=[1, 2]).json == {"outputs": [1.0, 2.0]}
    assert _predict(serving, "echo_float32", inputs={"x": [1, 2]}).json == {"outputs": [1.0, 2.0]}


def test_columns_of_several_inputs_and_outputs(serving: ServingClient) -> None:
    reply = _predict(serving, "two", inputs={"a": [1, 3], "b": [2, 4]})
    assert reply.json == {"outputs": {"sum": [3.0, 7.0], "difference": [-1.0, -1.0]}}


def test_columns_ignore_what_the_signature_does_not_have(serving: ServingClient) -> None:
    assert _predict(serving, "two", inputs={"a": [1], "b": [2], "c": [3]}).status == 200


def test_columns_may_have_scalar_outputs(serving: ServingClient) -> None:
    assert _predict(serving, "scalar", inputs=[1, 2]).json == {"outputs": 3.0}


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"])
def test_integers(serving: ServingClient, dtype: str) -> None:
    reply = _predict(serving, f"echo_{dtype}", instances=[1, 100])
    assert (reply.status, reply.body) == (200, b'{"predictions":[1,100]}')


def test_int64_keeps_every_digit_and_is_a_number(serving: ServingClient) -> None:
    reply = _predict(serving, "echo_int64", instances=[2**53 + 1, -(2**63)])
    assert reply.json == {"predictions": [2**53 + 1, -(2**63)]}


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_floats_never_read_as_integers(serving: ServingClient, dtype: str) -> None:
    reply = _predict(serving, f"echo_{dtype}", instances=[1, 0.5])
    assert (reply.status, reply.json) == (200, {"predictions": [1.0, 0.5]})
    assert b"1.0" in reply.body


def test_floats_take_integers_and_decimals_alike(serving: ServingClient) -> None:
    assert _predict(serving, "echo_float64", instances=[1, 2.5, -3]).json == {"predictions": [1.0, 2.5, -3.0]}


def test_numbers_beyond_a_float_are_infinite(serving: ServingClient) -> None:
    reply = _raw(serving, '{"signature_name": "echo_float32", "instances": [1e40, -1e40, 1e-60]}')
    assert reply.json == {"predictions": [math.inf, -math.inf, 0.0]}


def test_nan_and_infinity_are_bare_tokens_both_ways(serving: ServingClient) -> None:
    reply = _raw(serving, '{"signature_name": "echo_float32", "instances": [NaN, Infinity, -Infinity]}')
    assert reply.status == 200
    assert reply.body.replace(b" ", b"") == b'{"predictions":[NaN,Infinity,-Infinity]}'


def test_booleans(serving: ServingClient) -> None:
    assert _predict(serving, "echo_bool", instances=[True, False]).json == {"predictions": [True, False]}
    assert _predict(serving, "echo_bool", instances=[1]).status == 400


def test_strings_and_base64(serving: ServingClient) -> None:
    reply = _predict(serving, "text", instances=["a", _b64(b"bytes")])
    first, second = reply.json["predictions"]
    assert first == {"plain": "a", "raw_bytes": _b64(b"a")}
    assert second == {"plain": "bytes", "raw_bytes": _b64(b"bytes")}


def test_complex_has_no_json_form(serving: ServingClient) -> None:
    reply = _predict(serving, "echo_complex64", instances=[1])
    assert reply.status == 501
    assert "Conversion of JSON Value: 1 to type: complex64" in reply.error


# Errors.


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("", "JSON Parse error: The document is empty"),
        ("instances = [1, 2]", "JSON Parse error: Invalid value"),
        ('{"instances": [1, 2', "JSON Parse error"),
        ("[1, 2]", "Is not object"),
        ('{"signature_name": 100}', "'signature_name' key must be a string value."),
        ("{}", "Missing 'inputs' or 'instances' key"),
        ('{"instances": [1], "inputs": [1]}', "Not formatted correctly"),
        ('{"signature_name": "absent", "instances": [1]}', 'Serving signature name: "absent" not found'),
        ('{"signature_name": "echo_int32", "instances": [[1,2],[3,4],[5,6,7]]}', "Expecting tensor size"),
        ('{"signature_name": "echo_int32", "instances": [[1,2],[3,4],[[5,6]]]}', "Expecting shape"),
        ('{"signature_name": "echo_int32", "instances": [1, [1]]}', "Expecting shape"),
        ('{"signature_name": "echo_int32", "instances": [[1,2],["a", "b"]]}', "not of expected type: int32"),
        ('{"signature_name": "echo_int32", "instances": [1.0]}', "not of expected type: int32"),
        ('{"signature_name": "echo_int8", "instances": [1000]}', "not of expected type: int8"),
        ('{"signature_name": "echo_float32", "instances": [{"b64": "AA=="}]}', "expected type: float"),
        ('{"signature_name": "echo_float32", "instances": ["x"]}', "not of expected type: float"),
        ('{"signature_name": "text", "instances": [{"b64": "!"}]}', "Unable to base64 decode"),
        ('{"signature_name": "two", "instances": [1, 2]}', "expecting list of objects"),
        ('{"signature_name": "two", "instances": [{"a": 1}]}', "keys must be equal to: a,b"),
        ('{"signature_name": "two", "instances": [{"a": 1, "b": 2, "c": 3}]}', "does not have named input: c"),
        ('{"signature_name": "two", "instances": [{"a": 1, "b": 2}, [1]]}', "Expecting object but got list"),
        ('{"signature_name": "two", "inputs": {"a": [1]}}', "Missing named input: b in 'inputs' object."),
        ('{"signature_name": "echo_int32", "instances": [1, {"x": 1}]}', "Expecting value/list but got object"),
        ('{"signature_name": "scalar", "instances": [1, 2]}', "has no shape information"),
        ('{"signature_name": "uneven", "instances": [1, 2]}', "has inconsistent batch size"),
        ('{"instances": ' + "[" * 200 + "]" * 200 + "}", "nested"),
        ('{"strange": ' + "[" * 5000 + "]" * 5000 + ', "instances": [1]}', "JSON Parse error"),
        ('{"instances": [1], "instances": [2]}', "duplicate key"),
        ('{"instances": [99999999999999999999999999], "signature_name": "echo_int64"}', "not of expected type: int64"),
    ],
)
def test_bad_requests(serving: ServingClient, body: str, message: str) -> None:
    reply = _raw(serving, body)
    assert reply.status == 400
    assert message in reply.error
    assert "Traceback" not in reply.error
    assert serving.post("/v1/models/half:predict", {"instances": [[2.0]]}).json == {"predictions": [[4.0]]}


def test_a_dtype_error_names_value_type_and_what_was_expected(serving: ServingClient) -> None:
    reply = _predict(serving, "echo_int32", instances=["a"])
    assert 'JSON Value: "a" Type: String is not of expected type: int32' in reply.error


def test_an_answer_is_json(serving: ServingClient) -> None:
    assert json.loads(_predict(serving, "echo_float32", instances=[0.1]).body) == {"predictions": [0.1]}


@pytest.mark.parametrize(
    ("body", "answer"),
    [
        ('{"signature_name": "", "instances": [[[1, 2], [3, 4]]]}', {"predictions": [2.5]}),
        ('{"signature_name": "echo_float32", "inputs": []}', {"outputs": []}),
        ('{"signature_name": "two", "inputs": {"a": [], "b": []}}', {"outputs": {"difference": [], "sum": []}}),
        ('{"signature_name": "echo_string", "inputs": [{"b64": "aGk="}]}', {"outputs": ["hi"]}),
        ('{"signature_name": "echo_string", "inputs": {"x": [{"b64": "aGk="}]}}', {"outputs": ["hi"]}),
        (
            '{"signature_name": "echo_float32", "\\u0069nstances": [1E5, -0, 0e1]}',
            {"predictions": [100000.0, 0.0, 0.0]},
        ),
        ('{"signature_name": "echo_uint64", "instances": [18446744073709551615]}', {"predictions": [2**64 - 1]}),
    ],
)
def test_unusual_requests(serving: ServingClient, body: str, answer: object) -> None:
    reply = _raw(serving, body)
    assert (reply.status, reply.json) == (200, answer)


@pytest.mark.parametrize("value", ['{"b64": "aGk="}', '"hi"', '[["hi"]]', "[[]]"])
def test_values_of_another_rank_than_the_signatures_are_refused(serving: ServingClient, value: str) -> None:
    reply = _raw(serving, f'{{"signature_name": "echo_string", "inputs": {value}}}')
    assert reply.status == 400
    assert "input 'x' has shape" in reply.error
    assert "expected [-1]" in reply.error


NUMBERS_THAT_ARE_NONE = [
    "01",
    "+1",
    ".5",
    "1.",
    "0x10",
    "1e",
    "-",
    "1_0",
    "1f",
    "nan",
    "--1",
    "1 2",
    "'1'",
    "1,",
    "\x00",
    "\ufeff1",
]


@pytest.mark.parametrize("number", NUMBERS_THAT_ARE_NONE)
@pytest.mark.parametrize("padding", ["", " " * 4096])
def test_what_is_no_json_is_told(serving: ServingClient, number: str, padding: str) -> None:
    body = f'{{"signature_name": "echo_float32", "instances": [{number}]}}{padding}'
    reply = _raw(serving, body)
    assert reply.status == 400
    assert reply.error.startswith("JSON Parse error: Invalid value.")


def test_a_key_twice_in_two_spellings_is_refused(serving: ServingClient) -> None:
    reply = _raw(serving, '{"signature_name": "echo_float32", "instances": [1], "\\u0069nstances": [2]}')
    assert reply.status == 400
