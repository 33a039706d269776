"""REST responses: status, headers and body as ASGI messages."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import orjson

from tpuserve_server.core.errors import ServingError
from tpuserve_server.frontends.rest_request import BodyTooLarge
from tpuserve_server.frontends.status import http_status

if TYPE_CHECKING:
    from starlette.types import Send

_JSON = (b"content-type", b"application/json")
_MODEL_VERSION = b"x-tpuserve-model-version"
_RETRY_AFTER = (b"retry-after", b"1")


@dataclass(frozen=True, slots=True)
class JsonResponse:
    """A JSON body with its status; `version` goes into a header when the answer came from one."""

    status: int
    body: bytes
    version: int | None = None


def error_response(error: ServingError) -> JsonResponse:
    """`{"error": message}` under the status of the error's code."""
    status = 413 if isinstance(error, BodyTooLarge) else http_status(error.code)
    return error_body(status, error.message)


def error_body(status: int, message: str) -> JsonResponse:
    """`{"error": message}`. What has no UTF-8 in the message, as a name with lone surrogates, is replaced."""
    return JsonResponse(status, orjson.dumps({"error": message.encode(errors="replace").decode()}))


async def send_response(send: "Send", response: JsonResponse) -> None:
    """Both ASGI messages of a response; 429 and 503 say when to come again."""
    headers = [_JSON, (b"content-length", b"%d" % len(response.body))]
    if response.version is not None:
        headers.append((_MODEL_VERSION, b"%d" % response.version))
    if response.status in (429, 503):
        headers.append(_RETRY_AFTER)
    await send({"type": "http.response.start", "status": response.status, "headers": headers})
    await send({"type": "http.response.body", "body": response.body})
