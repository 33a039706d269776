"""REST responses: status, headers and body as ASGI messages."""

import math
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import orjson

from tpuserve_server.core.errors import ServingError
from tpuserve_server.frontends.http.errors import status_of
from tpuserve_server.frontends.http.gzip import accepts_gzip, compress

if TYPE_CHECKING:
    from starlette.types import Scope, Send

Headers: TypeAlias = tuple[tuple[bytes, bytes], ...]

_JSON = (b"content-type", b"application/json")
_MODEL_VERSION = b"x-tpuserve-model-version"
_RETRY_AFTER = b"retry-after"
_VARY: Headers = ((b"vary", b"accept-encoding"),)
_ENCODING: Headers = ((b"content-encoding", b"gzip"),)


class JsonResponse(NamedTuple):
    """A JSON body with its status; `version` goes into a header when the answer came from one.

    `retry_after_s` goes into one with 429 and 503.
    """

    status: int
    body: bytes
    version: int | None = None
    headers: Headers = ()
    retry_after_s: int = 1


def error_response(error: ServingError, body: bytes) -> JsonResponse:
    """`body` under the status of the error's code, or of the error itself."""
    response = JsonResponse(status_of(error), body)
    if error.retry_after_s is None:
        return response
    # Whole seconds (RFC 9110, 10.2.3), and none would mean at once.
    return response._replace(retry_after_s=max(math.ceil(error.retry_after_s), 1))


def error_body(message: str) -> bytes:
    """`{"error": message}`. What has no UTF-8 in the message, as a name with lone surrogates, is replaced."""
    return orjson.dumps({"error": message.encode(errors="replace").decode()})


async def compressed(response: JsonResponse, scope: "Scope") -> JsonResponse:
    """`response`, by gzip if the client takes that. For bodies that are worth it, from MIN_GZIP_BYTES on."""
    if not accepts_gzip(scope):
        return response._replace(headers=_VARY)
    return response._replace(body=await compress(response.body), headers=_VARY + _ENCODING)


async def send_response(send: "Send", response: JsonResponse, more_headers: Headers = ()) -> None:
    """Both ASGI messages of a response; 429 and 503 say when to come again."""
    headers = [_JSON, (b"content-length", b"%d" % len(response.body)), *response.headers, *more_headers]
    if response.version is not None:
        headers.append((_MODEL_VERSION, b"%d" % response.version))
    if response.status in (429, 503):
        headers.append((_RETRY_AFTER, b"%d" % response.retry_after_s))
    await send({"type": "http.response.start", "status": response.status, "headers": headers})
    await send({"type": "http.response.body", "body": response.body})
