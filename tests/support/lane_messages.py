"""Messages of requests for the model of LaneHouse, in both gRPC protocols and over REST."""

import json
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from tpuserve_formats.dtypes import Array
from tpuserve_formats.messages.official import PredictRequest
from tpuserve_formats.messages.oip import ModelInferRequest
from tpuserve_formats.tensor_proto import encode_tensor

PREDICT = "/tensorflow.serving.PredictionService/Predict"
INFER = "/inference.GRPCInferenceService/ModelInfer"


class RestMessage(NamedTuple):
    """The path of a request, and a body whose first bytes are JSON. Without `json_bytes`, all bytes are JSON."""

    path: str
    body: bytes
    json_bytes: int | None


@dataclass(frozen=True, kw_only=True)
class Sample:
    """A request in no protocol: each of the `values` fills a row of `width` numbers.

    `as_content` is for the form of the input, raw bytes or typed numbers. TensorFlow Serving's Predict ignores the
    fields after it, except that `form` is for its JSON alone: rows, columns, or columns with names. `is_binary`, the
    form of the outputs, is for the Open Inference Protocol over REST alone.
    """

    values: tuple[float, ...]
    model: str = "m"
    version: int | None = None
    signature: str = ""
    outputs: tuple[str, ...] = ()
    name: str = "x"
    dtype: str = "float32"
    width: int = 2
    as_content: bool = True
    request_id: str = ""
    timeout: int | None = None
    priority: int | None = None
    is_binary: bool = True
    form: str = "rows"

    @property
    def array(self) -> Array:
        return np.array([[value] * self.width for value in self.values], self.dtype)

    @property
    def datatype(self) -> str:
        return "FP32" if self.dtype == "float32" else "FP64"

    @property
    def parameters(self) -> dict[str, int]:
        found = {"timeout": self.timeout, "priority": self.priority}
        return {name: value for name, value in found.items() if value is not None}


def message(*values: float, **fields: Any) -> bytes:  # noqa: ANN401 - the fields of Sample
    """Return a PredictRequest."""
    sample = Sample(values=values, **fields)
    request = PredictRequest(output_filter=sample.outputs)
    request.model_spec.name, request.model_spec.signature_name = sample.model, sample.signature
    if sample.version is not None:
        request.model_spec.version.value = sample.version
    request.inputs[sample.name].MergeFromString(encode_tensor(sample.array, as_content=sample.as_content))
    return bytes(request.SerializeToString())


def infer_message(*values: float, **fields: Any) -> bytes:  # noqa: ANN401 - the fields of Sample
    """Return a ModelInferRequest."""
    sample = Sample(values=values, **fields)
    version = "" if sample.version is None else str(sample.version)
    request = ModelInferRequest(model_name=sample.model, model_version=version, id=sample.request_id)
    if sample.signature:
        request.parameters["signature_name"].string_param = sample.signature
    for parameter, value in sample.parameters.items():
        request.parameters[parameter].int64_param = value
    array = sample.array
    tensor = request.inputs.add(name=sample.name, datatype=sample.datatype, shape=array.shape)
    if sample.as_content:
        request.raw_input_contents.append(array.tobytes())
    elif sample.dtype == "float32":
        tensor.contents.fp32_contents.extend(array.reshape(-1))
    else:
        tensor.contents.fp64_contents.extend(array.reshape(-1))
    for output in sample.outputs:
        request.outputs.add(name=output)
    return bytes(request.SerializeToString())


def rest_message(*values: float, **fields: Any) -> RestMessage:  # noqa: ANN401 - the fields of Sample
    """Return a request of the Open Inference Protocol over REST."""
    sample = Sample(values=values, **fields)
    array = sample.array
    tensor: dict[str, object] = {"name": sample.name, "datatype": sample.datatype, "shape": array.shape}
    data = array.tobytes() if sample.as_content else b""
    if sample.as_content:
        tensor["parameters"] = {"binary_data_size": len(data)}
    else:
        tensor["data"] = array.ravel().tolist()
    parameters: dict[str, object] = {"binary_data_output": sample.is_binary, **sample.parameters}
    if sample.signature:
        parameters["signature_name"] = sample.signature
    document: dict[str, object] = {"inputs": [tensor], "parameters": parameters}
    if sample.request_id:
        document["id"] = sample.request_id
    if sample.outputs:
        form = {"binary_data": sample.is_binary}
        document["outputs"] = [{"name": output, "parameters": form} for output in sample.outputs]
    text = _text(document)
    version = "" if sample.version is None else f"/versions/{sample.version}"
    path = f"/v2/models/{sample.model}{version}/infer"
    return RestMessage(path, text + data, len(text) if data or sample.is_binary else None)


def predict_json(*values: float, **fields: Any) -> RestMessage:  # noqa: ANN401 - the fields of Sample
    """Return a request of TensorFlow Serving's Predict over REST."""
    sample = Sample(values=values, **fields)
    document: dict[str, object] = {"signature_name": sample.signature} if sample.signature else {}
    rows = sample.array.tolist()
    if sample.form == "rows":
        document["instances"] = rows
    else:
        document["inputs"] = rows if sample.form == "columns" else {sample.name: rows}
    version = "" if sample.version is None else f"/versions/{sample.version}"
    return RestMessage(f"/v1/models/{sample.model}{version}:predict", _text(document), None)


def _text(document: object) -> bytes:
    """Return JSON with numbers beyond a float32's range in place of infinities, which it does not have."""
    return json.dumps(document).replace("Infinity", "1e39").encode()
