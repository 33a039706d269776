"""The Open Inference Protocol over REST: JSON, and binary tensors after the JSON."""

import json
from typing import Any, Final

import httpx
import numpy as np

from tests.soak.connections import Connections
from tests.soak.hints import Hints
from tests.soak.oip_grpc import decode_bytes, encode_bytes
from tests.soak.question import Question, Tensors, WrongAnswerError
from tests.soak.reply import Reply

PROTOCOL: Final = "OIP REST"
_LENGTH: Final = "inference-header-content-length"


async def infer_json(at: Connections, question: Question, hints: Hints) -> Reply:
    """Send and get lists of values."""
    items = [
        {
            **_item(name, values),
            "data": [value.decode() for value in values] if values.dtype == object else values.ravel().tolist(),
        }
        for name, values in question.inputs.items()
    ]
    body = json.dumps({"id": str(question.number), "inputs": items}).encode()
    return _reply(question, await at.request("POST", f"{_path(question)}/infer", body, hints))


async def infer_binary(at: Connections, question: Question, hints: Hints) -> Reply:
    """Send and get binary tensors."""
    parts = {
        name: encode_bytes(values) if values.dtype == object else values.astype("<i8").tobytes()
        for name, values in question.inputs.items()
    }
    items = [
        {**_item(name, values), "parameters": {"binary_data_size": len(parts[name])}}
        for name, values in question.inputs.items()
    ]
    parameters = {"binary_data_output": True}
    head = json.dumps({"id": str(question.number), "parameters": parameters, "inputs": items}).encode()
    body = head + b"".join(parts.values())
    response = await at.request("POST", f"{_path(question)}/infer", body, hints, {_LENGTH: str(len(head))})
    return _reply(question, response)


async def metadata(at: Connections, question: Question, hints: Hints) -> Reply:
    document = (await at.request("GET", _path(question), None, hints)).json()
    if {one["name"] for one in document["inputs"]} != question.inputs.keys():
        raise WrongAnswerError(f"metadata of {question.model}: {document}")
    return Reply(None)


def _path(question: Question) -> str:
    path = f"/v2/models/{question.model}"
    return f"{path}/versions/{question.version}" if question.version else path


def _item(name: str, values: "np.ndarray[Any, Any]") -> dict[str, object]:
    return {"name": name, "datatype": "BYTES" if values.dtype == object else "INT64", "shape": values.shape}


def _reply(question: Question, response: httpx.Response) -> Reply:
    length = int(response.headers.get(_LENGTH, len(response.content)))
    document, rest = json.loads(response.content[:length]), response.content[length:]
    if document["id"] != str(question.number):
        raise WrongAnswerError(f"id {document['id']} for the request {question.number}")
    outputs: Tensors = {}
    for item in document["outputs"]:
        size = item.get("parameters", {}).get("binary_data_size", 0)
        outputs[item["name"]] = _tensor(item, rest[:size])
        rest = rest[size:]
    if rest:
        raise WrongAnswerError(f"{len(rest)} bytes after the outputs")
    return Reply(question.prove(outputs), int(document["model_version"]))


def _tensor(item: dict[str, Any], raw: bytes) -> "np.ndarray[Any, Any]":
    is_text = item["datatype"] == "BYTES"
    if "data" in item:
        flat = [value.encode() for value in item["data"]] if is_text else item["data"]
        return np.array(flat, object if is_text else np.int64).reshape(item["shape"])
    values: Any = np.array(list(decode_bytes(raw)), object) if is_text else np.frombuffer(raw, "<i8")
    return values.reshape(item["shape"])  # type: ignore[no-any-return]  # `values` is an array of either kind.
