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
from tpuserve_formats.oip.datatypes import datatype_of
from tpuserve_formats.oip.raw_tensor import encode_raw
from tpuserve_server.core.terms.errors import InvalidArgument
from tpuserve_server.core.terms.types import Array, Signature, TensorSpec
from tpuserve_server.wire.oip.decoding import decode_inputs
from tpuserve_server.wire.oip.infer_json import is_infer_json, parse_infer_json
from tpuserve_server.wire.oip.inference import InferenceRequest, RequestedOutput

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
