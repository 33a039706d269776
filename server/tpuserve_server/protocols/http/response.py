"""REST responses: status, headers and body as ASGI messages."""

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import orjson

from tpuserve_server.core.terms.errors import Code, ServingError
from tpuserve_server.core.terms.types import CacheOutcome
from tpuserve_server.protocols.http.content import accepted_coding, compress
from tpuserve_server.protocols.status import status_of

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send


# Headers of every response that keep browsers and proxies from misusing it. A response may contain text of a client,
# such as a model's name in an error. `nosniff` keeps browsers from taking it for a page. `no-store` keeps responses to
# GET out of caches: a shared cache may not know that a key in x-api-key decides who may read them.
NO_SNIFFING: Final = (b"x-content-type-options", b"nosniff")
NO_STORE: Final = (b"cache-control", b"no-store")


Headers: TypeAlias = tuple[tuple[bytes, bytes], ...]

MODEL_VERSION_HEADER: Final = "x-tpuserve-model-version"
RETRY_AFTER_HEADER: Final = "retry-after"
CACHE_HEADER: Final = "x-tpuserve-cache"
_MODEL_VERSION: Final = MODEL_VERSION_HEADER.encode()
_RETRY_AFTER: Final = RETRY_AFTER_HEADER.encode()
_CACHE: Final = CACHE_HEADER.encode()
_CHALLENGE: Final = b"www-authenticate"
# Challenges of a response without valid credentials (RFC 9110, 11.6.1). A browser asks its user for a password only for
# the second one.
BEARER: Final = b'Bearer realm="tpuserve"'
BASIC: Final = b'Basic realm="tpuserve", charset="UTF-8"'
_VARY: Headers = ((b"vary", b"accept-encoding"),)
# Header of a response from a model with a response cache.
CACHE_HEADERS: Final[Mapping[CacheOutcome, Headers]] = {
    "": (),
    "hit": ((_CACHE, b"hit"),),
    "miss": ((_CACHE, b"miss"),),
}


class HttpResponse(NamedTuple):
    """A body, JSON by default, with its status.

    `version` becomes a header if a model version produced the body. `retry_after_s` becomes a header with status 429
    and 503. `compressible` is False for clients that send Accept-Encoding with every request, but decompress only the
    responses to inference requests.
    """

    status: int
    body: bytes
    version: int | None = None
    headers: Headers = ()
    retry_after_s: int = 1
    content_type: bytes = b"application/json"
    compressible: bool = True


def error_response(error: ServingError, body: bytes) -> HttpResponse:
    """Return a response with `body` and the HTTP status of `error`."""
    response = HttpResponse(status_of(error), body, compressible=False)
    if error.code is Code.UNAUTHENTICATED:
        return with_challenge(response, BEARER)
    if error.retry_after_s is None:
        return response
    # Whole seconds (RFC 9110, 10.2.3), at least 1: 0 would mean an immediate retry.
    return response._replace(retry_after_s=max(math.ceil(error.retry_after_s), 1))


def with_challenge(response: HttpResponse, challenge: bytes) -> HttpResponse:
    """Return a response that asks the client for credentials with `challenge` alone."""
    others = tuple(header for header in response.headers if header[0] != _CHALLENGE)
    return response._replace(headers=(*others, (_CHALLENGE, challenge)))


def error_body(message: str) -> bytes:
    """Return `{"error": message}` as JSON. Replace characters without UTF-8, such as lone surrogates."""
    return orjson.dumps({"error": message.encode(errors="replace").decode()})


async def compressed(response: HttpResponse, scope: "Scope") -> HttpResponse:
    """Compress `response` if the client accepts it. Call it for bodies of at least MIN_COMPRESSED_BYTES."""
    headers = response.headers + _VARY
    coding = accepted_coding(scope)
    if coding is None:
        return response._replace(headers=headers)
    body = await compress(response.body, coding)
    return response._replace(body=body, headers=(*headers, (b"content-encoding", coding.name.encode())))


async def send_response(send: "Send", response: HttpResponse, more_headers: Headers = ()) -> None:
    """Send both ASGI messages of a response."""
    start, body = response_messages(response, more_headers)
    await send(start)
    await send(body)


def response_messages(response: HttpResponse, more_headers: Headers = ()) -> "tuple[Message, Message]":
    """Return both ASGI messages of a response. Responses with 429 and 503 carry `retry-after`."""
    status, body, version, own_headers, retry_after_s, content_type, _ = response
    headers = [
        (b"content-type", content_type),
        (b"content-length", b"%d" % len(body)),
        NO_SNIFFING,
        *own_headers,
        *more_headers,
    ]
    if version is not None:
        headers.append(_version_header(version))
    if status in (429, 503):
        headers.append((_RETRY_AFTER, b"%d" % retry_after_s))
    return (
        {"type": "http.response.start", "status": status, "headers": headers},
        {"type": "http.response.body", "body": body},
    )


@lru_cache(maxsize=1024)
def _version_header(version: int) -> tuple[bytes, bytes]:
    return (_MODEL_VERSION, b"%d" % version)


class SafeResponses:
    """Adds the headers to the responses of an application that does not set them itself."""

    def __init__(self, app: "ASGIApp") -> None:
        """Wrap `app`."""
        self._app = app

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        """Answer one request."""

        async def send_safely(message: "Message") -> None:
            if message["type"] == "http.response.start":
                names = {name.lower() for name, _ in message["headers"]}
                missing = [header for header in (NO_SNIFFING, NO_STORE) if header[0] not in names]
                message = {**message, "headers": [*message["headers"], *missing]}
            await send(message)

        await self._app(scope, receive, send_safely)
