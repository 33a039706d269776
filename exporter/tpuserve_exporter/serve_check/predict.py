"""Requests to a server with gRPC's Predict and REST's :predict. Implements only as much as the check needs."""

import base64
import json
import urllib.error
import urllib.request
from typing import Any

import numpy as np

from tpuserve_exporter.errors import ParityFailed
from tpuserve_exporter.serve_check.server_process import ServerProcess
from tpuserve_exporter.signature import Array, Tensors

_TIMEOUT_S = 300.0


def predict_grpc(server: ServerProcess, signature: str, inputs: Tensors) -> dict[str, Array]:
    """Send a Predict request and return the outputs by name. Raises ParityFailed with the server's error."""
    import grpc
    import tensorflow as tf
    from tensorflow_serving.apis.predict_pb2 import PredictRequest
    from tensorflow_serving.apis.prediction_service_pb2_grpc import PredictionServiceStub

    request = PredictRequest()
    request.model_spec.name, request.model_spec.signature_name = server.model, signature
    for name, value in inputs.items():
        request.inputs[name].CopyFrom(tf.make_tensor_proto(value))
    try:
        outputs = PredictionServiceStub(server.channel).Predict(request, timeout=_TIMEOUT_S).outputs
    except grpc.RpcError as error:
        raise ParityFailed(f"the server returns {error.code().name}: {error.details()}") from error
    return {name: tf.make_ndarray(tensor) for name, tensor in outputs.items()}


def predict_rest(server: ServerProcess, signature: str, inputs: Tensors, like: Tensors) -> dict[str, Array]:
    """Send a :predict request and return the outputs by name. Raises ParityFailed.

    JSON has only numbers and text, so the outputs take their dtypes from `like`.
    """
    columns = {name: _to_json(value) for name, value in inputs.items()}
    request = urllib.request.Request(
        f"{server.rest}/v1/models/{server.model}:predict",
        data=json.dumps({"signature_name": signature, "inputs": columns}).encode(),
        headers={"Content-Type": "application/json"},
    )
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=_TIMEOUT_S) as reply:
            outputs = json.load(reply)["outputs"]
    except urllib.error.HTTPError as error:
        raise ParityFailed(f"the server returns {error.code}: {error.read().decode(errors='replace')}") from error
    except (OSError, ValueError, KeyError) as error:
        raise ParityFailed(f"the server does not respond: {error}") from error
    if len(like) == 1:  # REST omits the name of a single output
        outputs = {next(iter(like)): outputs}
    if outputs.keys() != like.keys():
        raise ParityFailed(f"the outputs are {sorted(outputs)} instead of {sorted(like)}")
    return {name: _from_json(outputs[name], np.asarray(value)) for name, value in like.items()}


def can_be_json(inputs: Tensors, outputs: Tensors) -> bool:
    """Return whether REST can carry the tensors.

    It carries no complex numbers, and binary strings only in outputs named `*_bytes`.
    """
    if any(np.asarray(value).dtype.kind == "c" for value in (*inputs.values(), *outputs.values())):
        return False
    strings = (value for name, value in outputs.items() if not name.endswith("_bytes"))
    return all(_is_text(one) for value in strings if value.dtype == object for one in value.reshape(-1))


def _is_text(value: Any) -> bool:  # noqa: ANN401 - what numpy holds as object: bytes or str
    try:
        return isinstance(value, str) or bool(value.decode() or True)
    except UnicodeDecodeError:
        return False


def _to_json(value: Array) -> Any:  # noqa: ANN401 - nested lists
    value = np.asarray(value)
    if value.dtype == object:
        coded = [{"b64": base64.b64encode(_as_bytes(one)).decode()} for one in value.reshape(-1)]
        return _nest(coded, value.shape)
    if value.dtype.kind == "V" or value.dtype.name == "bfloat16":
        value = value.astype(np.float32)
    return value.tolist()


def _nest(flat: list[Any], shape: tuple[int, ...]) -> Any:  # noqa: ANN401 - nested lists
    """Return `flat` as lists nested to an array's shape, or its one element for a scalar."""
    holder = np.empty(len(flat), dtype=object)
    holder[:] = flat
    return holder.reshape(shape).tolist()


def _from_json(value: Any, like: Array) -> Array:  # noqa: ANN401 - nested lists
    if like.dtype != object:
        return np.asarray(value, dtype=np.float64 if like.dtype.kind in "fV" else None).astype(like.dtype)
    flat = np.empty(like.shape, dtype=object) if like.size == 0 else np.asarray(value, dtype=object)
    return np.vectorize(_decode, otypes=[object])(flat) if flat.size else flat


def _decode(value: Any) -> bytes:  # noqa: ANN401 - text, or {"b64": text}
    return base64.b64decode(value["b64"]) if isinstance(value, dict) else str(value).encode()


def _as_bytes(value: Any) -> bytes:  # noqa: ANN401 - bytes or str
    return value.encode() if isinstance(value, str) else bytes(value)
