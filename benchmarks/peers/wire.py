"""Protocols of the servers: path, request bytes and response bytes, without connections."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from benchmarks.harness import mlp_model
from benchmarks.harness.load_tools import JSON_HEADERS
from benchmarks.harness.measurement import grpc_request, rest_request
from benchmarks.harness.mlp_model import Floats
from benchmarks.harness.targets import GRPC_PATH, MODEL_NAME, REST_PATH, Protocol
from tpuserve_client.exchange import Exchange, PredictCall, Reply
from tpuserve_client.grpc_wire import GrpcWire
from tpuserve_client.model import ModelSpec
from tpuserve_client.oip_rest_wire import OipRestWire
from tpuserve_formats.messages import oip

_DECIMALS = 6


@dataclass(frozen=True, slots=True)
class Wire:
    """One protocol of one kind of server, over `protocol`, gRPC or HTTP. `title` names it in reports.

    `encode` takes rows of shape (n, 64), `decode` returns shape (n, 10). `headers` are of requests of one row.
    `against` is the name of the wire with which tpuserve answers in a comparison, this one by default.
    """

    name: str
    title: str
    protocol: Protocol
    path: str
    encode: Callable[[Floats], bytes]
    decode: Callable[[Reply], Floats]
    headers: Mapping[str, str] = field(default_factory=lambda: JSON_HEADERS)
    against: str = ""


def bad_body(wire: Wire) -> bytes:
    """Return an HTTP request that no model can answer: its only row lacks one of the 64 numbers."""
    return wire.encode(mlp_model.example()[:, :-1])


def large_body(wire: Wire, size_bytes: int) -> bytes:
    """Return an HTTP request of at least `size_bytes`: well-formed JSON whose only row has millions of numbers."""
    body = wire.encode(mlp_model.example()).decode()
    row = json.dumps(_row(mlp_model.example()[0]))[1:-1]
    # Repeat the row's text: formatting eleven million numbers would take a minute.
    return body.replace(row, ", ".join([row] * (size_bytes // len(row) + 1))).encode()


def _row(row: Floats) -> list[float]:
    return [round(float(value), _DECIMALS) for value in row]


def _predictions(reply: Reply) -> Floats:
    return np.asarray(json.loads(reply.body)["predictions"], np.float32)


def _predict_response(reply: Reply) -> Floats:
    call = PredictCall(ModelSpec(MODEL_NAME), {})
    return np.asarray(GrpcWire().read_prediction(reply, call, None)[mlp_model.OUTPUT], np.float32)


def _infer_json(x: Floats) -> bytes:
    data = [value for row in x for value in _row(row)]
    tensor = {"name": mlp_model.INPUT, "datatype": "FP32", "shape": list(x.shape), "data": data}
    return json.dumps({"inputs": [tensor]}).encode()


def _infer_json_answer(reply: Reply) -> Floats:
    (output,) = json.loads(reply.body)["outputs"]
    return np.asarray(output["data"], np.float32).reshape(output["shape"])


def _infer_binary(x: Floats) -> bytes:
    return _binary_exchange(x).body


def _binary_exchange(x: Floats) -> Exchange:
    return OipRestWire().predict(PredictCall(ModelSpec(MODEL_NAME), {mlp_model.INPUT: x}))


def _infer_binary_answer(reply: Reply) -> Floats:
    call = PredictCall(ModelSpec(MODEL_NAME), {})
    return np.asarray(OipRestWire().read_prediction(reply, call, None)[mlp_model.OUTPUT], np.float32)


def _infer_request(x: Floats) -> bytes:
    request = oip.ModelInferRequest(model_name=MODEL_NAME)
    request.inputs.add(name=mlp_model.INPUT, datatype="FP32", shape=x.shape)
    request.raw_input_contents.append(np.ascontiguousarray(x, "<f4").tobytes())
    return bytes(request.SerializeToString())


def _infer_response(reply: Reply) -> Floats:
    response = oip.ModelInferResponse.FromString(reply.body)
    (output,) = response.outputs
    if response.raw_output_contents:
        flat: Floats = np.frombuffer(response.raw_output_contents[0], "<f4")
    else:
        flat = np.asarray(output.contents.fp32_contents, np.float32)
    return flat.reshape(tuple(output.shape))


def _row_json(x: Floats) -> bytes:
    return json.dumps({"x": _row(x[0])}).encode()


def _row_json_answer(reply: Reply) -> Floats:
    return np.asarray([json.loads(reply.body)["y"]], np.float32)


def _rows_json(x: Floats) -> bytes:
    return json.dumps({"x": [_row(row) for row in x]}).encode()


def _rows_json_answer(reply: Reply) -> Floats:
    return np.asarray(json.loads(reply.body), np.float32)


# TensorFlow Serving's protocols. KServe's v1 over HTTP is the same.
PREDICT_REST = Wire("predict_rest", "HTTP, JSON", "rest", REST_PATH, rest_request, _predictions)
PREDICT_GRPC = Wire("predict_grpc", "gRPC", "grpc", GRPC_PATH, grpc_request, _predict_response)
# The Open Inference Protocol (OIP, KServe's v2): over gRPC with raw contents, over HTTP in two forms.
_INFER = f"/v2/models/{MODEL_NAME}/infer"
INFER_REST = Wire("infer_rest", "OIP, HTTP, JSON", "rest", _INFER, _infer_json, _infer_json_answer)
INFER_BINARY = Wire(
    "infer_binary",
    "OIP, HTTP, binary",
    "rest",
    _INFER,
    _infer_binary,
    _infer_binary_answer,
    _binary_exchange(mlp_model.example()).headers,
)
INFER_GRPC = Wire(
    "infer_grpc", "OIP, gRPC", "grpc", "/inference.GRPCInferenceService/ModelInfer", _infer_request, _infer_response
)
# Protocols of custom handlers: a row, or an array of rows.
ROW_REST = Wire("row_rest", "HTTP, JSON", "rest", "/predict", _row_json, _row_json_answer, against=PREDICT_REST.name)
ROWS_REST = Wire(
    "rows_rest", "HTTP, JSON", "rest", "/predict", _rows_json, _rows_json_answer, against=PREDICT_REST.name
)

WIRES = {
    wire.name: wire for wire in (PREDICT_GRPC, PREDICT_REST, INFER_GRPC, INFER_REST, INFER_BINARY, ROW_REST, ROWS_REST)
}
