"""Tests for ModelInferRequest and ModelInferResponse."""

import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.formats.oip.test_raw_tensor import tensors
from tpuserve_formats.messages.oip import InferParameter, ModelInferRequest, ModelInferResponse
from tpuserve_formats.oip.datatypes import datatype_of
from tpuserve_formats.oip.raw_tensor import decode_raw, encode_raw
from tpuserve_server.core.terms.errors import InvalidArgument, Unimplemented, shown
from tpuserve_server.core.terms.types import Array, ModelSpec, ServableId
from tpuserve_server.wire.oip.infer_proto import encode_infer_response, is_split_quickly, parse_infer_request
from tpuserve_server.wire.oip.inference import InferenceResult, RequestedOutput

Tensor = ModelInferRequest.InferInputTensor
X = Tensor(name="x", datatype="FP32", shape=[2])
DATA = np.array([1, 3], np.float32).tobytes()


def request(*inputs: Tensor, raw: Any = (), **fields: Any) -> bytes:  # noqa: ANN401 (fields of the message)
    return ModelInferRequest(model_name="m", inputs=inputs, raw_input_contents=raw, **fields).SerializeToString()


def refusal(body: bytes) -> str:
    with pytest.raises(InvalidArgument) as caught:
        parse_infer_request(body)
    return caught.value.message


def test_raw_contents_are_views_of_the_message() -> None:
    body = request(X, raw=[DATA], id="é", model_version="3")
    spec, parsed = parse_infer_request(body)
    ((name, datatype, shape, data),) = parsed.inputs
    assert (spec, parsed.id, name, datatype, shape) == (ModelSpec("m", 3), "é", "x", "FP32", (2,))
    assert isinstance(data, memoryview)
    assert data.obj is body
    assert data == DATA


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        pytest.param(request(X, raw=[bytes(1 << 20)] * 2, id="i"), True, id="large raw contents"),
        pytest.param(request(X, raw=[b""] * 100), False, id="many fields"),
        pytest.param(request(X), False, id="no raw contents"),
        pytest.param(request(Tensor(name="n" * 2000), raw=[bytes(1 << 20)]), False, id="a long head"),
        pytest.param(request(X, raw=[bytes(1 << 20)])[:-1], False, id="malformed"),
        pytest.param(request(X, raw=[bytes(1 << 20)]) + b"\x82\x7d\x00", False, id="an unknown field"),
    ],
)
def test_large_raw_contents_in_few_fields_are_read_quickly(body: bytes, expected: bool) -> None:
    assert is_split_quickly(body) is expected


def test_a_head_of_any_length_is_read() -> None:
    for length in (3, 5000):
        tensors = [Tensor(name=f"{'n' * length}{i}", datatype="FP32", shape=[2]) for i in range(2)]
        _, parsed = parse_infer_request(request(*tensors, raw=[DATA, b"1" * 300]))
        assert [tensor.name for tensor in parsed.inputs] == [shown(tensor.name) for tensor in tensors]
        assert [len(tensor.data) for tensor in parsed.inputs] == [8, 300]  # type: ignore[arg-type]  # views


def test_requests_with_the_same_head_have_their_own_ids_and_data() -> None:
    for number in range(3):
        _, parsed = parse_infer_request(request(X, raw=[b"%08d" % number], id=str(number)))
        assert (parsed.id, parsed.inputs[0].data) == (str(number), b"%08d" % number)


def test_typed_contents_and_no_inputs_are_read() -> None:
    tensor = Tensor(name="x", datatype="FP32", shape=[2])
    tensor.contents.fp32_contents.extend([1, 3])
    _, parsed = parse_infer_request(request(tensor))
    assert parsed.inputs[0].data == tensor.contents
    assert parse_infer_request(request()).request.inputs == []


def test_unknown_fields_are_ignored() -> None:
    _, parsed = parse_infer_request(request(X, raw=[DATA]) + b"\x42\x01a" + b"\xba\x3e\x02bc")
    assert parsed.inputs[0].data == DATA


def test_requested_outputs_and_parameters_are_read() -> None:
    classes = {"classification": InferParameter(int64_param=3), "other": InferParameter(bool_param=True)}
    outputs = [{"name": "y"}, {"name": "z", "parameters": classes}]
    parameters = {
        "signature_name": InferParameter(string_param="s"),
        "timeout": InferParameter(int64_param=250),
        "priority": InferParameter(uint64_param=2),
        "binary_data_output": InferParameter(string_param="a custom parameter over gRPC"),
        "custom": InferParameter(double_param=1.5),
        "unset": InferParameter(),
        "triton_enable_empty_final_response": InferParameter(bool_param=True),
    }
    spec, parsed = parse_infer_request(request(X, raw=[DATA], outputs=outputs, parameters=parameters))
    assert spec.signature_name == "s"
    assert parsed.outputs == (RequestedOutput("y"), RequestedOutput("z", 3))
    assert (parsed.parameters.timeout_s, parsed.parameters.priority) == (0.00025, 1)


TYPED = Tensor(name="x", datatype="FP32", shape=[2], contents={"fp32_contents": [1, 3]})
Y = Tensor(name="y", datatype="FP32", shape=[2])


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"\xff", "Malformed ModelInferRequest"),
        (request(X, raw=[DATA])[:-1], "Malformed ModelInferRequest"),
        (b"\x1a\x01\xff" + request(X, raw=[DATA]), "Malformed ModelInferRequest"),
        (
            request(TYPED, raw=[DATA]),
            "contents field must not be specified when using raw_input_contents for 'x' for model 'm'",
        ),
        (
            request(X, TYPED, raw=[DATA]),
            "contents field must not be specified when using raw_input_contents for 'x' for model 'm'",
        ),
        (request(X, Y, raw=[DATA]), "unable to find data for input tensor 'y' for model 'm' in request."),
        (request(X, raw=[DATA] * 2), "expected 1 raw_input_contents for the inputs of model 'm', got 2"),
        (
            request(X, raw=[DATA], model_version="v1"),
            "failed to get model version from specified version string 'v1', version should be an integral value > 0",
        ),
        (
            request(X, outputs=[{"name": "y", "parameters": {"classification": InferParameter(string_param="1")}}]),
            "invalid value type for 'classification' parameter, expected int64_param",
        ),
        (
            request(X, outputs=[{"name": "y", "parameters": {"classification": InferParameter(int64_param=0)}}]),
            "invalid value for 'classification' parameter, expected > 0, got 0",
        ),
        (
            request(X, parameters={"priority": InferParameter(int64_param=-1)}),
            "invalid value for 'priority', expected value >= 0.",
        ),
        (
            request(X, parameters={"priority": InferParameter(bool_param=True)}),
            "invalid value type for 'priority' parameter, expected int64_param or uint64_param.",
        ),
        (
            request(X, parameters={"timeout": InferParameter()}),
            "invalid value type for 'timeout' parameter, expected int64_param.",
        ),
        (
            request(X, parameters={"sequence_id": InferParameter(int64_param=4)}),
            "parameter 'sequence_id' is not supported: models of this server keep no state between requests",
        ),
    ],
)
def test_wrong_requests_are_refused(body: bytes, message: str) -> None:
    assert refusal(body) == message


def test_a_declared_length_allocates_nothing() -> None:
    tracemalloc.start()
    refusal(request(X) + b"\x3a\xff\xff\xff\xff\x07" + b"1")
    refusal(request(X) + b"\x3a" + b"\xff" * 12)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1_000_000


@given(st.binary(max_size=40))
def test_any_bytes_are_parsed_as_protobuf_does(data: bytes) -> None:
    for body in (data, request(X, raw=[DATA]) + data):
        try:
            _, parsed = parse_infer_request(body)
        except InvalidArgument:
            continue
        proto = ModelInferRequest.FromString(body)
        assert parsed.id == proto.id
        assert [tensor.name for tensor in parsed.inputs] == [tensor.name for tensor in proto.inputs]
        if proto.raw_input_contents:
            assert [tensor.data for tensor in parsed.inputs] == list(proto.raw_input_contents)


@given(tensors(), st.text(max_size=3))
def test_a_response_has_the_outputs_as_raw_contents(array: Array, request_id: str) -> None:
    result = InferenceResult(request_id, ServableId("m", 7), {"a": array, "b": array}, {}, is_binary=True)
    response = ModelInferResponse.FromString(encode_infer_response(result))
    assert (response.model_name, response.model_version, response.id) == ("m", "7", request_id)
    assert [output.name for output in response.outputs] == ["a", "b"]
    for output, raw in zip(response.outputs, response.raw_output_contents, strict=True):
        assert (output.datatype, list(output.shape)) == (datatype_of(array.dtype), list(array.shape))
        assert raw == bytes(encode_raw(array))
        assert decode_raw(output.datatype, output.shape, raw).shape == array.shape


def test_an_output_without_datatype_is_refused_by_name() -> None:
    result = InferenceResult("", ServableId("m", 7), {"c": np.zeros(1, np.complex64)}, {}, is_binary=True)
    with pytest.raises(Unimplemented, match="output 'c': dtype complex64 has no datatype"):
        encode_infer_response(result)
