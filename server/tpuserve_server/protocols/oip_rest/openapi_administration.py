"""OpenAPI for the paths under /v2 of the repository, configuration, statistics, settings and shared memory."""

from typing import Any, Final

from tpuserve_server.protocols.http.openapi import VERSION
from tpuserve_server.protocols.oip_rest.openapi import MODEL_TARGETS, content_of

_STRING: Final = {"type": "string"}
_SIZE: Final = {"type": "integer", "format": "int64", "minimum": 0}
_REGION: Final = "/v2/systemsharedmemory"
_ERRORS: Final = {
    "400": "The request is malformed, or names what the server does not have",
    "404": "No such model, version or region",
    "409": "The name of the region is in use",
    "500": "The model cannot be loaded, or the memory cannot be opened",
    "501": "The server does not support the change",
    "503": "The server does not load and unload models, or the version is not ready",
    "504": "The deadline passed before the model was loaded",
}


def _paths() -> dict[str, Any]:
    paths: dict[str, Any] = {
        "/v2/repository/index": _post("oipIndex", "Models, versions and states", "OipIndexRequest", "400", array=True),
        "/v2/repository/models/{model}/load": _post(
            "oipLoad", "Load a model", "OipLoadRequest", "400", "500", "501", "503", "504", has_body=False
        ),
        "/v2/repository/models/{model}/unload": _post(
            "oipUnload", "Unload a model", "OipLoadRequest", "400", "501", "503", has_body=False
        ),
        "/v2/models/stats": _get("oipAllStatistics", "Statistics of all models"),
        f"{_REGION}/status": _get("oipRegions", "Regions of shared memory", array=True),
        f"{_REGION}/region/{{region}}/status": _get("oipRegion", "A region of shared memory", "404", array=True),
        f"{_REGION}/region/{{region}}/register": _post(
            "oipRegister", "Register a region", "OipRegisterRequest", "400", "409", "500", "501", has_body=False
        ),
        f"{_REGION}/region/{{region}}/unregister": _post(
            "oipUnregister", "Unregister a region", "", "501", has_body=False
        ),
        f"{_REGION}/unregister": _post("oipUnregisterAll", "Unregister all regions", "", "501", has_body=False),
        "/v2/cudasharedmemory/status": _get("oipCudaRegions", "No regions", array=True),
    }
    for path, suffix in MODEL_TARGETS:
        paths[f"{path}/config"] = _get(f"oipConfig{suffix}", "Configuration of a model", "404", "503")
        paths[f"{path}/stats"] = _get(f"oipStatistics{suffix}", "Statistics of a model", "400")
    for path, name in (
        ("/v2/trace/setting", "oipTrace"),
        ("/v2/models/{model}/trace/setting", "oipModelTrace"),
        ("/v2/logging", "oipLogging"),
    ):
        paths[path] = {
            **_get(name, "Settings"),
            **_post(f"{name}Update", "Settings; a change is refused", "OipSettings", "400", "501"),
        }
    for path, item in paths.items():
        for operation in item.values():
            operation["parameters"] = _parameters(path)
    return paths


ADMINISTRATION_COMPONENTS: Final[dict[str, Any]] = {
    "OipIndexRequest": {
        "type": "object",
        "properties": {"ready": {"type": "boolean"}},
        "description": "With ready, only versions that answer requests",
    },
    "OipLoadRequest": {
        "type": "object",
        "properties": {"parameters": {"type": "object"}},
        "description": "The parameter config of a load may set max_batch_size, as JSON in a string",
    },
    "OipRegisterRequest": {
        "type": "object",
        "properties": {"key": _STRING, "offset": _SIZE, "byte_size": _SIZE},
        "required": ["key", "byte_size"],
        "description": "A window of a POSIX shared memory object",
    },
    "OipSettings": {"type": "object", "description": "Values by name"},
}


def _parameters(path: str) -> list[dict[str, Any]]:
    schemas = {"model": _STRING, "version": VERSION["schema"], "region": _STRING}
    return [
        {"name": name, "in": "path", "required": True, "schema": schema}
        for name, schema in schemas.items()
        if f"{{{name}}}" in path
    ]


def _get(name: str, summary: str, *errors: str, array: bool = False) -> dict[str, Any]:
    return {"get": _operation(name, summary, errors, array=array)}


def _post(
    name: str, summary: str, schema: str, *errors: str, array: bool = False, has_body: bool = True
) -> dict[str, Any]:
    operation = _operation(name, summary, errors, array=array, has_body=has_body)
    if schema:
        operation["requestBody"] = {"content": content_of(schema)}
    return {"post": operation}


def _operation(
    name: str, summary: str, errors: tuple[str, ...], *, array: bool, has_body: bool = True
) -> dict[str, Any]:
    listed = {"type": "array", "items": {"type": "object"}}
    schema: dict[str, Any] = listed if array else {"type": "object"}
    return {
        "tags": ["Open Inference Protocol"],
        "summary": summary,
        "operationId": name,
        "responses": {
            # As in Triton, the responses to some changes are empty.
            "200": {"description": "OK", **({"content": {"application/json": {"schema": schema}}} if has_body else {})},
            **{status: {"description": _ERRORS[status], "content": content_of("Error")} for status in errors},
        },
    }


# The responses are Triton's messages in JSON.
ADMINISTRATION_PATHS: Final[dict[str, Any]] = _paths()
