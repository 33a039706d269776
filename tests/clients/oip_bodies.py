"""Bodies of the Open Inference Protocol over HTTP, written from the specification and without the product's codec."""

import json
import struct
from collections.abc import Mapping
from typing import Any, Final

import ml_dtypes
import numpy as np

HEADER_LENGTH: Final = "inference-header-content-length"
# Little-endian, as the binary extension requires.
DTYPES: Final[dict[str, np.dtype[Any]]] = {
    "BOOL": np.dtype("?"),
    "UINT8": np.dtype("<u1"),
    "UINT16": np.dtype("<u2"),
    "UINT32": np.dtype("<u4"),
    "UINT64": np.dtype("<u8"),
    "INT8": np.dtype("<i1"),
    "INT16": np.dtype("<i2"),
    "INT32": np.dtype("<i4"),
    "INT64": np.dtype("<i8"),
    "FP16": np.dtype("<f2"),
    "FP32": np.dtype("<f4"),
    "FP64": np.dtype("<f8"),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "BYTES": np.dtype(object),
}
Array = np.ndarray[Any, Any]


def datatype(array: Array) -> str:
    return next(name for name, dtype in DTYPES.items() if dtype == array.dtype)


def strings(*values: bytes) -> Array:
    array = np.empty(len(values), object)
    array[:] = values
    return array


def to_raw(array: Array) -> bytes:
    if array.dtype != object:
        return array.tobytes()
    return b"".join(struct.pack("<I", len(item)) + item for item in array.reshape(-1))


def from_raw(name: str, shape: list[int], raw: bytes) -> Array:
    if name != "BYTES":
        return np.frombuffer(raw, DTYPES[name]).reshape(shape)
    values = []
    while raw:
        (length,) = struct.unpack_from("<I", raw)
        values.append(raw[4 : 4 + length])
        raw = raw[4 + length :]
    return strings(*values).reshape(shape)


def read_request(body: bytes, headers: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, Array]]:
    """Return the JSON object of a request, and its inputs, all of them binary."""
    length = int(headers[HEADER_LENGTH])
    document, rest = json.loads(body[:length]), body[length:]
    inputs = {}
    for item in document["inputs"]:
        size = item["parameters"]["binary_data_size"]
        raw, rest = rest[:size], rest[size:]
        inputs[item["name"]] = from_raw(item["datatype"], item["shape"], raw)
    assert rest == b""
    return document, inputs


def described(name: str, array: Array) -> dict[str, Any]:
    return {"name": name, "datatype": datatype(array), "shape": list(array.shape)}


def write_response(outputs: Mapping[str, Array], padding: int = 0, **others: object) -> tuple[bytes, dict[str, str]]:
    """Return the body and the headers of a response with binary outputs. `padding` is a number of spaces."""
    raws = {name: to_raw(array) for name, array in outputs.items()}
    items = [
        {**described(name, array), "parameters": {"binary_data_size": len(raws[name])}}
        for name, array in outputs.items()
    ]
    text = json.dumps({"model_name": "m", "outputs": items, **others}).encode() + b" " * padding
    return text + b"".join(raws.values()), {HEADER_LENGTH: str(len(text))}
