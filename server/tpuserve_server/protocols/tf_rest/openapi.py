"""OpenAPI for the paths under /v1/. It is written by hand, because FastAPI has no routes for them."""

from typing import Any

from tpuserve_server.protocols.http.openapi import CACHE_HEADER, ERRORS, MODEL, REQUEST_HEADERS, VERSION
from tpuserve_server.wire.model_messages import CONFIGURATION, EVALUATION, LABELS, PRECISION

_JSON = "application/json"


def _schema(name: str) -> dict[str, Any]:
    return {_JSON: {"schema": {"$ref": f"#/components/schemas/{name}"}}}


_ERRORS = ERRORS | {
    "501": "The model has a dtype that JSON cannot represent",
    "503": "The server is loading, draining or overloaded",
}
_LOOK_UP_ERRORS = ("400", "404", "500")

_RETRY_AFTER = {"retry-after": {"description": "Seconds to wait before a retry", "schema": {"type": "integer"}}}
_LABEL = {
    "name": "label",
    "in": "path",
    "required": True,
    "schema": {"type": "string"},
    "description": "A label that refers to a version",
}
_METADATA_FIELD: dict[str, Any] = {
    "name": "metadata_field",
    "in": "query",
    "schema": {"type": "array", "items": {"type": "string", "enum": [LABELS, PRECISION, EVALUATION, CONFIGURATION]}},
    "description": "Fields to add: names of the classes, or compute dtype and tolerance of the manifest",
}
# Paths that select the latest version of a model, one version, or a labelled version.
_TARGETS: tuple[tuple[str, str, list[dict[str, Any]]], ...] = (
    ("/v1/models/{model}", "", [MODEL]),
    ("/v1/models/{model}/versions/{version}", "Version", [MODEL, VERSION]),
    ("/v1/models/{model}/labels/{label}", "Label", [MODEL, _LABEL]),
)


def _responses(schema: str, errors: tuple[str, ...]) -> dict[str, Any]:
    responses: dict[str, Any] = {"200": {"description": "OK", "content": _schema(schema)}}
    return responses | {status: {"description": _ERRORS[status], "content": _schema("Error")} for status in errors}


def _infer(name: str, summary: str, request: str, response: str, parameters: list[dict[str, Any]]) -> dict[str, Any]:
    responses = _responses(response, tuple(_ERRORS))
    responses["200"]["headers"] = {
        "x-tpuserve-model-version": {
            "description": "The version that served the request",
            "schema": {"type": "integer"},
        },
        **CACHE_HEADER,
    }
    for status in ("429", "503"):
        responses[status]["headers"] = _RETRY_AFTER
    return {
        "post": {
            "tags": ["Prediction"],
            "summary": summary,
            "operationId": name,
            "parameters": [*parameters, *REQUEST_HEADERS],
            "requestBody": {"required": True, "content": _schema(request)},
            "responses": responses,
        }
    }


def _look_up(name: str, summary: str, schema: str, parameters: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "get": {
            "tags": ["Models"],
            "summary": summary,
            "operationId": name,
            "parameters": parameters,
            "responses": _responses(schema, _LOOK_UP_ERRORS if parameters else ()),
        }
    }


def _paths() -> dict[str, Any]:
    paths: dict[str, Any] = {}
    for path, suffix, parameters in _TARGETS:
        paths[f"{path}:predict"] = _infer(
            f"predict{suffix}", "Run a model", "PredictRequest", "Predictions", parameters
        )
        paths[f"{path}:classify"] = _infer(
            f"classify{suffix}", "Classify tf.Examples", "ExamplesRequest", "Classifications", parameters
        )
        paths[f"{path}:regress"] = _infer(
            f"regress{suffix}", "Regress tf.Examples", "ExamplesRequest", "Regressions", parameters
        )
        paths[path] = _look_up(f"getModelStatus{suffix}", "States of versions", "ModelStatus", parameters)
        paths[f"{path}/metadata"] = _look_up(
            f"getModelMetadata{suffix}", "Signatures of a version", "ModelMetadata", [*parameters, _METADATA_FIELD]
        )
    return paths | {"/v1/models": _look_up("listModels", "All models and their versions", "Models", [])}


def _object(properties: dict[str, Any], required: list[str], description: str) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": required, "description": description}


_ANYTHING: dict[str, Any] = {}
_STRING = {"type": "string"}
_EXAMPLE = {
    "type": "object",
    "additionalProperties": _ANYTHING,
    "description": "A tf.Example: features by name. A value, or values of one type: whole numbers and booleans "
    "(int64), "
    'numbers with a point or exponent (float), strings and {"b64": text} (bytes)',
}

V1_PATHS = _paths()
V1_COMPONENTS: dict[str, Any] = {
    "Error": _object({"error": _STRING}, ["error"], "Error message"),
    "PredictRequest": {
        "type": "object",
        "properties": {
            "signature_name": {**_STRING, "default": "serving_default"},
            "instances": {
                "type": "array",
                "items": _ANYTHING,
                "minItems": 1,
                "description": "Rows: values of the one input, or objects with a value for each input",
            },
            "inputs": {"description": "Columns: the value of the one input, or an object with one for each input"},
        },
        "oneOf": [{"required": ["instances"]}, {"required": ["inputs"]}],
        "description": 'Numbers, booleans, strings, {"b64": text} for bytes, and nested lists of these',
    },
    "Predictions": {
        "type": "object",
        "properties": {
            "predictions": {"type": "array", "items": _ANYTHING, "description": "One item for each of `instances`"},
            "outputs": {"description": "The one output, or an object with each output, for `inputs`"},
        },
        "description": "Non-finite numbers are the bare tokens NaN, Infinity and -Infinity",
    },
    "ExamplesRequest": _object(
        {
            "signature_name": {**_STRING, "default": "serving_default"},
            "context": {**_EXAMPLE, "description": "Default features for examples without a feature of the same name"},
            "examples": {"type": "array", "items": _EXAMPLE, "minItems": 1},
        },
        ["examples"],
        "tf.Examples, for signatures whose one input, `inputs`, takes them serialized",
    ),
    "Classifications": _object(
        {
            "results": {
                "type": "array",
                "items": {
                    "type": "array",
                    "items": {
                        "type": "array",
                        "items": _ANYTHING,
                        "minItems": 2,
                        "maxItems": 2,
                        "description": "Label and score",
                    },
                },
                "description": "One item for each of `examples`: its classes",
            }
        },
        ["results"],
        "An empty label or a score of 0.0 if the model returns none",
    ),
    "Regressions": _object(
        {"results": {"type": "array", "items": {"type": "number"}, "description": "One item for each of `examples`"}},
        ["results"],
        "Non-finite numbers are the bare tokens NaN, Infinity and -Infinity",
    ),
    "ModelStatus": _object(
        {
            "model_version_status": {
                "type": "array",
                "items": _object(
                    {
                        "version": _STRING,
                        "state": {
                            "type": "string",
                            "enum": ["UNKNOWN", "START", "LOADING", "AVAILABLE", "UNLOADING", "END"],
                        },
                        "status": _object(
                            {"error_code": _STRING, "error_message": _STRING}, ["error_code", "error_message"], "Why"
                        ),
                    },
                    ["version", "state", "status"],
                    "One version, newest first",
                ),
            }
        },
        ["model_version_status"],
        "tensorflow.serving.GetModelStatusResponse. --enable_kserve_v1_readiness adds `name` and `ready`",
    ),
    "ModelMetadata": _object(
        {"model_spec": {"type": "object"}, "metadata": {"type": "object"}},
        ["model_spec", "metadata"],
        "tensorflow.serving.GetModelMetadataResponse",
    ),
    "Models": _object(
        {
            "models": {
                "type": "array",
                "items": _object(
                    {
                        "name": _STRING,
                        "labels": {
                            "type": "object",
                            "additionalProperties": _STRING,
                            "description": "The version that each label refers to",
                        },
                        "versions": {
                            "type": "array",
                            "items": _object(
                                {
                                    "version": _STRING,
                                    "state": _STRING,
                                    "error": _STRING,
                                    "notes": {"type": "array", "items": _STRING},
                                },
                                ["version", "state", "error", "notes"],
                                "One version, newest first",
                            ),
                        },
                    },
                    ["name", "labels", "versions"],
                    "One model",
                ),
            }
        },
        ["models"],
        "Every configured model, with or without versions",
    ),
}
