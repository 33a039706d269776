"""OpenAPI for the paths under /v2. It is written by hand, because FastAPI has no routes for them."""

from typing import Any

from tpuserve_formats.oip.datatypes import DATATYPES
from tpuserve_server.protocols.http.openapi import CACHE_HEADER, ERRORS, MODEL, REQUEST_HEADERS, VERSION
from tpuserve_server.protocols.oip_rest.infer_lane import JSON_LENGTH_HEADER

_JSON = "application/json"
_BINARY = "application/octet-stream"
_STRING = {"type": "string"}
_SHAPE = {"type": "array", "items": {"type": "integer", "format": "int64"}}
_DATATYPE = {"type": "string", "enum": list(DATATYPES)}

_ERRORS = ERRORS | {
    "501": "The model has a dtype without a datatype in the protocol",
    "503": "The version is not ready, or the server is overloaded",
}
_JSON_LENGTH = {
    "name": JSON_LENGTH_HEADER.decode(),
    "in": "header",
    "schema": {"type": "integer", "minimum": 0},
    "description": "Length of the JSON before the binary data of the body",
}
_HEADERS = [_JSON_LENGTH, *REQUEST_HEADERS]
# The paths of a model and of one of its versions, each with the suffix of its operation ids.
MODEL_TARGETS = (("/v2/models/{model}", ""), ("/v2/models/{model}/versions/{version}", "Version"))


def content_of(schema: str, *, binary: bool = False) -> dict[str, Any]:
    """Return the content of a JSON body with the component `schema`. With `binary`, also allow binary data."""
    content: dict[str, Any] = {_JSON: {"schema": {"$ref": f"#/components/schemas/{schema}"}}}
    if binary:
        content[_BINARY] = {"schema": {"type": "string", "format": "binary"}}
    return content


def _responses(schema: str, errors: tuple[str, ...], *, binary: bool = False) -> dict[str, Any]:
    responses: dict[str, Any] = {"200": {"description": "OK", "content": content_of(schema, binary=binary)}}
    return responses | {status: {"description": _ERRORS[status], "content": content_of("Error")} for status in errors}


def _get(name: str, summary: str, schema: str, parameters: list[dict[str, Any]], *errors: str) -> dict[str, Any]:
    return {
        "get": {
            "tags": ["Open Inference Protocol"],
            "summary": summary,
            "operationId": name,
            "parameters": parameters,
            "responses": _responses(schema, errors),
        }
    }


def _infer(name: str, parameters: list[dict[str, Any]]) -> dict[str, Any]:
    responses = _responses("OipInferResponse", tuple(_ERRORS), binary=True)
    responses["200"]["headers"] = {
        JSON_LENGTH_HEADER.decode(): {"description": _JSON_LENGTH["description"], "schema": _JSON_LENGTH["schema"]},
        **CACHE_HEADER,
    }
    return {
        "post": {
            "tags": ["Open Inference Protocol"],
            "summary": "Run a model",
            "operationId": name,
            "parameters": [*parameters, *_HEADERS],
            "requestBody": {"required": True, "content": content_of("OipInferRequest", binary=True)},
            "responses": responses,
        }
    }


def _paths() -> dict[str, Any]:
    paths = {
        "/v2": _get("oipServerMetadata", "Name, version and extensions of the server", "OipServer", []),
        "/v2/health/live": _get("oipServerLive", "Liveness of the server", "OipFlag", [], "400"),
        "/v2/health/ready": _get("oipServerReady", "Readiness of the server", "OipFlag", [], "400"),
    }
    for path, suffix in MODEL_TARGETS:
        parameters = [MODEL, VERSION] if "{version}" in path else [MODEL]
        paths[path] = _get(
            f"oipModelMetadata{suffix}", "Inputs and outputs of a model", "OipModel", parameters, "400", "404", "503"
        )
        paths[f"{path}/ready"] = _get(f"oipModelReady{suffix}", "Readiness of a model", "OipFlag", parameters, "400")
        paths[f"{path}/infer"] = _infer(f"oipInfer{suffix}", parameters)
    return paths


def _object(properties: dict[str, Any], required: list[str], description: str) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": required, "description": description}


def _list(name: str) -> dict[str, Any]:
    return {"type": "array", "items": {"$ref": f"#/components/schemas/{name}"}}


_PARAMETERS = {"type": "object", "description": "See the reference of the protocol for the names that the server knows"}
_TENSOR = {"name": _STRING, "datatype": _DATATYPE, "shape": _SHAPE}
_DATA = {"type": "array", "items": {}, "description": "Values in row-major order, flat or nested"}

V2_PATHS: dict[str, Any] = _paths()
V2_COMPONENTS: dict[str, Any] = {
    "OipServer": _object(
        {"name": _STRING, "version": _STRING, "extensions": {"type": "array", "items": _STRING}},
        ["name", "version", "extensions"],
        "The server",
    ),
    "OipFlag": _object(
        {"name": _STRING, "live": {"type": "boolean"}, "ready": {"type": "boolean"}}, [], "Liveness or readiness"
    ),
    "OipTensorMetadata": _object(
        {"name": _STRING, "datatype": _STRING, "shape": _SHAPE},
        ["name", "datatype", "shape"],
        "An input or output; -1 is an unknown dimension",
    ),
    "OipModel": _object(
        {
            "name": _STRING,
            "versions": {"type": "array", "items": _STRING},
            "platform": _STRING,
            "inputs": _list("OipTensorMetadata"),
            "outputs": _list("OipTensorMetadata"),
        },
        ["name", "versions", "platform", "inputs", "outputs"],
        "A model, and the versions that answer requests",
    ),
    "OipInput": _object(
        {**_TENSOR, "parameters": _PARAMETERS, "data": _DATA},
        ["name", "datatype", "shape"],
        "An input, with data in JSON or the parameter binary_data_size",
    ),
    "OipRequestedOutput": _object(
        {"name": _STRING, "parameters": _PARAMETERS},
        ["name"],
        "An output to return, with the parameters binary_data and classification",
    ),
    "OipInferRequest": _object(
        {
            "id": _STRING,
            "parameters": _PARAMETERS,
            "inputs": _list("OipInput"),
            "outputs": _list("OipRequestedOutput"),
        },
        ["inputs"],
        "Tensors by name. No outputs mean all outputs",
    ),
    "OipOutput": _object(
        {**_TENSOR, "parameters": _PARAMETERS, "data": _DATA}, ["name", "datatype", "shape"], "An output"
    ),
    "OipInferResponse": _object(
        {"id": _STRING, "model_name": _STRING, "model_version": _STRING, "outputs": _list("OipOutput")},
        ["model_name", "model_version", "outputs"],
        "Non-finite numbers are the bare tokens NaN, Infinity and -Infinity",
    ),
}
