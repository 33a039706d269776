"""Responses of the scripted server's model, which doubles `x`, over TensorFlow Serving's protocols."""

import json
from functools import lru_cache
from typing import Any, Final

import numpy as np

from tests.loadtests.truth.script import Wrong
from tpuserve_client import tensor
from tpuserve_client.dtypes import Array
from tpuserve_formats.dtypes import BY_ENUM_NAME
from tpuserve_formats.messages import official

SIGNATURE: Final = "serving_default"
# Inputs and outputs: name, dtype and shape.
_TENSORS: Final = {
    "inputs": (("x", "DT_FLOAT", (-1, 4)),),
    "outputs": (("y", "DT_FLOAT", (-1, 4)), ("rows", "DT_INT64", (1,))),
}


@lru_cache(2048)
def model_of(message: bytes) -> str:
    """Return the model's name in a PredictRequest."""
    return str(official.PredictRequest.FromString(message).model_spec.name)


@lru_cache(2048)
def has_inputs(message: bytes) -> bool:
    """Return whether a PredictRequest has inputs."""
    return bool(official.PredictRequest.FromString(message).inputs)


@lru_cache(2048)
def has_json_inputs(body: bytes, header_length: int) -> bool:
    """Return whether the JSON of a prediction has inputs, in either protocol."""
    return bool(json.loads(body[:header_length] if header_length else body)["inputs"])


@lru_cache(2048)
def grpc_answer(message: bytes, wrong: Wrong | None = None) -> bytes:
    """Return the PredictResponse for a PredictRequest."""
    request = official.PredictRequest.FromString(message)
    response = official.PredictResponse(model_spec=request.model_spec)
    for name, array in doubled(tensor.from_proto(request.inputs["x"]), wrong).items():
        response.outputs[name].CopyFrom(tensor.to_proto(array))
    return bytes(response.SerializeToString(deterministic=True))


@lru_cache(2048)
def rest_answer(body: bytes, wrong: Wrong | None = None) -> bytes:
    """Return the JSON response for a columnar JSON request."""
    x = np.asarray(json.loads(body)["inputs"]["x"], np.float32)
    outputs = {name: array.tolist() for name, array in doubled(x, wrong).items()}
    return json.dumps({"outputs": outputs}).encode()


def doubled(x: Array, wrong: Wrong | None) -> dict[str, Array]:
    """Return the outputs of the model, right or wrong."""
    y = 2 * x
    match wrong:
        case Wrong.VALUE:
            y[0, 0] += 0.01
        case Wrong.SHAPE:
            y = np.concatenate([y, y[:1]])
        case Wrong.NAN:
            y[-1, -1] = np.nan
    rows = np.array([len(x)], np.int64)
    return {"rows": rows} if wrong is Wrong.MISSING else {"y": y, "rows": rows}


def grpc_metadata(message: bytes) -> bytes:
    """Return the GetModelMetadataResponse for a GetModelMetadataRequest."""
    request = official.GetModelMetadataRequest.FromString(message)
    signatures = official.SignatureDefMap()
    signature = signatures.signature_def[SIGNATURE]
    for kind, tensors in _TENSORS.items():
        for name, dtype, shape in tensors:
            info = getattr(signature, kind)[name]
            info.dtype = BY_ENUM_NAME[dtype].number
            for size in shape:
                info.tensor_shape.dim.add().size = size
    response = official.GetModelMetadataResponse(model_spec=request.model_spec)
    response.metadata["signature_def"].Pack(signatures)
    return bytes(response.SerializeToString())


def rest_metadata(model: str) -> bytes:
    """Return the JSON metadata of a model."""
    signature: dict[str, Any] = {kind: dict(map(_info, tensors)) for kind, tensors in _TENSORS.items()}
    signatures = {"signature_def": {SIGNATURE: {**signature, "method_name": ""}}}
    spec = {"name": model, "signature_name": "", "version": "1"}
    return json.dumps({"model_spec": spec, "metadata": {"signature_def": signatures}}).encode()


def _info(tensor_: tuple[str, str, tuple[int, ...]]) -> tuple[str, dict[str, Any]]:
    name, dtype, shape = tensor_
    dims = [{"size": str(size), "name": ""} for size in shape]
    return name, {"dtype": dtype, "tensor_shape": {"dim": dims, "unknown_rank": False}, "name": name}


def grpc_status(message: bytes) -> bytes:
    """Return the GetModelStatusResponse: version 1 is available."""
    response = official.GetModelStatusResponse()
    response.model_version_status.add(version=1, state=official.ModelVersionStatus.AVAILABLE)
    return bytes(response.SerializeToString())


def rest_status() -> bytes:
    """Return the JSON status: version 1 is available."""
    status = {"version": "1", "state": "AVAILABLE", "status": {"error_code": "OK", "error_message": ""}}
    return json.dumps({"model_version_status": [status]}).encode()
