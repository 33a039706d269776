"""Protocols of the servers: path, request bytes and response bytes, without connections."""

import functools
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf import descriptor_pb2, message_factory

from benchmarks.harness import mlp_model
from benchmarks.harness.measurement import grpc_request, rest_request
from benchmarks.harness.mlp_model import Floats
from benchmarks.harness.targets import GRPC_PATH, MODEL_NAME, REST_PATH, ROOT, Protocol

_DECIMALS = 6


@dataclass(frozen=True, slots=True)
class Wire:
    """One protocol of one kind of server. `encode` takes rows of shape (n, 64), `decode` returns shape (n, 10)."""

    protocol: Protocol
    path: str
    encode: Callable[[Floats], bytes]
    decode: Callable[[bytes], Floats]


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


def _predictions(answer: bytes) -> Floats:
    return np.asarray(json.loads(answer)["predictions"], np.float32)


def _predict_response(answer: bytes) -> Floats:
    from tpuserve_client.exchange import PredictCall, Reply
    from tpuserve_client.grpc_wire import GrpcWire
    from tpuserve_client.model import ModelSpec

    call = PredictCall(ModelSpec(MODEL_NAME), {})
    return np.asarray(GrpcWire().read_prediction(Reply(answer), call, None)[mlp_model.OUTPUT], np.float32)


def _infer_json(x: Floats) -> bytes:
    data = [value for row in x for value in _row(row)]
    tensor = {"name": mlp_model.INPUT, "datatype": "FP32", "shape": list(x.shape), "data": data}
    return json.dumps({"inputs": [tensor]}).encode()


def _infer_json_answer(answer: bytes) -> Floats:
    (output,) = json.loads(answer)["outputs"]
    return np.asarray(output["data"], np.float32).reshape(output["shape"])


@functools.cache
def _inference() -> dict[str, Any]:
    """Return the protocol's message classes by name, made from the .proto file."""
    source = ROOT / "benchmarks" / "peers" / "inference.proto"
    with tempfile.TemporaryDirectory() as directory:
        described = Path(directory) / "inference.bin"
        # A separate process, because the compiler's own protobuf crashes next to TensorFlow's.
        command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{source.parent}", f"--descriptor_set_out={described}"]
        subprocess.run([*command, source.name], check=True)
        files = descriptor_pb2.FileDescriptorSet.FromString(described.read_bytes())
    return dict(message_factory.GetMessages(list(files.file)))


def _infer_request(x: Floats) -> bytes:
    request = _inference()["inference.ModelInferRequest"](model_name=MODEL_NAME)
    request.inputs.add(name=mlp_model.INPUT, datatype="FP32", shape=x.shape)
    request.raw_input_contents.append(np.ascontiguousarray(x, "<f4").tobytes())
    return bytes(request.SerializeToString())


def _infer_response(answer: bytes) -> Floats:
    response = _inference()["inference.ModelInferResponse"].FromString(answer)
    (output,) = response.outputs
    if response.raw_output_contents:
        flat: Floats = np.frombuffer(response.raw_output_contents[0], "<f4")
    else:
        flat = np.asarray(output.contents.fp32_contents, np.float32)
    return flat.reshape(tuple(output.shape))


def _row_json(x: Floats) -> bytes:
    return json.dumps({"x": _row(x[0])}).encode()


def _row_json_answer(answer: bytes) -> Floats:
    return np.asarray([json.loads(answer)["y"]], np.float32)


def _rows_json(x: Floats) -> bytes:
    return json.dumps({"x": [_row(row) for row in x]}).encode()


def _rows_json_answer(answer: bytes) -> Floats:
    return np.asarray(json.loads(answer), np.float32)


# TensorFlow Serving's protocols. KServe's v1 over HTTP is the same.
PREDICT_REST = Wire("rest", REST_PATH, rest_request, _predictions)
PREDICT_GRPC = Wire("grpc", GRPC_PATH, grpc_request, _predict_response)
# The Open Inference Protocol (KServe's v2).
INFER_REST = Wire("rest", f"/v2/models/{MODEL_NAME}/infer", _infer_json, _infer_json_answer)
INFER_GRPC = Wire("grpc", "/inference.GRPCInferenceService/ModelInfer", _infer_request, _infer_response)
# Protocols of custom handlers: a row, or an array of rows.
ROW_REST = Wire("rest", "/predict", _row_json, _row_json_answer)
ROWS_REST = Wire("rest", "/predict", _rows_json, _rows_json_answer)
