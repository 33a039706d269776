"""Parts of OpenAPI documents that the paths of several protocols share."""

from typing import Any

from tpuserve_server.protocols.http.headers import TIMEOUT_HEADER
from tpuserve_server.protocols.priority import PRIORITY_HEADER

# Each protocol adds its own reason for 501 and 503.
ERRORS = {
    "400": "The path or the request is malformed, or does not match the model's signature",
    "404": "No such model or version",
    "413": "The body is over the limit",
    "415": "The body's encoding is neither gzip nor deflate",
    "429": "The response would miss the latency objective or the deadline, or a quota is exhausted",
    "500": "The model or the server failed",
    "504": "The deadline passed",
}
MODEL = {
    "name": "model",
    "in": "path",
    "required": True,
    "schema": {"type": "string"},
    "description": "The model's name",
}
VERSION = {
    "name": "version",
    "in": "path",
    "required": True,
    "schema": {"type": "integer", "format": "int64", "minimum": 0},
    "description": "The model's version",
}
REQUEST_HEADERS: list[dict[str, Any]] = [
    {
        "name": TIMEOUT_HEADER,
        "in": "header",
        "schema": {"type": "number", "exclusiveMinimum": 0},
        "description": "Timeout of the request in milliseconds",
    },
    {
        "name": PRIORITY_HEADER,
        "in": "header",
        "schema": {"type": "string", "enum": ["high", "low"], "default": "high"},
        "description": "Requests with priority low run in capacity that requests with priority high leave free",
    },
]
CACHE_HEADER: dict[str, Any] = {
    "x-tpuserve-cache": {
        "description": "Whether the response came from the response cache, if the model has one",
        "schema": {"type": "string", "enum": ["hit", "miss"]},
    },
}
