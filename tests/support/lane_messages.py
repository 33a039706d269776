"""Messages of requests for the model of LaneHouse, in both gRPC protocols and over REST."""

import json
from typing import NamedTuple

import numpy as np

from tpuserve_formats.messages.official import PredictRequest
from tpuserve_formats.messages.oip import ModelInferRequest
from tpuserve_formats.tensor_proto import encode_tensor

PREDICT = "/tensorflow.serving.PredictionService/Predict"
INFER = "/inference.GRPCInferenceService/ModelInfer"


class RestMessage(NamedTuple):
    """The path of a request, and a body whose first bytes are JSON."""

    path: str
    body: bytes
    json_bytes: int


def message(
    *values: float,
    model: str = "m",
    version: int | None = None,
    signature: str = "",
    outputs: tuple[str, ...] = (),
    name: str = "x",
    dtype: str = "float32",
    width: int = 2,
    as_content: bool = True,
) -> bytes:
    """Return a request with `values` as rows of `width` numbers."""
    request = PredictRequest(output_filter=outputs)
    request.model_spec.name, request.model_spec.signature_name = model, signature
    if version is not None:
        request.model_spec.version.value = version
    array = np.array([[value] * width for value in values], dtype)
    request.inputs[name].MergeFromString(encode_tensor(array, as_content=as_content))
    return bytes(request.SerializeToString())


def infer_message(
    *values: float,
    model: str = "m",
    version: int | None = None,
    signature: str = "",
    outputs: tuple[str, ...] = (),
    name: str = "x",
    dtype: str = "float32",
    width: int = 2,
    as_content: bool = True,
    request_id: str = "",
    **parameters: int,
) -> bytes:
    """Return the same request in the Open Inference Protocol, with raw contents or typed ones."""
    request = ModelInferRequest(model_name=model, model_version="" if version is None else str(version), id=request_id)
    if signature:
        request.parameters["signature_name"].string_param = signature
    for parameter, value in parameters.items():
        request.parameters[parameter].int64_param = value
    array = np.array([[value] * width for value in values], dtype)
    tensor = request.inputs.add(name=name, datatype="FP32" if dtype == "float32" else "FP64", shape=array.shape)
    if as_content:
        request.raw_input_contents.append(array.tobytes())
    elif dtype == "float32":
        tensor.contents.fp32_contents.extend(array.reshape(-1))
    else:
        tensor.contents.fp64_contents.extend(array.reshape(-1))
    for output in outputs:
        request.outputs.add(name=output)
    return bytes(request.SerializeToString())


def rest_message(
    *values: float,
    model: str = "m",
    version: int | None = None,
    signature: str = "",
    outputs: tuple[str, ...] = (),
    name: str = "x",
    dtype: str = "float32",
    width: int = 2,
    as_content: bool = True,
    request_id: str = "",
    is_binary: bool = True,
    **parameters: int,
) -> RestMessage:
    """Return the same request over REST, with binary data or numbers, for outputs that are binary or numbers."""
    array = np.array([[value] * width for value in values], dtype)
    datatype = "FP32" if dtype == "float32" else "FP64"
    tensor: dict[str, object] = {"name": name, "datatype": datatype, "shape": array.shape}
    data = array.tobytes() if as_content else b""
    if as_content:
        tensor["parameters"] = {"binary_data_size": len(data)}
    else:
        tensor["data"] = array.ravel().tolist()
    wanted: dict[str, object] = {"binary_data_output": is_binary, **parameters}
    if signature:
        wanted["signature_name"] = signature
    document: dict[str, object] = {"inputs": [tensor], "parameters": wanted}
    if request_id:
        document["id"] = request_id
    if outputs:
        document["outputs"] = [{"name": each, "parameters": {"binary_data": is_binary}} for each in outputs]
    text = json.dumps(document).encode()
    path = f"/v2/models/{model}/infer" if version is None else f"/v2/models/{model}/versions/{version}/infer"
    return RestMessage(path, text + data, len(text))
