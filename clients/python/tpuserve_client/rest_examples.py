"""TensorFlow Serving's Classify and Regress as JSON values."""

import base64
from typing import Any, TypeAlias

import numpy as np

from tpuserve_client.dtypes import Array
from tpuserve_client.examples import Features
from tpuserve_client.exchange import ExampleCall
from tpuserve_client.json_tensor import to_json
from tpuserve_client.model import Classifications, ScoredClass
from tpuserve_client.names import is_utf8

_Json: TypeAlias = Any  # any result of json.loads; read defensively below


def request_document(call: ExampleCall) -> dict[str, _Json]:
    """Return the body of a request: {"signature_name"?, "context"?, "examples": […]}."""
    document: dict[str, _Json] = {}
    if call.signature_name:
        document["signature_name"] = call.signature_name
    if call.context is not None:
        document["context"] = _example(call.context)
    return {**document, "examples": [_example(features) for features in call.examples]}


def results(document: dict[str, _Json]) -> list[_Json]:
    """Return the result of each example.

    TensorFlow Serving names them "results", although its documentation names them "result".
    """
    found = document["results"] if "results" in document else document["result"]
    if not isinstance(found, list):
        raise ValueError("the results are not a list")
    return found


def classifications(rows: list[_Json]) -> Classifications:
    """Return the classes of each example: [[label, score], …]. Raises ValueError or TypeError for another form."""
    return tuple(tuple(ScoredClass(_label(label), float(score)) for label, score in row) for row in rows)


def regressions(rows: list[_Json]) -> Array:
    """Return a float32 array with a value for each example. Raises ValueError or TypeError for another form."""
    values = np.array(rows, np.float32)
    if values.ndim != 1:
        raise ValueError("a result is not a number")
    return values


def _example(features: Features) -> dict[str, _Json]:
    return {name: to_json(values) for name, values in features.items()}


def _label(label: _Json) -> str:
    if isinstance(label, str) and is_utf8(label):
        return label
    if isinstance(label, dict) and isinstance(label.get("b64"), str):
        return base64.b64decode(label["b64"], validate=True).decode()
    raise ValueError("a label is not a UTF-8 string")
