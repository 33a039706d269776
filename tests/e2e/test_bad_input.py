"""Tests for bad input on both hosts and protocols.

The codes and messages are TensorFlow Serving's, and valid requests in the same batch still succeed.
"""

import concurrent.futures
import json

import grpc
import httpx
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.framework import tensor_pb2
from tensorflow_serving.apis import predict_pb2

from tests.e2e.running_server import RunningServer
from tpuserve_client import Client, InvalidArgument

PREDICT = "/tensorflow.serving.PredictionService/Predict"
X = np.ones((1, 2), np.float32)


def request(signature: str = "", *, name: str = "calculator", version: int | None = None, **inputs: object) -> bytes:
    message = predict_pb2.PredictRequest()
    message.model_spec.name = name
    message.model_spec.signature_name = signature
    if version is not None:
        message.model_spec.version.value = version
    for alias, value in inputs.items():
        message.inputs[alias].CopyFrom(
            value if isinstance(value, tensor_pb2.TensorProto) else tf.make_tensor_proto(value)
        )
    body: bytes = message.SerializeToString()
    return body


def negative_shape() -> tensor_pb2.TensorProto:
    proto = tf.make_tensor_proto(X)
    proto.tensor_shape.dim[0].size = -5
    return proto


def huge_shape() -> tensor_pb2.TensorProto:
    proto = tf.make_tensor_proto(X)
    for dim in proto.tensor_shape.dim:
        dim.size = 2**40
    return proto


GRPC_CASES = {
    "malformed": (b"\xff\xff\xff", "INVALID_ARGUMENT", ""),
    "no spec": (b"", "INVALID_ARGUMENT", "Missing ModelSpec"),
    "no name": (request(name="", x=X), "INVALID_ARGUMENT", "ModelSpec has no name specified."),
    "unknown model": (request(name="z", x=X), "NOT_FOUND", "Servable not found for request: Latest(z)"),
    "unknown version": (
        request(version=9, x=X),
        "NOT_FOUND",
        "Servable not found for request: Specific(calculator, 9)",
    ),
    "unknown signature": (request("s", x=X), "FAILED_PRECONDITION", 'Serving signature key "s" not found.'),
    "missing input": (
        request(),
        "INVALID_ARGUMENT",
        "input size does not match signature: 0!=1 len({}) != len({x}). Sent extra: {}. Missing but required: {x}.",
    ),
    "wrong name": (request(y=X), "INVALID_ARGUMENT", "Sent extra: {y}. Missing but required: {x}."),
    "extra input": (request(x=X, y=X), "INVALID_ARGUMENT", "Sent extra: {y}. Missing but required: {}."),
    "wrong dtype": (request(x=X.astype(np.int32)), "INVALID_ARGUMENT", "has dtype int32, expected float32"),
    "wrong rank": (request(x=np.ones((1, 2, 3), "f")), "OK", ""),
    "different rows": (
        request("add", a=np.ones(2, "f"), b=np.ones(3, "f")),
        "INVALID_ARGUMENT",
        "equal 0th-dimension size",
    ),
    "negative shape": (request(x=negative_shape()), "INVALID_ARGUMENT", ""),
    "huge shape": (request(x=huge_shape()), "INVALID_ARGUMENT", ""),
    "too many rows": (
        request(x=np.ones((9, 2), "f")),
        "INVALID_ARGUMENT",
        "Task size 9 is larger than maximum input batch size 8",
    ),
    "bad data": (request("lookup", index=np.array([7], np.int32)), "INVALID_ARGUMENT", "is not in [0, 3)"),
    "too large": (request(x=np.ones((1_000_000, 2), "f")), "RESOURCE_EXHAUSTED", ""),
}


@pytest.mark.parametrize("case", GRPC_CASES)
def test_grpc(server: RunningServer, case: str) -> None:
    body, code, message = GRPC_CASES[case]
    with grpc.insecure_channel(server.grpc) as channel:
        call: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(PREDICT)
        if code == "OK":
            call(body, timeout=30)
            return
        with pytest.raises(grpc.RpcError) as caught:
            call(body, timeout=30)
        assert caught.value.code().name == code
        details = caught.value.details() or ""
        assert message in details
        assert "Traceback" not in details
        call(request(x=X), timeout=30)


REST_CASES = {
    "truncated": ('{"instances": [[1', 400, ""),
    "deep": ('{"instances": ' + "[" * 100_000 + "]" * 100_000 + "}", 400, ""),
    "neither": ("{}", 400, ""),
    "both": ('{"instances": [[1, 2]], "inputs": [[1, 2]]}', 400, ""),
    "ragged": ('{"instances": [[1, 2], [3]]}', 400, ""),
    "wrong dtype": ('{"instances": [["a", "b"]]}', 400, ""),
    "null": ('{"instances": [[1, null]]}', 400, ""),
    "bool for a number": ('{"instances": [[1, true]]}', 400, ""),
    "wrong name": ('{"instances": [{"y": [1, 2]}]}', 400, ""),
    "unknown signature": (
        '{"signature_name": "s", "instances": [[1, 2]]}',
        400,
        'Serving signature name: "s" not found in signature def',
    ),
    "too many rows": (json.dumps({"instances": [[1, 2]] * 9}), 400, "Task size 9 is larger"),
    "decimal for an integer": ('{"signature_name": "lookup", "instances": [1.5]}', 400, ""),
    "bad data": ('{"signature_name": "lookup", "instances": [7]}', 400, "is not in [0, 3)"),
    "too large": ('{"instances": [' + " " * 5_000_000 + "[1, 2]]}", 413, ""),
}


@pytest.mark.parametrize("case", REST_CASES)
def test_rest(server: RunningServer, case: str) -> None:
    body, status, message = REST_CASES[case]
    with httpx.Client(base_url=server.rest, timeout=30) as client:
        answer = client.post("/v1/models/calculator:predict", content=body)
        assert (answer.status_code, set(answer.json())) == (status, {"error"}), answer.text[:500]
        assert message in answer.json()["error"]
        assert "Traceback" not in answer.text
        good = client.post("/v1/models/calculator:predict", content='{"instances": [[1, 2]]}')
        assert good.json() == {"predictions": [[2.0, 4.0]]}


@pytest.mark.parametrize(
    ("path", "status", "message"),
    [
        ("/v1/models/z:predict", 404, "Servable not found for request: Latest(z)"),
        ("/v1/models/calculator/versions/9:predict", 404, "Servable not found for request: Specific(calculator, 9)"),
        ("/v1/models/calculator/labels/x:predict", 400, "Unrecognized servable version label: x"),
        ("/v1/models/calculator/versions/99999999999999999999:predict", 400, "Failed to convert version"),
        ("/v1/models/calculator:unknown", 400, "Malformed request: POST /v1/models/calculator:unknown"),
        ("/v1/models/..%2f..%2fetc:predict", 404, "Servable not found"),
    ],
)
def test_rest_paths(server: RunningServer, path: str, status: int, message: str) -> None:
    answer = httpx.post(server.rest + path, content='{"instances": [[1, 2]]}', timeout=30)
    assert answer.status_code == status, answer.text
    assert message in answer.json()["error"]


def test_one_bad_row_never_fails_its_neighbours(server: RunningServer) -> None:
    def look_up(index: int) -> list[int] | str:
        try:
            outputs = client.predict("calculator", {"index": np.array([index], np.int32)}, signature_name="lookup")
        except InvalidArgument as error:
            return error.message
        values: list[int] = outputs["value"].tolist()
        return values

    indices = [0, 1, 2, 9] * 100
    with Client(server.grpc) as client, concurrent.futures.ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(look_up, indices))
    for index, answer in zip(indices, answers, strict=True):
        if index == 9:
            assert "is not in [0, 3)" in answer
        else:
            assert answer == [10 * (index + 1)]
