"""The Open Inference Protocol, with its own messages: gRPC, REST in JSON and with binary tensors."""

import gzip
import json
import threading
import zlib
from collections.abc import Iterator

import grpc
import ml_dtypes
import numpy as np
import pytest

from tests.contract.oip_client import (
    LENGTH,
    TIMEOUT_S,
    Channel,
    binary_outputs,
    outputs,
    post_binary,
    request,
    tensor,
)
from tests.contract.serving_client import ServingClient, refused
from tpuserve_formats.dtypes import STRING, Array
from tpuserve_formats.messages.oip import (
    InferParameter,
    ModelInferRequest,
    ModelMetadataRequest,
    ModelMetadataResponse,
    ModelReadyRequest,
    ModelReadyResponse,
    ServerLiveRequest,
    ServerLiveResponse,
)
from tpuserve_formats.oip.datatypes import datatype_of

ECHOES: dict[str, Array] = {
    "bool": np.array([True, False]),
    **{
        name: np.array([0, 100], name)
        for name in ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
    },
    **{name: np.array([0.5, -3], name) for name in ("float16", "float32", "float64")},
    "bfloat16": np.array([0.5, -3], ml_dtypes.bfloat16),
    "string": np.array([b"a\0b", "é".encode()], STRING),
}


@pytest.mark.parametrize("dtype", ECHOES)
def test_every_datatype_survives_both_protocols(serving: ServingClient, oip: Channel, dtype: str) -> None:
    array = ECHOES[dtype]
    response = oip.infer(request("kinds", f"echo_{dtype}", "7", x=array))
    assert (response.model_name, response.model_version, response.id) == ("kinds", "1", "7")
    item, raw = tensor("x", array)
    parameters = {"signature_name": f"echo_{dtype}", "binary_data_output": True}
    reply = post_binary(serving, "/v2/models/kinds/infer", {"inputs": [item], "parameters": parameters}, raw)
    for echo in (outputs(response)["y"], binary_outputs(reply)["y"]):
        assert (echo.dtype, echo.tolist()) == (array.dtype, array.tolist())


@pytest.mark.parametrize("dtype", [name for name in ECHOES if name not in ("float16", "bfloat16", "string")])
def test_numbers_survive_json_and_typed_contents(serving: ServingClient, oip: Channel, dtype: str) -> None:
    array = ECHOES[dtype]
    fields = {"b": "bool_contents", "i": "int_contents", "u": "uint_contents", "f": "fp32_contents"}
    wide = {"int64": "int64_contents", "uint64": "uint64_contents", "float64": "fp64_contents"}
    message = request("kinds", f"echo_{dtype}", x=array)
    del message.raw_input_contents[:]
    getattr(message.inputs[0].contents, wide.get(dtype, fields[array.dtype.kind])).extend(array.tolist())
    assert outputs(oip.infer(message))["y"].tolist() == array.tolist()
    item = {"name": "x", "datatype": datatype_of(array.dtype), "shape": [2], "data": array.tolist()}
    reply = serving.post(
        "/v2/models/kinds/versions/1/infer",
        {"id": "7", "inputs": [item], "parameters": {"signature_name": f"echo_{dtype}"}},
    )
    assert reply.json == {
        "id": "7",
        "model_name": "kinds",
        "model_version": "1",
        "outputs": [{"name": "y", "datatype": item["datatype"], "shape": [2], "data": array.tolist()}],
    }


@pytest.mark.parametrize("shape", [(0, 1), (3, 1)])
def test_zero_rows_are_answered_like_any_number(serving: ServingClient, oip: Channel, shape: tuple[int, int]) -> None:
    x = np.ones(shape, np.float32)
    response = oip.infer(request(x=x))
    assert outputs(response)["y"].tolist() == (x / 2 + 3).tolist()
    data = {"name": "x", "datatype": "FP32", "shape": list(shape), "data": x.tolist()}
    (output,) = serving.post("/v2/models/half/infer", {"inputs": [data]}).json["outputs"]
    assert (output["shape"], output["data"]) == (list(shape), (x / 2 + 3).reshape(-1).tolist())


def test_requested_outputs_and_scalars(serving: ServingClient, oip: Channel) -> None:
    array = np.array([1, 2], np.float32)
    message = request("kinds", "two", a=array, b=array)
    message.outputs.add(name="difference")
    assert {name: value.tolist() for name, value in outputs(oip.infer(message)).items()} == {"difference": [0, 0]}
    item = {"name": "x", "datatype": "FP32", "shape": [2], "data": [1, 2]}
    document = {"inputs": [item], "parameters": {"signature_name": "scalar"}}
    (output,) = serving.post("/v2/models/kinds/infer", document).json["outputs"]
    assert (output["shape"], output["data"]) == ([], [3.0])


def test_json_and_binary_tensors_mix_in_a_compressed_request(serving: ServingClient) -> None:
    array = np.zeros(3000, np.float32)
    item, raw = tensor("a", array)
    b = {"name": "b", "datatype": "FP32", "shape": [3000], "data": [1.0] * 3000}
    wanted = [{"name": "sum", "parameters": {"binary_data": True}}, {"name": "difference"}]
    text = json.dumps({"inputs": [item, b], "outputs": wanted, "parameters": {"signature_name": "two"}}).encode()
    headers = {LENGTH: str(len(text)), "content_encoding": "deflate", "accept_encoding": "gzip"}
    reply = serving.http("POST", "/v2/models/kinds/infer", zlib.compress(text + raw), **headers)
    body = gzip.decompress(reply.body)
    length = int(reply.headers[LENGTH])
    found = {output["name"]: output for output in json.loads(body[:length])["outputs"]}
    assert found["difference"]["data"] == [-1.0] * 3000
    assert body[length:] == np.ones(3000, np.float32).tobytes()


def test_classes_have_value_and_index(oip: Channel) -> None:
    message = request("kinds", "two", a=np.array([1, 5], np.float32), b=np.zeros(2, np.float32))
    message.outputs.add(name="sum").parameters["classification"].int64_param = 1
    assert outputs(oip.infer(message))["sum"].tolist() == [[b"1.000000:0"], [b"5.000000:0"]]


def test_health_and_metadata_agree(serving: ServingClient, oip: Channel) -> None:
    assert oip.call("ServerLive", ServerLiveRequest(), ServerLiveResponse).live
    assert serving.get("/v2/health/live").json == {"live": True}
    assert serving.get("/v2/health/ready").json == {"ready": True}
    for version, ready in (("", True), ("124", True), ("9", False)):
        message = ModelReadyRequest(name="half", version=version)
        assert oip.call("ModelReady", message, ModelReadyResponse).ready is ready
        path = f"/v2/models/half{f'/versions/{version}' if version else ''}/ready"
        assert serving.get(path).status == (200 if ready else 400)
    document = serving.get("/v2/models/half").json
    message = oip.call("ModelMetadata", ModelMetadataRequest(name="half"), ModelMetadataResponse)
    assert document["versions"] == list(message.versions) == ["123", "124"]
    assert document["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 1]}]
    assert [(each.name, each.datatype, list(each.shape)) for each in message.outputs] == [("y", "FP32", [-1, 1])]
    assert "binary_tensor_data" in serving.get("/v2").json["extensions"]


def test_both_protocols_refuse_with_the_same_sentence(serving: ServingClient, oip: Channel) -> None:
    x = np.ones((1, 1), np.float32)
    cases = [
        (request("nothing", x=x), grpc.StatusCode.NOT_FOUND, 404, "Request for unknown model: 'nothing' is not found"),
        (request(x=x[0]), grpc.StatusCode.INVALID_ARGUMENT, 400, "Expected [-1,1], got [1]."),
        (request(y=x), grpc.StatusCode.INVALID_ARGUMENT, 400, "unexpected inference input 'y' for model 'half'"),
        (
            request(x=x.astype(np.int32)),
            grpc.StatusCode.INVALID_ARGUMENT,
            400,
            "inference input 'x' data-type is 'INT32', but model 'half' expects 'FP32'",
        ),
    ]
    for message, code, status, sentence in cases:
        with refused(code, sentence):
            oip.infer(message)
        item = {
            "name": message.inputs[0].name,
            "datatype": message.inputs[0].datatype,
            "shape": list(message.inputs[0].shape),
            "parameters": {"binary_data_size": 4},
        }
        raw = message.raw_input_contents[0]
        reply = post_binary(serving, f"/v2/models/{message.model_name}/infer", {"inputs": [item]}, raw)
        assert (reply.status, sentence in reply.error) == (status, True), reply.body


def test_paths_and_methods_are_refused_as_json(serving: ServingClient) -> None:
    assert (serving.get("/v2/models").status, serving.get("/v2/models").error) == (404, "Not Found")
    assert (serving.get("/V2/health/live").status, serving.get("/v2x").status) == (404, 404)
    reply = serving.get("/v2/models/half/infer")
    assert (reply.status, reply.error, reply.headers["content-type"]) == (405, "Method Not Allowed", "application/json")


def test_a_stream_answers_in_order_and_survives_errors(oip: Channel) -> None:
    def requests() -> Iterator[ModelInferRequest]:
        for number in range(20):
            model = "nothing" if number == 3 else "half"
            yield request(model, request_id=str(number), x=np.full((1, 1), number, np.float32))

    responses = list(oip.stream(requests()))
    assert [response.infer_response.id for response in responses] == [str(number) for number in range(20)]
    assert responses[3].error_message == "Request for unknown model: 'nothing' is not found"
    answered = [response.infer_response for response in responses if not response.error_message]
    assert [float(outputs(answer)["y"][0, 0]) for answer in answered] == [
        number / 2 + 3 for number in range(20) if number != 3
    ]
    assert all(answer.parameters["triton_final_response"].bool_param for answer in answered)


def test_a_stream_answers_before_the_client_ends_it(oip: Channel) -> None:
    answered = threading.Event()

    def requests() -> Iterator[ModelInferRequest]:
        yield request(x=np.ones((1, 1), np.float32))
        assert answered.wait(TIMEOUT_S)
        yield request(x=np.ones((1, 1), np.float32))

    responses = oip.stream(requests())
    assert not next(responses).error_message
    answered.set()
    assert len(list(responses)) == 1


def test_a_timeout_that_has_passed_is_refused(oip: Channel) -> None:
    message = request(x=np.ones((1, 1), np.float32))
    message.parameters["timeout"].CopyFrom(InferParameter(int64_param=1))
    with refused(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline exceeded"):
        oip.infer(message)
