"""TensorFlow Serving's REST API, with JSON by hand."""

import base64
import json
from collections.abc import Mapping
from typing import Any, Final, TypeAlias

import httpx
import numpy as np

from tests.soak.connections import Connections
from tests.soak.hints import Hints
from tests.soak.question import CLASSIFY, FEATURE, REGRESS, Question, Tensors, WrongAnswerError
from tests.soak.reply import Reply

PROTOCOL: Final = "TF REST"
_Json: TypeAlias = Any  # Any JSON document.


async def predict_rows(at: Connections, question: Question, hints: Hints) -> Reply:
    """Send a list of rows."""
    columns = {name: _values(name, values) for name, values in question.inputs.items()}
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    response = await _post(at, question, "predict", {"instances": rows}, hints)
    return _reply(question, response, _from_rows(question, _json(response)["predictions"]))


async def predict_columns(at: Connections, question: Question, hints: Hints) -> Reply:
    """Send a list for each input."""
    columns = {name: _values(name, values) for name, values in question.inputs.items()}
    response = await _post(at, question, "predict", {"inputs": columns}, hints)
    outputs = _json(response)["outputs"]
    if not isinstance(outputs, dict):  # The only output of a model.
        outputs = {_only_output(question): outputs}
    return _reply(question, response, outputs)


async def classify(at: Connections, question: Question, hints: Hints) -> Reply:
    response = await _post(at, question, "classify", _examples(question, CLASSIFY), hints)
    return Reply(question.prove_classes(_json(response)["results"]), _reported(response))


async def regress(at: Connections, question: Question, hints: Hints) -> Reply:
    response = await _post(at, question, "regress", _examples(question, REGRESS), hints)
    return Reply(question.prove_values(_json(response)["results"]), _reported(response))


async def metadata(at: Connections, question: Question, hints: Hints) -> Reply:
    response = await at.request("GET", f"{_path(question)}/metadata", None, hints)
    document = _json(response)
    inputs = document["metadata"]["signature_def"]["signature_def"]["serving_default"]["inputs"]
    if inputs.keys() != question.inputs.keys():
        raise WrongAnswerError(f"metadata of {question.model}: {response.text:.300}")
    return Reply(None, int(document["model_spec"]["version"]))


async def status(at: Connections, question: Question, hints: Hints) -> Reply:
    """Ask for the status, which has a version in every state of the server."""
    response = await at.request("GET", f"/v1/models/{question.model}", None, hints)
    if not any(int(one["version"]) for one in _json(response)["model_version_status"]):
        raise WrongAnswerError(f"no version of {question.model}: {response.text:.300}")
    return Reply(None)


async def _post(
    at: Connections, question: Question, verb: str, document: Mapping[str, object], hints: Hints
) -> httpx.Response:
    return await at.request("POST", f"{_path(question)}:{verb}", json.dumps(document).encode(), hints)


def _path(question: Question) -> str:
    path = f"/v1/models/{question.model}"
    if question.label:
        return f"{path}/labels/{question.label}"
    return f"{path}/versions/{question.version}" if question.version else path


def _values(name: str, values: "np.ndarray[Any, Any]") -> list[Any]:
    if name == "text":
        return [{"b64": base64.b64encode(value).decode()} for value in values]
    return list(values.tolist())


def _examples(question: Question, signature: str) -> dict[str, object]:
    return {"signature_name": signature, "examples": [{FEATURE: x} for x in question.x]}


def _only_output(question: Question) -> str:
    return "counted" if "steps" in question.inputs else "y"


def _from_rows(question: Question, rows: list[Any]) -> dict[str, list[Any]]:
    if rows and not isinstance(rows[0], dict):
        return {_only_output(question): rows}
    return {name: [row[name] for row in rows] for name in rows[0]} if rows else {}


def _reply(question: Question, response: httpx.Response, outputs: Mapping[str, list[Any]]) -> Reply:
    tensors: Tensors = {
        name: np.array([text.encode() for text in values], object) if name == "same" else np.array(values, np.int64)
        for name, values in outputs.items()
    }
    return Reply(question.prove(tensors), _reported(response))


def _reported(response: httpx.Response) -> int:
    return int(response.headers["x-tpuserve-model-version"])


def _json(response: httpx.Response) -> _Json:
    try:
        return response.json()
    except json.JSONDecodeError as error:
        raise WrongAnswerError(f"no JSON: {response.text:.300}") from error
