"""Calls of the protocol comparison: the same predictions over TensorFlow Serving's protocols and over OIP.

OIP is the Open Inference Protocol: over gRPC with raw contents, over HTTP with JSON and over HTTP with binary tensors.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from benchmarks.harness import image_model, mlp_model
from benchmarks.harness.json_bodies import infer_body, instances_body
from benchmarks.harness.load_tools import JSON_HEADERS
from benchmarks.harness.mlp_model import Floats
from benchmarks.harness.targets import MODEL_NAME, Protocol
from tpuserve_client.exchange import Exchange, PredictCall, Reply
from tpuserve_client.grpc_wire import GrpcWire
from tpuserve_client.model import ModelSpec
from tpuserve_client.oip_grpc_wire import OipGrpcWire
from tpuserve_client.oip_rest_wire import OipRestWire

PREDICT, REST, OIP_GRPC, OIP_JSON, OIP_BINARY = "Predict", "REST", "OIP gRPC", "OIP JSON", "OIP binary"
ROW, IMAGE = "1 row", "602 KB"
# Requests in flight, by size. Eight large requests keep two cores busy, and more would only take memory.
IN_FLIGHT: Final = {ROW: 32, IMAGE: 8}


@dataclass(frozen=True, slots=True)
class Call:
    """A request of one model in one protocol. `read` returns the output in a response. `size` is a key of IN_FLIGHT."""

    name: str
    size: str
    protocol: Protocol
    exchange: Exchange
    read: Callable[[Reply], Floats]
    expected: Floats

    @property
    def key(self) -> tuple[str, str]:
        """Size and name, which identify the call in reports."""
        return self.size, self.name


def calls() -> list[Call]:
    """Return the calls of each size: one row for the MLP, and one image."""
    row, image = mlp_model.example(), image_model.example()
    return [
        *_calls(MODEL_NAME, ROW, row, mlp_model.expected(row)),
        *_calls(image_model.NAME, IMAGE, image, image_model.expected(image)),
    ]


def _calls(model: str, size: str, x: Floats, y: Floats) -> list[Call]:
    call = PredictCall(ModelSpec(model), {mlp_model.INPUT: x})
    grpc, oip_grpc, oip_rest = GrpcWire(), OipGrpcWire(), OipRestWire()
    infer = f"/v2/models/{model}/infer"

    def read_with(wire: GrpcWire | OipGrpcWire | OipRestWire) -> Callable[[Reply], Floats]:
        return lambda reply: np.asarray(wire.read_prediction(reply, call, None)[mlp_model.OUTPUT], np.float32)

    return [
        Call(PREDICT, size, "grpc", grpc.predict(call), read_with(grpc), y),
        Call(OIP_GRPC, size, "grpc", oip_grpc.predict(call), read_with(oip_grpc), y),
        Call(REST, size, "rest", _json(f"/v1/models/{model}:predict", instances_body(x)), _predictions, y),
        Call(OIP_JSON, size, "rest", _json(infer, infer_body(x)), read_with(oip_rest), y),
        Call(OIP_BINARY, size, "rest", oip_rest.predict(call), read_with(oip_rest), y),
    ]


def _json(path: str, body: bytes) -> Exchange:
    return Exchange(path, body, headers=JSON_HEADERS)


def _predictions(reply: Reply) -> Floats:
    return np.asarray(json.loads(reply.body)["predictions"], np.float32)
