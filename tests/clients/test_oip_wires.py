"""Tests for the messages of the Open Inference Protocol: round trips of every datatype, and hostile responses."""

import json
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tests.clients.oip_bodies import DTYPES, HEADER_LENGTH, described, read_request, strings, to_raw, write_response
from tpuserve_client.errors import Internal, InvalidArgument
from tpuserve_client.exchange import PredictCall, Reply, Wire
from tpuserve_client.model import ModelSpec, State, VersionStatus
from tpuserve_client.oip_grpc_wire import OipGrpcWire
from tpuserve_client.oip_rest_wire import OipRestWire
from tpuserve_formats.messages import oip

SPEC = ModelSpec("m")
CALL = PredictCall(SPEC, {})
GRPC, REST = OipGrpcWire(), OipRestWire()
HUGE = 2**62
Y = np.array([1.5, -2.0], np.float32)
SHAPES = hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3)
Arrays = dict[str, np.ndarray[Any, Any]]


@st.composite
def tensors(draw: st.DrawFn) -> np.ndarray[Any, Any]:
    """Draw any bit pattern of any datatype."""
    dtype, shape = draw(st.sampled_from(list(DTYPES.values()))), draw(SHAPES)
    if dtype.kind == "O":
        return draw(hnp.arrays(object, shape, elements=st.binary(max_size=5)))
    if dtype == np.bool_:
        return draw(hnp.arrays(np.bool_, shape))
    raw = draw(hnp.arrays(np.uint8, (*shape, dtype.itemsize)))
    return np.frombuffer(raw.tobytes(), dtype).reshape(shape)


ARRAYS = st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), max_size=3), tensors(), max_size=3)


def assert_same(received: Mapping[str, Any], sent: Arrays) -> None:
    assert list(received) == list(sent)
    for name, array in sent.items():
        assert (received[name].dtype, received[name].shape) == (array.dtype, array.shape)
        assert to_raw(received[name]) == to_raw(array)


def message(outputs: Arrays, model_version: str = "") -> oip.ModelInferResponse:
    made = oip.ModelInferResponse(model_name="m", model_version=model_version)
    for name, array in outputs.items():
        made.outputs.add(**described(name, array))
        made.raw_output_contents.append(to_raw(array))
    return made


# Requests.


@given(ARRAYS)
def test_http_request_is_a_json_object_and_the_tensors(inputs: Arrays) -> None:
    exchange = REST.predict(PredictCall(SPEC, inputs))
    assert (exchange.method, exchange.path) == ("POST", "/v2/models/m/infer")
    assert int(exchange.headers[HEADER_LENGTH]) % 8 == 0
    document, received = read_request(exchange.body, exchange.headers)
    assert_same(received, inputs)
    assert document["parameters"] == {"binary_data_output": True}
    assert "outputs" not in document
    assert "id" not in document


@given(ARRAYS)
def test_grpc_request_is_the_protocols_message_with_raw_contents(inputs: Arrays) -> None:
    exchange = GRPC.predict(PredictCall(ModelSpec("m", 3), inputs, "s", ("y",), "low"))
    expected = oip.ModelInferRequest(model_name="m", model_version="3", outputs=[{"name": "y"}])
    expected.parameters["priority"].int64_param = 2
    expected.parameters["signature_name"].string_param = "s"
    for name, array in inputs.items():
        expected.inputs.add(**described(name, array))
        expected.raw_input_contents.append(to_raw(array))
    assert exchange.path == "/inference.GRPCInferenceService/ModelInfer"
    assert oip.ModelInferRequest.FromString(exchange.body) == expected


def test_http_request_has_the_calls_parameters() -> None:
    exchange = REST.predict(PredictCall(ModelSpec("odd name%", 3), {"x": Y}, "s", ("y", "z"), "high"))
    document, _ = read_request(exchange.body, exchange.headers)
    assert exchange.path == "/v2/models/odd%20name%25/versions/3/infer"
    assert document["parameters"] == {"priority": 1, "signature_name": "s"}
    assert document["outputs"] == [{"name": name, "parameters": {"binary_data": True}} for name in "yz"]
    # KServe refuses a binary body of type JSON, and Triton would compress the tensors.
    assert exchange.headers["content-type"] == "application/octet-stream"
    assert exchange.headers["accept-encoding"] == "identity"


@pytest.mark.parametrize("name", ["", ".", ".."])
def test_model_name_that_changes_the_path_is_refused(name: str) -> None:
    with pytest.raises(InvalidArgument, match="A URL cannot name the model"):
        REST.metadata(ModelSpec(name))


@pytest.mark.parametrize("wire", [GRPC, REST], ids=["grpc", "rest"])
def test_request_of_more_than_2_gib_is_refused_before_it_takes_memory(wire: Wire) -> None:
    with pytest.raises(InvalidArgument, match="max_batch_size"):
        wire.predict(PredictCall(SPEC, {"x": np.broadcast_to(np.float32(0), (2**29, 1))}))


# Responses.


@given(ARRAYS, st.integers(0, 7))
def test_binary_outputs_are_read(outputs: Arrays, padding: int) -> None:
    body, headers = write_response(outputs, padding, model_version="12")
    prediction = REST.read_prediction(Reply(body, headers), CALL, None)
    assert_same(prediction, outputs)
    assert all(array.flags.aligned for array in prediction.values())
    assert (prediction.model, prediction.version) == ("m", 12)


@given(ARRAYS)
def test_raw_outputs_are_read(outputs: Arrays) -> None:
    prediction = GRPC.read_prediction(Reply(message(outputs, model_version="12").SerializeToString()), CALL, None)
    assert_same(prediction, outputs)
    assert (prediction.model, prediction.version) == ("m", 12)


def test_an_aligned_output_is_a_view_of_the_body() -> None:
    text = json.dumps({"outputs": [{**described("y", Y), "parameters": {"binary_data_size": 8}}]}).encode()
    views = []
    for padding in range(8):
        body = text + b" " * padding + to_raw(Y)
        reply = Reply(body, {HEADER_LENGTH: str(len(text) + padding)})
        output = REST.read_prediction(reply, CALL, None)["y"]
        assert output.tolist() == Y.tolist()
        views.append(np.shares_memory(output, np.frombuffer(body, np.uint8)))
    assert sum(views) == 2  # at two of eight addresses


@pytest.mark.parametrize(
    ("datatype", "shape", "data", "expected"),
    [
        ("FP32", [2, 2], [1, 2.5, float("nan"), float("-inf")], [[1, 2.5], [np.nan, -np.inf]]),
        ("FP32", [2, 2], [[1, 2], [3, 4]], [[1, 2], [3, 4]]),
        ("FP32", [1], [1e300], [np.inf]),
        ("BF16", [1], [1.5], [1.5]),
        ("BOOL", [2], [True, False], [True, False]),
        ("UINT64", [2], [2**64 - 1, 0], [2**64 - 1, 0]),
        ("INT64", [2], [-(2**63), 2**63 - 1], [-(2**63), 2**63 - 1]),
        ("BYTES", [1, 2], ["größe", ""], [["größe".encode(), b""]]),
        ("INT8", [], 5, 5),
        ("INT8", [0, 3], [], []),
        ("FP16", [0], [1], []),
    ],
)
def test_json_outputs_are_read(datatype: str, shape: list[int], data: object, expected: object) -> None:
    item = {"name": "y", "datatype": datatype, "shape": shape, "parameters": None, "data": data}
    reply = Reply(json.dumps({"model_version": "", "outputs": [item]}).encode())
    prediction = REST.read_prediction(reply, PredictCall(ModelSpec("m", 5), {}), None)
    assert prediction["y"].dtype == DTYPES[datatype]
    assert prediction["y"].shape == tuple(shape)
    np.testing.assert_array_equal(prediction["y"], np.array(expected, DTYPES[datatype]).reshape(shape))
    assert prediction.version == 5  # the server reports none


def test_json_text_that_is_not_utf8_keeps_its_bytes() -> None:
    body = b'{"outputs":[{"name":"y","datatype":"BYTES","shape":[1],"data":["\xff\xfe"]}]}'
    assert REST.read_prediction(Reply(body), CALL, None)["y"].tolist() == [b"\xff\xfe"]


def test_typed_outputs_are_read() -> None:
    response = oip.ModelInferResponse()
    response.outputs.add(**described("y", Y)).contents.fp32_contents.extend(Y.tolist())
    response.outputs.add(**described("b", strings(b"a"))).contents.bytes_contents.append(b"a")
    prediction = GRPC.read_prediction(Reply(response.SerializeToString()), CALL, None)
    assert_same(prediction, {"y": Y, "b": strings(b"a")})


@pytest.mark.parametrize("text", ["", "latest", "v1", "-1", "1.5", "9" * 5000, "²"])
def test_version_that_is_no_number_is_unknown(text: str) -> None:
    body, headers = write_response({}, model_version=text)
    assert REST.read_prediction(Reply(body, headers), CALL, None).version is None
    assert GRPC.read_prediction(Reply(message({}, model_version=text).SerializeToString()), CALL, None).version is None


@pytest.mark.parametrize("wire", [GRPC, REST], ids=["grpc", "rest"])
def test_only_the_requested_outputs_are_returned_and_none_is_missing(wire: Wire) -> None:
    outputs = {"y": Y, "z": Y}
    reply = Reply(message(outputs).SerializeToString()) if wire is GRPC else Reply(*write_response(outputs))
    assert list(wire.read_prediction(reply, PredictCall(SPEC, {}, output_filter=("z",)), None)) == ["z"]
    with pytest.raises(Internal, match=r"Model m did not return output q, only \['y', 'z'\]"):
        wire.read_prediction(reply, PredictCall(SPEC, {}, output_filter=("q",)), None)


# Hostile responses.


@pytest.mark.parametrize("wire", [GRPC, REST], ids=["grpc", "rest"])
@pytest.mark.parametrize("body", [b"\xff\xff\xff", b"[1", b"\xff"])
def test_garbage_is_internal(wire: Wire, body: bytes) -> None:
    with pytest.raises(Internal):
        wire.read_prediction(Reply(body), CALL, None)
    with pytest.raises(Internal):
        wire.read_metadata(Reply(body), SPEC)
    with pytest.raises(Internal):
        wire.read_status(Reply(body))


@pytest.mark.parametrize(
    "length", ["-1", "", "nan", "0x10", "+5", "1.0", "5, 5", "²", "9" * 19, "9" * 5000, "0", "1", "40", "1000"]
)
def test_header_length_that_does_not_fit_the_body_is_internal(length: str) -> None:
    body, headers = write_response({"y": Y})
    with pytest.raises(Internal, match="Model m returned an invalid response"):
        REST.read_prediction(Reply(body, {HEADER_LENGTH: length}), CALL, None)
    with pytest.raises(Internal, match="invalid response: not JSON"):  # without the header
        REST.read_prediction(Reply(body), CALL, None)
    assert set(REST.read_prediction(Reply(body, headers), CALL, None)) == {"y"}


@pytest.mark.parametrize(
    ("item", "error"),
    [
        ({"parameters": {"binary_data_size": 9}}, "has 9 bytes of binary data, but 8 bytes remain"),
        ({"parameters": {"binary_data_size": 10**30}}, "bytes of binary data, but 8 bytes remain"),
        ({"parameters": {"binary_data_size": 7}}, r"'y': FP32 of shape \[2\] needs 8 bytes, but the data has 7"),
        ({"parameters": {"binary_data_size": -8}}, "binary_data_size is -8"),
        ({"parameters": {"binary_data_size": 8.0}}, "binary_data_size is 8.0"),
        ({"parameters": {"binary_data_size": "8"}}, "binary_data_size is '8'"),
        ({"parameters": {"binary_data_size": True}}, "binary_data_size is True"),
        ({"parameters": {}}, "neither JSON data nor binary data"),
        ({"parameters": [8]}, "neither JSON data nor binary data"),
        ({"data": [1, 2]}, "has binary data and JSON data"),
        ({"shape": [3]}, "needs 12 bytes"),
        ({"shape": [HUGE, HUGE]}, "bytes, but the data has 8"),
        ({"shape": [-2, -1]}, "negative dimension"),
        ({"shape": [1] * 65}, "has 65 dimensions"),
        ({"shape": [2.0]}, "expected integers"),
        ({"shape": [True, 2]}, "expected integers"),
        ({"shape": "2"}, "expected a list"),
        ({"shape": None}, "expected a list"),
        ({"datatype": "FP33"}, "datatype 'FP33' is unknown"),
        ({"datatype": ["FP32"]}, "expected texts"),
        ({"datatype": "BYTES", "shape": [HUGE]}, "BYTES elements need at least"),
        ({"datatype": "BYTES", "shape": [1]}, "element 0 of 1 has 1069547520 bytes"),
        ({"name": None}, "expected texts"),
        ({"parameters": None, "data": [1, 2]}, "8 bytes remain after the outputs"),
        ({"parameters": None, "data": [1]}, r"of shape \[2\] needs 2 values, but the data has 1"),
        ({"parameters": None, "data": [[1], [2, 3]]}, "values of JSON type list"),
        ({"parameters": None, "data": ["1", "2"]}, "values of JSON type str"),
        ({"parameters": None, "data": [None, True]}, "values of JSON type NoneType, bool"),
        ({"parameters": None, "data": {"a": 1}, "shape": []}, "values of JSON type dict"),
        ({"parameters": None, "data": [300, 1], "datatype": "UINT8"}, "uint8 cannot represent"),
        ({"parameters": None, "data": [1.0, 2], "datatype": "INT8"}, "values of JSON type float"),
        ({"parameters": None, "data": [10**400, 1]}, "float32 cannot represent"),
        ({"parameters": None, "data": [], "shape": [0, HUGE, HUGE]}, "too large"),
        ({"parameters": None, "data": ["\ud800", ""], "datatype": "BYTES"}, "surrogates not allowed"),
    ],
)
def test_output_that_contradicts_itself_is_internal(item: dict[str, Any], error: str) -> None:
    tensor = {**described("y", Y), "parameters": {"binary_data_size": 8}, **item}
    text = json.dumps({"outputs": [tensor]}).encode()
    with pytest.raises(Internal, match=f"Model m returned an invalid response: .*{error}"):
        REST.read_prediction(Reply(text + to_raw(Y), {HEADER_LENGTH: str(len(text))}), CALL, None)


@pytest.mark.parametrize(
    ("document", "error"),
    [
        ([], "not a JSON object"),
        ({}, "outputs: None, expected a list"),
        ({"outputs": {"y": 1}}, "expected a list"),
        ({"outputs": [5]}, "a tensor is 5, expected an object"),
        ({"outputs": [{"name": "y", "datatype": "INT8", "shape": [0], "data": []}] * 2}, "'y' appears twice"),
        ({"outputs": [{"name": "y" * 9999, "datatype": "INT8", "shape": [0]}]}, "output 'yyy.*neither"),
    ],
)
def test_document_of_another_kind_is_internal(document: object, error: str) -> None:
    with pytest.raises(Internal, match=error) as raised:
        REST.read_prediction(Reply(json.dumps(document).encode()), CALL, None)
    assert len(raised.value.message) < 300


@pytest.mark.parametrize("depth", [50, 100, 400, 900, 5000])
def test_deep_json_is_internal_at_whatever_depth_it_ends(depth: int) -> None:
    deep = b"[" * depth + b"]" * depth
    for datatype in (b"FP32", b"BYTES"):
        body = b'{"outputs":[{"name":"y","datatype":"%b","shape":[1],"data":%b}]}' % (datatype, deep)
        with pytest.raises(Internal):
            REST.read_prediction(Reply(body), CALL, None)
    with pytest.raises(Internal):
        REST.read_metadata(Reply(deep), SPEC)


def test_a_long_text_among_many_does_not_multiply() -> None:
    """numpy would pad each text to the length of the longest: 40 GB here."""
    data = json.dumps(["x" * 100_000, *["y"] * 100_000])
    body = f'{{"outputs":[{{"name":"y","datatype":"FP32","shape":[100001],"data":{data}}}]}}'.encode()
    with pytest.raises(Internal, match="values of JSON type str"):
        REST.read_prediction(Reply(body), CALL, None)


def test_empty_typed_contents_beside_raw_ones_are_ignored() -> None:
    """MLServer sends them."""
    response = message({"y": Y})
    response.outputs[0].contents.SetInParent()
    prediction = GRPC.read_prediction(Reply(response.SerializeToString()), CALL, None)
    np.testing.assert_array_equal(prediction["y"], Y)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda m: m.raw_output_contents.append(b""), "1 output, but 2 raw contents"),
        (lambda m: m.outputs.add(name="z"), "2 outputs, but 1 raw content"),
        (lambda m: m.MergeFrom(message({"y": Y})), "output y twice"),
        (lambda m: m.outputs[0].contents.fp32_contents.append(1), "raw and with typed contents"),
        (lambda m: m.ClearField("raw_output_contents"), "needs 2 values, but fp32_contents has 0"),
        (lambda m: m.outputs[0].shape.append(2), "needs 16 bytes, but the data has 8"),
        (lambda m: m.outputs[0].shape.extend([HUGE, HUGE]), "but the data has 8"),
        (lambda m: m.outputs[0].shape.append(-1), "negative dimension"),
        (lambda m: setattr(m.outputs[0], "datatype", "FP33"), "datatype 'FP33' is unknown"),
        (lambda m: setattr(m.outputs[0], "datatype", "BYTES"), "BYTES element 0 of 2 has 1069547520 bytes"),
    ],
)
def test_message_that_contradicts_itself_is_internal(change: Any, error: str) -> None:  # noqa: ANN401 - a lambda
    response = message({"y": Y})
    change(response)
    with pytest.raises(Internal, match=error):
        GRPC.read_prediction(Reply(response.SerializeToString()), CALL, None)


def test_strings_cut_short_are_internal() -> None:
    body, headers = write_response({"y": strings(b"abc")})
    document = body.replace(b'"binary_data_size": 7', b'"binary_data_size": 6')[:-1]
    with pytest.raises(Internal, match="element 0 of 1 has 3 bytes, but only 2 bytes remain"):
        REST.read_prediction(Reply(document, headers), CALL, None)
    response = message({"y": strings(b"abc")})
    response.raw_output_contents[0] = struct.pack("<I", 2**32 - 1)
    with pytest.raises(Internal, match="has 4294967295 bytes, but only 0 bytes remain"):
        GRPC.read_prediction(Reply(response.SerializeToString()), CALL, None)


# Metadata, status and readiness.


def test_metadata_of_a_server_without_versions_and_with_unknown_datatypes() -> None:
    document = {
        "name": "m",
        "versions": None,
        "inputs": [{"name": "x", "datatype": "FP8", "shape": [-1, 4, -7]}],
        "outputs": [],
    }
    metadata = REST.read_metadata(Reply(json.dumps(document).encode()), SPEC)
    assert metadata.version is None
    assert str(metadata.signature().inputs["x"]) == "x: unknown[?, 4, ?]"
    assert metadata.signature().outputs == {}
    assert REST.read_status(Reply(b"{}")) == ()


def test_status_has_the_versions_that_are_numbers_newest_first() -> None:
    versions = ["1", "v2", "10", "9", "10"]
    expected = tuple(VersionStatus(number, State.AVAILABLE) for number in (10, 9, 1))
    assert REST.read_status(Reply(json.dumps({"versions": [*versions, 5, None]}).encode())) == expected
    assert GRPC.read_status(Reply(oip.ModelMetadataResponse(versions=versions).SerializeToString())) == expected


@pytest.mark.parametrize(
    "document",
    [
        {"versions": 1, "inputs": [], "outputs": []},
        {"versions": [], "inputs": []},
        {"inputs": [{"name": "x", "datatype": "FP32", "shape": ["4"]}], "outputs": []},
        {"inputs": [{"name": 5, "datatype": "FP32", "shape": []}], "outputs": []},
        {"inputs": "x", "outputs": []},
    ],
)
def test_metadata_of_another_kind_is_internal(document: object) -> None:
    with pytest.raises(Internal, match="The server's metadata of model m is invalid"):
        REST.read_metadata(Reply(json.dumps(document).encode()), SPEC)


@pytest.mark.parametrize(
    ("body", "is_ready"),
    [(b"", True), (b'{"ready":true}', True), (b'{"ready":false}', False), (b"OK", True), (b"[]", True)],
)
def test_readiness_is_the_status_unless_the_body_denies_it(body: bytes, is_ready: bool) -> None:
    assert REST.read_ready(Reply(body)) is is_ready
    assert (REST.read_model_ready(Reply(body)) is None) is is_ready
