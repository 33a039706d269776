"""REST responses: status, headers and body as ASGI messages."""

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import orjson

from tpuserve_server.core.errors import ServingError
from tpuserve_server.frontends.rest_errors import status_of
from tpuserve_server.frontends.rest_gzip import accepts_gzip, compress

if TYPE_CHECKING:
    from starlette.types import Scope, Send

Headers: TypeAlias = tuple[tuple[bytes, bytes], ...]

_JSON = (b"content-type", b"application/json")
_MODEL_VERSION = b"x-tpuserve-model-version"
_RETRY_AFTER = (b"retry-after", b"1")
_VARY: Headers = ((b"vary", b"accept-encoding"),)
_ENCODING: Headers = ((b"content-encoding", b"gzip"),)


class JsonResponse(NamedTuple):
    """A JSON body with its status; `version` goes into a header when the answer came from one."""

    status: int
    body: bytes
    version: int | None = None
    headers: Headers = ()


def error_response(error: ServingError) -> JsonResponse:
    """`{"error": message}` under the status of the error's code, or of the error itself."""
    return error_body(status_of(error), error.message)


def error_body(status: int, message: str) -> JsonResponse:
    """`{"error": message}`. What has no UTF-8 in the message, as a name with lone surrogates, is replaced."""
    return JsonResponse(status, orjson.dumps({"error": message.encode(errors="replace").decode()}))


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
        headers.append(_RETRY_AFTER)
    await send({"type": "http.response.start", "status": response.status, "headers": headers})
    await send({"type": "http.response.body", "body": response.body})
