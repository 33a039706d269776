"""The two error tables: a ServingError on gRPC and on HTTP."""

from tpuserve_server.core.terms.errors import Code

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
