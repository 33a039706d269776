"""PredictionLogs as lines of JSON from the server's request log, in protobuf's JSON format."""

import base64
import json
import math
from collections.abc import Mapping
from typing import Any, Final, TypeAlias

import numpy as np

from tpuserve_client import dtypes, tensor
from tpuserve_client.dtypes import STRING, Array, DType
from tpuserve_formats.messages import official
from tpuserve_formats.tensor_proto import MAX_REPEATED_BYTES
from tpuserve_loadtests.recording.prediction_log import Logged

_Json: TypeAlias = Any  # the result of json.loads, which the code below validates

# Fields of TensorProto whose values are bit patterns.
_BITS: Final = {"half_val": np.uint16}


def read_json_log(line: bytes) -> Logged | None:
    """Return the request of a line, or None for a line without a Predict request.

    Raises ValueError for an invalid line.
    """
    try:
        document = json.loads(line)
        metadata = document.get("log_metadata", {})
        request = document.get("predict_log", {}).get("request")
        if request is None:
            return None
        spec = request.get("model_spec", {})
        return Logged(
            spec.get("name", ""),
            spec.get("signature_name", ""),
            int(metadata.get("timestamp_secs", 0)),
            float(metadata.get("sampling_config", {}).get("sampling_rate", 0)),
            _inputs(request),
        )
    except (ValueError, TypeError, AttributeError, KeyError, RecursionError, OverflowError) as error:
        raise ValueError(f"a line is not a PredictionLog: {type(error).__name__}: {error}") from None


def _inputs(request: Mapping[str, _Json]) -> bytes:
    message = official.PredictRequest(output_filter=request.get("output_filter", []))
    for name, document in request.get("inputs", {}).items():
        message.inputs[name].CopyFrom(tensor.to_proto(_array(document)))
    return bytes(message.SerializeToString(deterministic=True))


def _array(document: Mapping[str, _Json]) -> Array:
    dtype = dtypes.from_name(document["dtype"])
    if dtype is None:
        raise ValueError(f"unknown dtype {document['dtype']}")
    shape = [int(dim.get("size", 0)) for dim in document.get("tensor_shape", {}).get("dim", [])]
    if "tensor_content" in document:
        content = base64.b64decode(document["tensor_content"])
        return np.frombuffer(content, dtype.newbyteorder("<")).astype(dtype).reshape(shape)
    field, values = next(((key, value) for key, value in document.items() if key.endswith("_val")), ("", []))
    return _filled(_values(field, values, dtype), shape)


def _values(field: str, values: _Json, dtype: DType) -> Array:
    if dtype == STRING:
        texts = np.empty(len(values), STRING)
        texts[:] = [base64.b64decode(value) for value in values]
        return texts
    if field == "float8_val":
        return np.frombuffer(base64.b64decode(values), dtype)
    if field in _BITS:
        return np.array([int(value) for value in values], _BITS[field]).view(dtype)
    if dtype.kind == "c":
        numbers = np.array([float(value) for value in values], np.float64)
        return (numbers[0::2] + 1j * numbers[1::2]).astype(dtype)
    # JSON represents 64-bit integers, NaN and infinities as strings.
    return np.array([float(value) if dtype.kind == "f" else int(value) for value in values]).astype(dtype)


def _filled(values: Array, shape: list[int]) -> Array:
    """Return the array in its shape. The last value replaces omitted ones (tensor.proto)."""
    size = math.prod(shape)
    if len(values) < size:
        if size * values.itemsize > MAX_REPEATED_BYTES:
            raise ValueError(f"shape {shape} is too large for {len(values)} values")
        padding = np.zeros(1, values.dtype) if not len(values) else values[-1:]
        values = np.concatenate([values, np.repeat(padding, size - len(values))])
    return values.reshape(shape)
