"""CrossOrigin: lets web pages of every origin send requests to any REST route and read the responses (CORS).

TensorFlow Serving allows every origin, POST and GET (http_rest_api_util.cc, AddCORSHeaders). With `*` as the origin,
browsers send no credentials of their own: the page itself must know the key. `Control` refuses changes of the server by
pages of other sites, whatever these headers allow.
"""

from typing import TYPE_CHECKING, Final

from tpuserve_server.access.authenticator import API_KEY, AUTHORIZATION
from tpuserve_server.observe.requests.trace_context import REQUEST_ID_HEADER, TRACEPARENT, TRACERESPONSE, TRACESTATE
from tpuserve_server.protocols.http.headers import JSON_LENGTH_NAME, TIMEOUT_HEADER
from tpuserve_server.protocols.http.response import (
    CACHE_HEADER,
    MODEL_VERSION_HEADER,
    RETRY_AFTER_HEADER,
    Headers,
    HttpResponse,
    send_response,
)
from tpuserve_server.protocols.priority import PRIORITY_HEADER
from tpuserve_server.protocols.timing import SERVER_TIMING_HEADER, TIMING_REQUEST_HEADER

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

# Request headers that a browser sends only with the server's permission, and response headers that it hides from pages
# otherwise.
_ALLOWED: Final = (
    "Content-Type",
    "Content-Encoding",
    TIMEOUT_HEADER,
    PRIORITY_HEADER,
    AUTHORIZATION,
    API_KEY,
    REQUEST_ID_HEADER,
    TRACEPARENT,
    TRACESTATE,
    TIMING_REQUEST_HEADER,
    JSON_LENGTH_NAME,
)
_EXPOSED: Final = (
    MODEL_VERSION_HEADER,
    CACHE_HEADER,
    REQUEST_ID_HEADER,
    SERVER_TIMING_HEADER,
    TRACERESPONSE,
    RETRY_AFTER_HEADER,
    JSON_LENGTH_NAME,
)
_HEADERS: Final[Headers] = (
    (b"access-control-allow-origin", b"*"),
    (b"access-control-allow-methods", b"POST, GET"),
    (b"access-control-allow-headers", ", ".join(_ALLOWED).encode()),
    (b"access-control-expose-headers", ", ".join(_EXPOSED).encode()),
)


class CrossOrigin:
    """Answers the preflights of web pages, and adds the headers to every other response of an application."""

    def __init__(self, app: "ASGIApp") -> None:
        """Wrap `app`, with its checks of clients: a browser sends a preflight without credentials."""
        self._app = app

    def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> "Awaitable[None]":
        """Return the coroutine that answers one request."""
        if scope["method"] == "OPTIONS" and _is_preflight(scope):
            return send_response(send, HttpResponse(200, b""), _HEADERS)

        async def send_shared(message: "Message") -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message["headers"], *_HEADERS]}
            await send(message)

        return self._app(scope, receive, send_shared)


def _is_preflight(scope: "Scope") -> bool:
    """Return whether a web page asks (https://fetch.spec.whatwg.org/#cors-preflight-request)."""
    headers = dict(scope["headers"])
    return b"access-control-request-method" in headers and has_page_origin(scope)


def has_page_origin(scope: "Scope") -> bool:
    """Return whether a request names a web page as its origin, as TensorFlow Serving decides it."""
    origin = next((value for name, value in scope["headers"] if name == b"origin"), b"")
    return b"http://" in origin or b"https://" in origin
