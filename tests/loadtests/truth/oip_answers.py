"""Responses of the scripted server's model over the Open Inference Protocol (OIP), without the product's codec."""

import json
from functools import lru_cache
from typing import Any, Final

import numpy as np

from tests.loadtests.truth.answers import doubled
from tests.loadtests.truth.script import Wrong
from tpuserve_client.dtypes import Array
from tpuserve_formats.messages import oip

_DATATYPES: Final = {"float32": "FP32", "int64": "INT64"}
# Inputs and outputs: name, datatype and shape.
_TENSORS: Final = {
    "inputs": (("x", "FP32", (-1, 4)),),
    "outputs": (("y", "FP32", (-1, 4)), ("rows", "INT64", (1,))),
}


@lru_cache(2048)
def model_of(message: bytes) -> str:
    """Return the model's name in a ModelInferRequest."""
    return str(oip.ModelInferRequest.FromString(message).model_name)


@lru_cache(2048)
def has_inputs(message: bytes) -> bool:
    """Return whether a ModelInferRequest has inputs."""
    return bool(oip.ModelInferRequest.FromString(message).inputs)


@lru_cache(2048)
def grpc_answer(message: bytes, wrong: Wrong | None = None) -> bytes:
    """Return the ModelInferResponse for a ModelInferRequest, both with raw contents."""
    request = oip.ModelInferRequest.FromString(message)
    (tensor,), (raw,) = request.inputs, request.raw_input_contents
    response = oip.ModelInferResponse(model_name=request.model_name, model_version="1")
    for name, array in doubled(_from_raw(raw, tensor.shape), wrong).items():
        response.outputs.add(**_described(name, array))
        response.raw_output_contents.append(array.tobytes())
    return bytes(response.SerializeToString())


@lru_cache(2048)
def http_answer(body: bytes, header_length: int, wrong: Wrong | None = None) -> tuple[bytes, int]:
    """Return the response for a request, in the same form: binary data after a header, or JSON alone (length 0)."""
    document = json.loads(body[:header_length] if header_length else body)
    (tensor,) = document["inputs"]
    if not header_length:
        outputs = doubled(np.array(tensor["data"], np.float32).reshape(tensor["shape"]), wrong)
        return _json(
            [{**_described(name, array), "data": array.ravel().tolist()} for name, array in outputs.items()]
        ), 0
    raw = body[header_length:]
    assert tensor["parameters"] == {"binary_data_size": len(raw)}
    outputs = doubled(_from_raw(raw, tensor["shape"]), wrong)
    text = _json(
        [
            {**_described(name, array), "parameters": {"binary_data_size": array.nbytes}}
            for name, array in outputs.items()
        ]
    )
    return b"".join([text, *(array.tobytes() for array in outputs.values())]), len(text)


def grpc_metadata(message: bytes) -> bytes:
    """Return the ModelMetadataResponse for a ModelMetadataRequest."""
    request = oip.ModelMetadataRequest.FromString(message)
    response = oip.ModelMetadataResponse(name=request.name, versions=["1"], platform="scripted")
    for kind, tensors in _TENSORS.items():
        for name, datatype, shape in tensors:
            getattr(response, kind).add(name=name, datatype=datatype, shape=shape)
    return bytes(response.SerializeToString())


def http_metadata(model: str) -> bytes:
    """Return the JSON metadata of a model."""
    tensors = {
        kind: [{"name": name, "datatype": datatype, "shape": shape} for name, datatype, shape in each]
        for kind, each in _TENSORS.items()
    }
    return json.dumps({"name": model, "versions": ["1"], "platform": "scripted", **tensors}).encode()


def _json(outputs: list[dict[str, Any]]) -> bytes:
    return json.dumps({"model_name": "doubling", "model_version": "1", "outputs": outputs}).encode()


def _from_raw(raw: bytes, shape: Any) -> Array:  # noqa: ANN401  a list, or a repeated field
    return np.frombuffer(raw, "<f4").reshape(tuple(shape))


def _described(name: str, array: Array) -> dict[str, Any]:
    return {"name": name, "datatype": _DATATYPES[array.dtype.name], "shape": array.shape}
