"""Protocols of the servers: path, request bytes and response bytes, without connections."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from benchmarks.harness import mlp_model
from benchmarks.harness.json_bodies import infer_body, instances_body, rounded
from benchmarks.harness.load_tools import JSON_HEADERS
from benchmarks.harness.mlp_model import Floats
from benchmarks.harness.targets import GRPC_PATH, MODEL_NAME, REST_PATH, Protocol
from tpuserve_client.exchange import PredictCall, Reply
from tpuserve_client.exchange import Wire as ClientWire
from tpuserve_client.grpc_wire import GrpcWire
from tpuserve_client.model import ModelSpec
from tpuserve_client.oip_grpc_wire import OipGrpcWire
from tpuserve_client.oip_rest_wire import OipRestWire


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
    row = json.dumps(rounded(mlp_model.example()[0]))[1:-1]
    # Repeat the row's text: formatting eleven million numbers would take a minute.
    return body.replace(row, ", ".join([row] * (size_bytes // len(row) + 1))).encode()


def _predictions(reply: Reply) -> Floats:
    return np.asarray(json.loads(reply.body)["predictions"], np.float32)


def _encoder(wire: ClientWire) -> Callable[[Floats], bytes]:
    """Return a function that encodes rows as the Python client does."""
    return lambda x: wire.predict(_call(x)).body


def _reader(wire: ClientWire) -> Callable[[Reply], Floats]:
    """Return a function that reads the output as the Python client does."""
    call = PredictCall(ModelSpec(MODEL_NAME), {})
    return lambda reply: np.asarray(wire.read_prediction(reply, call, None)[mlp_model.OUTPUT], np.float32)


def _call(x: Floats) -> PredictCall:
    return PredictCall(ModelSpec(MODEL_NAME), {mlp_model.INPUT: x})


def _row_json(x: Floats) -> bytes:
    return json.dumps({"x": rounded(x[0])}).encode()


def _row_json_answer(reply: Reply) -> Floats:
    return np.asarray([json.loads(reply.body)["y"]], np.float32)


def _rows_json(x: Floats) -> bytes:
    return json.dumps({"x": rounded(x)}).encode()


def _rows_json_answer(reply: Reply) -> Floats:
    return np.asarray(json.loads(reply.body), np.float32)


# The reply's form decides how _OIP_REST reads it, so it also reads JSON tensors.
_GRPC, _OIP_GRPC, _OIP_REST = GrpcWire(), OipGrpcWire(), OipRestWire()
# TensorFlow Serving's protocols. KServe's v1 over HTTP is the same.
PREDICT_REST = Wire("predict_rest", "HTTP, JSON", "rest", REST_PATH, instances_body, _predictions)
PREDICT_GRPC = Wire("predict_grpc", "gRPC", "grpc", GRPC_PATH, _encoder(_GRPC), _reader(_GRPC))
# The Open Inference Protocol (OIP, KServe's v2): over gRPC with raw contents, over HTTP in two forms.
_INFER = f"/v2/models/{MODEL_NAME}/infer"
INFER_REST = Wire("infer_rest", "OIP, HTTP, JSON", "rest", _INFER, infer_body, _reader(_OIP_REST))
INFER_BINARY = Wire(
    "infer_binary",
    "OIP, HTTP, binary",
    "rest",
    _INFER,
    _encoder(_OIP_REST),
    _reader(_OIP_REST),
    _OIP_REST.predict(_call(mlp_model.example())).headers,
)
INFER_GRPC = Wire(
    "infer_grpc",
    "OIP, gRPC",
    "grpc",
    "/inference.GRPCInferenceService/ModelInfer",
    _encoder(_OIP_GRPC),
    _reader(_OIP_GRPC),
)
# Protocols of custom handlers: a row, or an array of rows.
ROW_REST = Wire("row_rest", "HTTP, JSON", "rest", "/predict", _row_json, _row_json_answer, against=PREDICT_REST.name)
ROWS_REST = Wire(
    "rows_rest", "HTTP, JSON", "rest", "/predict", _rows_json, _rows_json_answer, against=PREDICT_REST.name
)

WIRES = {
    wire.name: wire for wire in (PREDICT_GRPC, PREDICT_REST, INFER_GRPC, INFER_REST, INFER_BINARY, ROW_REST, ROWS_REST)
}
