"""TensorFlow Serving's REST format without the client, like a user's curl requests."""

import base64
import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any

import numpy as np

from tests.strangers.stranger import Array, Tensors

# Timeout of each request, for the client too. Warm models answer within a second.
TIMEOUT_S = 60.0


class Refused(Exception):
    """The server returned an error."""


def predict(address: str, model: str, signature: str, inputs: Tensors, expected: Tensors, *, rows: bool) -> Tensors:
    """Send `instances` and read `predictions` if `rows`, else send `inputs` and read `outputs`.

    JSON carries no dtypes, so outputs get those of `expected`. Raises Refused.
    """
    values = {name: _to_json(name, array) for name, array in inputs.items()}
    body: dict[str, object] = {"signature_name": signature, "inputs": values}
    if rows:
        instances = [dict(zip(values, row, strict=True)) for row in zip(*values.values(), strict=True)]
        body = {"signature_name": signature, "instances": instances}
    reply = _post(f"{address}/v1/models/{model}:predict", body)
    columns = _columns(reply["predictions"], expected) if rows else reply["outputs"]
    if len(expected) == 1:
        columns = dict.fromkeys(expected, columns)
    return {name: _from_json(value, expected.get(name)) for name, value in columns.items()}


def _columns(predictions: list[Any], expected: Tensors) -> Any:  # noqa: ANN401 - JSON
    """Return lists by output from a list of rows, in which a single output has no name."""
    if len(expected) == 1:
        return predictions
    names = predictions[0] if predictions else expected
    return {name: [row[name] for row in predictions] for name in names}


def _post(url: str, body: Mapping[str, object]) -> dict[str, Any]:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as reply:
            document: dict[str, Any] = json.load(reply)
    except urllib.error.HTTPError as error:
        raise Refused(f"HTTP {error.code}: {error.read().decode(errors='replace')[:500]}") from error
    return document


def _to_json(name: str, array: Array) -> Any:  # noqa: ANN401 - JSON
    if array.dtype.kind in "OSU":
        texts = np.vectorize(lambda one: _text_to_json(name, one), otypes=[object])(array)
        return texts.tolist()
    return array.astype(np.float64).tolist() if array.dtype.kind in "fV" else array.tolist()


def _text_to_json(name: str, value: bytes | str) -> object:
    """Return text unchanged, and files and other bytes in base64."""
    raw = value.encode() if isinstance(value, str) else bytes(value)
    try:
        return {"b64": base64.b64encode(raw).decode()} if name.endswith("_bytes") else raw.decode()
    except UnicodeDecodeError:
        return {"b64": base64.b64encode(raw).decode()}


def _from_json(value: Any, expected: Array | None) -> Array:  # noqa: ANN401 - JSON
    if expected is None:
        return np.asarray(value)
    if expected.dtype.kind not in "OSU":
        return np.asarray(value, expected.dtype)
    read = np.asarray(value, object)
    flat = [_text_from_json(one) for one in read.reshape(-1).tolist()]
    texts = np.empty(len(flat), object)
    texts[:] = flat
    return texts.reshape(read.shape)


def _text_from_json(value: Any) -> bytes:  # noqa: ANN401 - JSON
    return base64.b64decode(value["b64"]) if isinstance(value, dict) else str(value).encode()
