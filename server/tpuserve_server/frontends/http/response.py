"""REST responses: status, headers and body as ASGI messages."""

import math
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import orjson

from tpuserve_server.core.errors import ServingError
from tpuserve_server.frontends.http.errors import status_of
from tpuserve_server.frontends.http.content_coding import accepts_gzip, compress

if TYPE_CHECKING:
    from starlette.types import Scope, Send

Headers: TypeAlias = tuple[tuple[bytes, bytes], ...]

_JSON = (b"content-type", b"application/json")
_MODEL_VERSION = b"x-tpuserve-model-version"
_RETRY_AFTER = b"retry-after"
_VARY: Headers = ((b"vary", b"accept-encoding"),)
_ENCODING: Headers = ((b"content-encoding", b"gzip"),)


class JsonResponse(NamedTuple):
    """A JSON body with its status.

    `version` becomes a header if a model version produced the body. `retry_after_s` becomes a header with status 429
    and 503.
    """

    status: int
    body: bytes
    version: int | None = None
    headers: Headers = ()
    retry_after_s: int = 1


def error_response(error: ServingError, body: bytes) -> JsonResponse:
    """Return a response with `body` and the HTTP status of `error`."""
    response = JsonResponse(status_of(error), body)
    if error.retry_after_s is None:
        return response
    # Whole seconds (RFC 9110, 10.2.3), at least 1: 0 would mean an immediate retry.
    return response._replace(retry_after_s=max(math.ceil(error.retry_after_s), 1))


def error_body(message: str) -> bytes:
    """Return `{"error": message}` as JSON. Replace characters without UTF-8, such as lone surrogates."""
    return orjson.dumps({"error": message.encode(errors="replace").decode()})


async def compressed(response: JsonResponse, scope: "Scope") -> JsonResponse:
    """Compress `response` if the client accepts gzip. Call it for bodies of at least MIN_GZIP_BYTES."""
    if not accepts_gzip(scope):
        return response._replace(headers=_VARY)
    return response._replace(body=await compress(response.body), headers=_VARY + _ENCODING)


async def send_response(send: "Send", response: JsonResponse, more_headers: Headers = ()) -> None:
    """Send both ASGI messages of a response. Responses with 429 and 503 carry `retry-after`."""
    headers = [_JSON, (b"content-length", b"%d" % len(response.body)), *response.headers, *more_headers]
    if response.version is not None:
        headers.append((_MODEL_VERSION, b"%d" % response.version))
    if response.status in (429, 503):
        headers.append((_RETRY_AFTER, b"%d" % response.retry_after_s))
    await send({"type": "http.response.start", "status": response.status, "headers": headers})
    await send({"type": "http.response.body", "body": response.body})
