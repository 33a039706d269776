"""Errors on the wire: a ServingError's HTTP status and gRPC message, the errors of HTTP alone, internal errors."""

import logging
from typing import Final

from tpuserve_server.core.terms.errors import (
    Cancelled,
    Code,
    InvalidArgument,
    NotFound,
    ServingError,
    TooLarge,
    Unimplemented,
)
from tpuserve_server.observe.requests.trace_context import identify_response
from tpuserve_server.protocols.rpc import Trailers

# TensorFlow Serving truncates messages to this length (tensorflow_serving/util/status_util,
# model_servers/grpc_status_util.cc).
MAX_MESSAGE_CHARACTERS = 1024
TRUNCATED = "...TRUNCATED"

# Source: tensorflow_serving/util/net_http/public/response_code_enum.h, through http_server's ToHTTPStatusCode.
_HTTP_STATUS = {
    Code.OK: 200,
    Code.INVALID_ARGUMENT: 400,
    Code.FAILED_PRECONDITION: 400,
    Code.OUT_OF_RANGE: 400,
    Code.UNAUTHENTICATED: 401,
    Code.PERMISSION_DENIED: 403,
    Code.NOT_FOUND: 404,
    Code.ABORTED: 409,
    Code.ALREADY_EXISTS: 409,
    Code.RESOURCE_EXHAUSTED: 429,
    Code.CANCELLED: 499,
    Code.UNIMPLEMENTED: 501,
    Code.UNAVAILABLE: 503,
    Code.DEADLINE_EXCEEDED: 504,
}


def http_status(code: Code) -> int:
    """Return the HTTP status for a code, or 500 if the table has none."""
    return _HTTP_STATUS.get(code, 500)


def grpc_message(message: str) -> str:
    """Truncate a message as TensorFlow Serving does."""
    if len(message) <= MAX_MESSAGE_CHARACTERS:
        return message
    return message[:MAX_MESSAGE_CHARACTERS] + TRUNCATED


class ClientGone(Cancelled):
    """The client disconnected, so the server sends no response."""

    def __init__(self) -> None:
        """Set the message, which only logs show."""
        super().__init__("The client disconnected")


class BodyTooLarge(TooLarge):
    """The body is over the limit: HTTP status 413."""

    def __init__(self, limit_bytes: int) -> None:
        """Name `limit_bytes` in the message to the client."""
        super().__init__(f"Request body is larger than the limit of {limit_bytes} bytes")


class UnsupportedEncoding(InvalidArgument):
    """The body has an unsupported encoding: HTTP status 415."""

    def __init__(self, name: str) -> None:
        """Name the encoding as the client wrote it."""
        super().__init__(f"Content-Encoding {name} is not supported; use gzip or deflate")


class PathNotFound(NotFound):
    """The server has no such path."""

    def __init__(self) -> None:
        """Set the message, which is that of Triton and FastAPI."""
        super().__init__("Not Found")


class MethodNotAllowed(Unimplemented):
    """The path exists, but not for this method: HTTP status 405."""

    def __init__(self) -> None:
        """Set the message, which is that of Triton and FastAPI."""
        super().__init__("Method Not Allowed")


_OWN_STATUS: Final[dict[type[ServingError], int]] = {
    BodyTooLarge: 413,
    UnsupportedEncoding: 415,
    MethodNotAllowed: 405,
}


def status_of(error: ServingError) -> int:
    """Return the HTTP status for `error`."""
    return _OWN_STATUS.get(type(error)) or http_status(error.code)


_log = logging.getLogger(__name__)


def log_internal(error: Exception, method: str, trailers: Trailers) -> None:
    """Log an internal error of `method`. Give its response an id among `trailers` if it has none.

    A ServingError has a message for the client, and its origin has logged its traceback.
    """
    fields = {"request_id": identify_response(trailers)}
    if isinstance(error, ServingError):
        _log.warning("Internal error in %s: %s", method, error.message, extra={"fields": fields})
    else:
        _log.error("Unexpected error in %s", method, exc_info=error, extra={"fields": fields})
