"""Writes one request in the bytes of each protocol, and reads the outputs of a response."""

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import numpy as np
import tensorflow as tf
from tensorflow_serving.apis import predict_pb2

from tpuserve_formats.messages.oip import ModelInferRequest, ModelInferResponse
from tpuserve_server.core.terms.types import Array, Tensors

# Elements and empty lists of a JSON body. Larger forms are left to the binary protocols.
MOST_JSON = 100_000
DATATYPES: Final = {
    "float32": "FP32", "float64": "FP64", "int32": "INT32", "int64": "INT64", "uint8": "UINT8", "bool": "BOOL",
    "object": "BYTES",
}  # fmt: skip
FIELDS: Final = {
    "FP32": "fp32_contents", "FP64": "fp64_contents", "INT32": "int_contents", "INT64": "int64_contents",
    "UINT8": "uint_contents", "BOOL": "bool_contents", "BYTES": "bytes_contents",
}  # fmt: skip
DTYPES: Final = {datatype: np.dtype(name) for name, datatype in DATATYPES.items()}


class Protocol(StrEnum):
    """A protocol, and the way that it carries the values."""

    TF_GRPC = "TF gRPC"
    TF_REST = "TF REST"
    OIP_GRPC_RAW = "OIP gRPC raw"
    OIP_GRPC_TYPED = "OIP gRPC typed"
    OIP_REST_JSON = "OIP REST JSON"
    OIP_REST_BINARY = "OIP REST binary"


@dataclass(frozen=True, slots=True)
class Request:
    """A request on the wire."""

    path: str
    body: bytes
    headers: Mapping[str, str]

    @property
    def is_rest(self) -> bool:
        """Whether this is a request over HTTP. Others are gRPC calls."""
        return self.path.startswith("/v")


def write(protocol: Protocol, model: str, inputs: Tensors) -> Request | None:
    """Return the request of a protocol, or None if the protocol cannot express these inputs."""
    if protocol is Protocol.TF_GRPC:
        return Request("/tensorflow.serving.PredictionService/Predict", _predict(model, inputs), {})
    if protocol is Protocol.TF_REST:
        return _tf_rest(model, inputs)
    if any(array.dtype.name not in DATATYPES for array in inputs.values()):
        return None
    if protocol in (Protocol.OIP_GRPC_RAW, Protocol.OIP_GRPC_TYPED):
        body = _infer(model, inputs, is_raw=protocol is Protocol.OIP_GRPC_RAW)
        return Request("/inference.GRPCInferenceService/ModelInfer", body, {})
    is_binary = protocol is Protocol.OIP_REST_BINARY
    if not is_binary and any(
        array.dtype.hasobject and not all(item.isascii() for item in array.ravel().tolist())
        for array in inputs.values()
    ):
        return None
    return _oip_rest(model, inputs, is_binary=is_binary)


def read(protocol: Protocol, body: bytes, headers: Mapping[str, str]) -> dict[str, Array]:
    """Return the outputs of a response. JSON of TF REST loses the dimensions after an empty one."""
    match protocol:
        case Protocol.TF_GRPC:
            outputs = predict_pb2.PredictResponse.FromString(body).outputs
            return {name: tf.make_ndarray(value) for name, value in outputs.items()}
        case Protocol.TF_REST:
            found: Any = json.loads(body)["outputs"]
            columns = found if isinstance(found, dict) else {"": found}
            return {name: np.array(column) for name, column in columns.items()}
        case Protocol.OIP_GRPC_RAW | Protocol.OIP_GRPC_TYPED:
            response = ModelInferResponse.FromString(body)
            return {
                one.name: _from_raw(one.datatype, one.shape, raw)
                for one, raw in zip(response.outputs, response.raw_output_contents, strict=True)
            }
        case _:
            return _read_oip_json(body, int(headers.get("inference-header-content-length", len(body))))


def _predict(model: str, inputs: Tensors) -> bytes:
    request = predict_pb2.PredictRequest()
    request.model_spec.name = model
    for name, array in inputs.items():
        tensor = request.inputs[name]
        tensor.dtype = tf.as_dtype(array.dtype).as_datatype_enum
        for size in array.shape:
            tensor.tensor_shape.dim.add(size=size)
        if array.dtype.hasobject:
            tensor.string_val.extend(array.ravel().tolist())
        else:
            tensor.tensor_content = array.tobytes()
    return bytes(request.SerializeToString())


def _tf_rest(model: str, inputs: Tensors) -> Request | None:
    if any(_entries(array) > MOST_JSON or array.dtype.kind == "c" for array in inputs.values()):
        return None
    # A list without elements ends the shape: JSON has no form for the dimensions after it.
    if any(0 in array.shape[:-1] for array in inputs.values()):
        return None
    columns = {name: _listed(array) for name, array in inputs.items()}
    body = json.dumps({"inputs": columns}).encode()
    return Request(f"/v1/models/{model}:predict", body, {"content-type": "application/json"})


def _infer(model: str, inputs: Tensors, *, is_raw: bool) -> bytes:
    request = ModelInferRequest(model_name=model)
    for name, array in inputs.items():
        datatype = DATATYPES[array.dtype.name]
        tensor = request.inputs.add(name=name, datatype=datatype, shape=array.shape)
        if is_raw:
            request.raw_input_contents.append(_raw(array))
        else:
            getattr(tensor.contents, FIELDS[datatype]).extend(array.ravel().tolist())
    return bytes(request.SerializeToString())


def _oip_rest(model: str, inputs: Tensors, *, is_binary: bool) -> Request:
    tensors: list[dict[str, Any]] = []
    binary = b""
    for name, array in inputs.items():
        one: dict[str, Any] = {"name": name, "datatype": DATATYPES[array.dtype.name], "shape": list(array.shape)}
        if is_binary:
            raw = _raw(array)
            one["parameters"] = {"binary_data_size": len(raw)}
            binary += raw
        else:
            one["data"] = [item.decode() if isinstance(item, bytes) else item for item in array.ravel().tolist()]
        tensors.append(one)
    header = json.dumps({"inputs": tensors, "parameters": {"binary_data_output": is_binary}}).encode()
    headers = {"inference-header-content-length": str(len(header))} if is_binary else {}
    return Request(f"/v2/models/{model}/infer", header + binary, headers)


def _raw(array: Array) -> bytes:
    if array.dtype.hasobject:
        return b"".join(len(item).to_bytes(4, "little") + item for item in array.ravel().tolist())
    return array.tobytes()


def _listed(array: Array) -> object:
    listed: object = array.tolist()
    if not array.dtype.hasobject or not array.size:
        return listed
    return np.vectorize(_text_or_base64, otypes=[object])(array).tolist()


def _text_or_base64(value: bytes) -> object:
    return value.decode() if value.isascii() else {"b64": base64.b64encode(value).decode()}


def _from_raw(datatype: str, shape: Sequence[int], raw: bytes) -> Array:
    if datatype != "BYTES":
        return np.frombuffer(raw, DTYPES[datatype]).reshape(tuple(shape))
    items, start = [], 0
    while start < len(raw):
        size = int.from_bytes(raw[start : start + 4], "little")
        items.append(raw[start + 4 : start + 4 + size])
        start += 4 + size
    array = np.empty(len(items), object)
    array[:] = items
    return array.reshape(tuple(shape))


def _read_oip_json(body: bytes, header_bytes: int) -> dict[str, Array]:
    outputs: dict[str, Array] = {}
    start = header_bytes
    for one in json.loads(body[:header_bytes])["outputs"]:
        size = one.get("parameters", {}).get("binary_data_size")
        if size is None:
            outputs[one["name"]] = np.array(one["data"]).reshape(one["shape"])
        else:
            outputs[one["name"]] = _from_raw(one["datatype"], one["shape"], body[start : start + size])
            start += size
    return outputs


def _entries(array: Array) -> int:
    entries = product = 1
    for size in array.shape:
        product *= size
        entries = max(entries, product)
    return entries
