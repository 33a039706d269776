"""Tests for inference requests over REST: JSON, and binary data after it."""

import json
import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.formats.oip.test_raw_tensor import tensors
from tpuserve_formats.dtypes import STRING
from tpuserve_formats.oip.datatypes import datatype_of, dtype_of
from tpuserve_formats.oip.raw_tensor import encode_raw
from tpuserve_server.core.serving.budgets import DecodedBudget
from tpuserve_server.core.terms.errors import InvalidArgument
from tpuserve_server.core.terms.types import Array, Signature, TensorSpec
from tpuserve_server.wire.oip.decoding import decode_inputs
from tpuserve_server.wire.oip.infer_json import is_infer_json, parse_infer_json
from tpuserve_server.wire.oip.inference import InferenceRequest, RequestedOutput
from tpuserve_server.wire.oip.tensor_json import TakesLong

X: dict[str, Any] = {"name": "x", "datatype": "FP32", "shape": [2], "data": [1, 3]}
BINARY: dict[str, Any] = {"name": "x", "datatype": "FP32", "shape": [2], "parameters": {"binary_data_size": 8}}
DATA = np.array([1, 3], np.float32).tobytes()
SIGNATURE = Signature("s", {"x": TensorSpec("x", np.dtype(np.float32), (None,))}, {})


def parse(document: object, binary: bytes | None = None) -> InferenceRequest:
    text = document if isinstance(document, bytes) else json.dumps(document).encode()
    return parse_infer_json("m", text + (binary or b""), None if binary is None else len(text))


def values(request: InferenceRequest) -> Any:  # noqa: ANN401  # nested lists of numbers
    return decode_inputs("m", SIGNATURE, request)["x"].tolist()


def refusal(document: object, binary: bytes | None = None) -> str:
    with pytest.raises(InvalidArgument) as caught:
        parse(document, binary)
    return caught.value.message


@pytest.mark.parametrize("data", [[1, 3], [[1], [3]], [[[1], 3]]])
def test_data_are_flat_or_nested_in_any_form(data: list[Any]) -> None:
    assert values(parse({"inputs": [{**X, "data": data}]})) == [1.0, 3.0]


def test_binary_data_are_views_in_the_order_of_the_inputs() -> None:
    request = parse({"id": "7", "inputs": [BINARY, {**X, "name": "y"}, {**BINARY, "name": "z"}]}, DATA + b"12345678")
    assert (request.id, [tensor.name for tensor in request.inputs]) == ("7", ["x", "y", "z"])
    first, _, last = [tensor.data for tensor in request.inputs]
    assert isinstance(first, memoryview)
    assert first == DATA
    assert last == b"12345678"


def test_a_length_of_the_whole_body_means_no_binary_data() -> None:
    text = json.dumps({"id": "", "inputs": [X]}).encode()
    request = parse_infer_json("m", text, len(text))
    assert (request.id, values(request)) == ("", [1.0, 3.0])


@pytest.mark.parametrize("body", [DATA, b""])
def test_no_json_means_that_the_body_is_the_only_input(body: bytes) -> None:
    request = parse_infer_json("m", body, 0)
    assert (request.raw_input, request.is_binary) == (body, True)


def test_null_data_are_absent() -> None:
    request = parse({"inputs": [{**BINARY, "data": None, "shape": [0], "parameters": {"binary_data_size": 0}}]})
    assert values(request) == []


def test_outputs_and_parameters_are_read() -> None:
    request = parse(
        {
            "model_name": "unknown members are ignored",
            "inputs": [X],
            "outputs": [
                {"name": "y", "parameters": {"classification": 3, "binary_data": True, "other": {}}},
                {"name": "z", "parameters": {"binary_data": False}},
                {"name": "w"},
            ],
            "parameters": {"signature_name": "s", "timeout": 5, "binary_data_output": True, "headers": {"a": "b"}},
        }
    )
    assert request.outputs == (RequestedOutput("y", 3, True), RequestedOutput("z"), RequestedOutput("w"))
    assert (request.parameters.signature_name, request.is_binary) == ("s", True)


UNSIGNED = "attempt to access JSON non-unsigned-integer as unsigned-integer"


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (b"", "failed to parse the request JSON buffer: JSON Parse error: The document is empty"),
        (b"{", "failed to parse the request JSON buffer: JSON Parse error: Invalid value. at offset: 1"),
        (b'{"inputs": []} 1', "failed to parse the request JSON buffer"),
        (b"[" * 250_000, "failed to parse the request JSON buffer"),
        (b'{"id": "1", "id": "2", "inputs": []}', "an object repeats one of its keys"),
        ([], "Unable to parse 'inputs': attempt to access non-existing object member 'inputs'"),
        ({}, "Unable to parse 'inputs': attempt to access non-existing object member 'inputs'"),
        ({"inputs": {}}, "Unable to parse 'inputs': attempt to access JSON non-array as array"),
        ({"inputs": [3]}, "attempt to access JSON non-object as object"),
        ({"inputs": [X], "outputs": {}}, "Unable to parse 'outputs': attempt to access JSON non-array as array"),
        ({"inputs": [X], "outputs": [{}]}, "Unable to parse 'name': attempt to access non-existing object member"),
        ({"id": 3, "inputs": [X]}, "Unable to parse 'id': attempt to access JSON non-string as string"),
        ({"inputs": [{**X, "name": 3}]}, "Unable to parse 'name': attempt to access JSON non-string as string"),
        ({"inputs": [{**X, "shape": 2}]}, "Unable to parse 'shape': attempt to access JSON non-array as array"),
        ({"inputs": [{**X, "shape": [-1]}]}, f"Unable to parse 'shape': {UNSIGNED}"),
        ({"inputs": [{**X, "shape": [1.0]}]}, f"Unable to parse 'shape': {UNSIGNED}"),
        ({"inputs": [{**X, "shape": [True]}]}, f"Unable to parse 'shape': {UNSIGNED}"),
        ({"inputs": [{**X, "data": 3}]}, "Unable to parse 'data': attempt to access JSON non-array as array"),
        ({"inputs": [{"name": "x", "datatype": "FP32", "shape": [2]}]}, "But no field is set: input 'x'"),
        ({"inputs": [{**X, **BINARY}]}, "But set 'data' 'binary_data_size': input 'x'"),
        ({"inputs": [{**X, "parameters": 3}]}, "Unable to parse 'parameters': attempt to access JSON non-object"),
        ({"inputs": [X], "parameters": []}, "failed to get request params.: attempt to get members for non-object"),
        ({"inputs": [X], "parameters": {"timeout": -1}}, f"Unable to parse 'timeout': {UNSIGNED}"),
        ({"inputs": [X], "parameters": {"priority": 1.5}}, f"Unable to parse 'priority': {UNSIGNED}"),
        ({"inputs": [X], "parameters": {"signature_name": 1}}, "Unable to parse 'signature_name': attempt to access"),
        ({"inputs": [X], "parameters": {"sequence_id": 1.5}}, "Unable to parse 'sequence_id'"),
        ({"inputs": [X], "parameters": {"sequence_end": True}}, "parameter 'sequence_end' is not supported"),
        (
            {"inputs": [X], "outputs": [{"name": "y", "parameters": {"classification": -1}}]},
            f"Unable to parse 'classification': {UNSIGNED}",
        ),
        (
            {"inputs": [X], "outputs": [{"name": "y", "parameters": {"binary_data": 1}}]},
            "Unable to parse 'binary_data': attempt to access JSON non-boolean as boolean",
        ),
    ],
)
def test_malformed_requests_are_refused(document: object, message: str) -> None:
    assert message in refusal(document)


@pytest.mark.parametrize(
    ("size", "binary", "message"),
    [
        (8, DATA[:-1], "unexpected size for input 'x', expecting 1 additional bytes for model 'm'"),
        (2**63, DATA, f"unexpected size for input 'x', expecting {2**63 - 8} additional bytes for model 'm'"),
        (7, DATA, "unexpected additional input data for model 'm': 1 bytes remain after the binary data of all inputs"),
        (-8, DATA, f"Unable to parse 'binary_data_size': {UNSIGNED}"),
        (8.0, DATA, f"Unable to parse 'binary_data_size': {UNSIGNED}"),
        (2**64, DATA, f"Unable to parse 'binary_data_size': {UNSIGNED}"),
        (True, DATA, f"Unable to parse 'binary_data_size': {UNSIGNED}"),
    ],
)
def test_binary_sizes_must_add_up(size: object, binary: bytes, message: str) -> None:
    tracemalloc.start()
    assert refusal({"inputs": [{**BINARY, "parameters": {"binary_data_size": size}}]}, binary) == message
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1_000_000


@given(st.lists(tensors(), max_size=3), st.text(max_size=3), st.data())
def test_tensors_survive_the_trip_in_json_and_as_binary_data(
    arrays: list[Array], name: str, data: st.DataObject
) -> None:
    inputs, contents = [], b""
    specs = {}
    for index, array in enumerate(arrays):
        datatype = datatype_of(array.dtype)
        item: dict[str, Any] = {"name": f"{name}{index}", "datatype": datatype, "shape": array.shape}
        numbers = np.isfinite(array.astype(np.float64)).all() if array.dtype != STRING else False
        if datatype not in ("FP16", "BF16", "BYTES") and numbers and data.draw(st.booleans()):
            item["data"] = array.tolist() if array.ndim else [array.item()]
        else:
            raw = bytes(encode_raw(array))
            item["parameters"] = {"binary_data_size": len(raw)}
            contents += raw
        specs[item["name"]] = TensorSpec(item["name"], array.dtype, None)
        inputs.append(item)
    request = parse({"inputs": inputs, "id": name}, contents)
    decoded = decode_inputs("m", Signature("s", specs, {}), request)
    assert request.id == name
    for array, copy in zip(arrays, decoded.values(), strict=True):
        assert (copy.shape, copy.dtype, copy.tobytes()) == (array.shape, array.dtype, array.tobytes())


@given(st.binary(max_size=60), st.integers(-3, 90))
def test_any_body_is_parsed_or_refused(data: bytes, length: int) -> None:
    for body in (data, json.dumps({"inputs": [BINARY]}).encode() + data):
        try:
            parse_infer_json("m", body, min(max(length, 0), len(body)))
        except InvalidArgument:
            continue


@pytest.mark.parametrize(
    ("body", "is_inference"),
    [
        (b'{"inputs": [{"name": "x", "shape": [1], "datatype": "FP32", "data": [1]}]}', True),
        (b'{"inputs": [{"name": "x", "shape": [1], "datatype": "FP32", "data": [NaN]}], "id": "a"}', True),
        (b'{"inputs": [{"name": "x", "shape": [1], "datatype": "FP32"}, {"name": "y", "shape": [1]}]}', False),
        (b'{"inputs": [{"name": "x", "datatype": "FP32", "data": [1]}]}', False),
        (b'{"inputs": {"name": "x", "shape": [1], "datatype": "FP32"}}', False),
        (b'{"inputs": [["datatype"]]}', False),
        (b'{"inputs": ["datatype"]}', False),
        (b'{"inputs": [], "id": "datatype", "datatype": 1}', False),
        (b'{"instances": [{"name": "x", "shape": [1], "datatype": "FP32"}]}', False),
        (b'[{"name": "x", "shape": [1], "datatype": "FP32"}]', False),
        (b'{"datatype": ', False),
        (b'{"instances": [1]}', False),
        (b"", False),
    ],
)
def test_inference_requests_have_objects_with_the_members_of_tensors(body: bytes, is_inference: bool) -> None:
    assert is_infer_json(body) is is_inference


MEBIBYTE = 1 << 20
MANY_ROWS = 100_000
LARGE = Signature(
    "serving_default",
    {
        "f": TensorSpec("f", np.dtype(np.float32), (None, 2)),
        "s": TensorSpec("s", np.dtype(np.object_), (None,)),
    },
    {},
)


def large_request(**changes: Any) -> bytes:  # noqa: ANN401 (JSON)
    tensors = [
        {"name": "f", "shape": [MANY_ROWS, 2], "datatype": "FP32", "data": [[0.5, 1]] * MANY_ROWS},
        {"name": "s", "shape": [MANY_ROWS], "datatype": "BYTES", "data": ["a],["] * MANY_ROWS},
    ]
    tensors[0] |= changes
    return json.dumps({"id": "7", "inputs": tensors}).encode()


def decode_request(body: bytes, json_bytes: int | None = None) -> dict[str, np.ndarray]:
    return decode_inputs("m", LARGE, parse_infer_json("m", body, json_bytes))


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"], ids=["plain", "byte order mark"])
def test_data_are_decoded_in_pieces(mark: bytes) -> None:
    body = mark + large_request()
    parsed = parse_infer_json("m", body, None)
    arrays = decode_inputs("m", LARGE, parsed)
    assert parsed.id == "7"
    np.testing.assert_array_equal(arrays["f"], np.full((MANY_ROWS, 2), (0.5, 1), np.float32))
    assert set(arrays["s"].tolist()) == {b"a],["}
    assert is_infer_json(body)


def test_binary_data_may_follow() -> None:
    values = np.arange(MANY_ROWS * 2, dtype=np.float32).reshape(MANY_ROWS, 2)
    tensors = [
        {"name": "f", "shape": [MANY_ROWS, 2], "datatype": "FP32", "parameters": {"binary_data_size": values.nbytes}},
        {"name": "s", "shape": [MANY_ROWS], "datatype": "BYTES", "data": ["x"] * MANY_ROWS},
    ]
    text = json.dumps({"inputs": tensors}).encode()
    np.testing.assert_array_equal(decode_request(text + values.tobytes(), len(text))["f"], values)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"data": [True] * 200_000}, "non-number as double: FP32 input 'f' has the value True"),
        ({"data": [0] * 199_999}, "input 'f' has 199999 elements, expected 200000"),
        ({"data": {"a": 1}}, "Unable to parse 'data': attempt to access JSON non-array as array"),
        ({"data": None}, "no field is set"),
        ({"shape": [[1]] * 50_000}, "Unable to parse 'shape'"),
    ],
)
def test_faults_are_those_of_small_requests(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidArgument, match=reason):
        decode_request(large_request(**changes))


@pytest.mark.parametrize("item", [b"[]", b"{}", b"0", b'""'])
def test_floods_are_refused_before_they_take_memory(item: bytes) -> None:
    data = b",".join([item] * (4 * MEBIBYTE // (len(item) + 1)))
    body = b'{"inputs":[{"name":"f","shape":[1,2],"datatype":"FP32","data":[%b]}]}' % data
    tracemalloc.start()
    try:
        with pytest.raises(InvalidArgument, match="more than the 8388608 bytes of max_decoded_bytes"):
            parse_infer_json("m", body, None, DecodedBudget(8 * MEBIBYTE))
        assert tracemalloc.get_traced_memory()[1] < 32 * MEBIBYTE
    finally:
        tracemalloc.stop()


def test_floods_outside_the_data_are_refused() -> None:
    body = b'{"inputs":[],"parameters":[%b]}' % b",".join([b"[]"] * 400_000)
    with pytest.raises(InvalidArgument, match="has 1200028 bytes of JSON beside its data"):
        parse_infer_json("m", body, None, DecodedBudget(8 * MEBIBYTE))
    with pytest.raises(InvalidArgument, match="more than 1024 inputs"):
        parse_infer_json("m", b'{"inputs":[%b]}' % b",".join([b"{}"] * 400_000), None)


@pytest.mark.parametrize(
    ("datatype", "item"), [("FP32", b"NaN"), ("BOOL", b"true"), ("BYTES", b'"a"'), ("FP32", b"[1]")]
)
def test_data_that_take_long_are_left_to_a_worker_thread(datatype: str, item: bytes) -> None:
    data = b",".join([item] * 20_000)
    head = b'{"inputs":[{"name":"x","shape":[20000],"datatype":"%b","data":[%b]}]}'
    body = head % (datatype.encode(), data)
    spec = Signature("s", {"x": TensorSpec("x", dtype_of(datatype), None)}, {})
    is_quick = item == b"[1]"
    try:
        quick = decode_inputs("m", spec, parse_infer_json("m", body, None, quickly=True), quickly=True)
    except TakesLong:
        assert not is_quick
    else:
        assert is_quick
        assert quick["x"].tolist() == [1.0] * 20_000
    found = decode_inputs("m", spec, parse_infer_json("m", body, None))["x"]
    assert len(found) == 20_000
    assert str(found[-1]) in ("nan", "True", "b'a'", "1.0")


def test_many_parameters_are_refused_without_a_search_for_each() -> None:
    members = b",".join(b'"k%d":0' % number for number in range(10_000))
    body = b'{"inputs":[{"name":"x","shape":[1],"datatype":"FP32","data":[1]}],"parameters":{%b}}' % members
    with pytest.raises(InvalidArgument, match="an object has more than 1024 keys"):
        parse_infer_json("m", body, None)


def test_large_unknown_members_are_ignored_and_other_text_is_limited() -> None:
    body = b'{"inputs":[{"name":"x","shape":[1],"datatype":"FP32","data":[1]}],"%b":"%b"}'
    large_request = parse_infer_json("m", body % (b"other", b"a" * 3 * MEBIBYTE), None)
    assert [tensor.name for tensor in large_request.inputs] == ["x"]
    with pytest.raises(InvalidArgument, match="bytes of JSON beside its data"):
        parse_infer_json("m", body % (b"id", b"a" * 3 * MEBIBYTE), None)
